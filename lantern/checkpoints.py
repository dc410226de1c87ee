"""Which models exist and where their files lie: folders, the hub cache, downloads.

A model is four parts: ``target``, ``drafter``, ``tokenizer`` and ``text``. Each part has one or
more sources, alternatives in order of preference; a source is a set of files of one layout.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "checkpoints"


@dataclass(frozen=True)
class Source:
    """``files``: config first (if the layout has one), then weights, then the rest. ``layout``:
    native (config.json and weights of this repository), hf, original, vq, encoder or classes.
    ``repo``: the hub repository, None where a part comes with this repository or is trained here.
    """

    layout: str
    files: tuple[str, ...]
    repo: str | None = None
    gigabytes: float = 0.0


@dataclass(frozen=True)
class ModelEntry:
    """What is known about a model before anything is loaded. ``info`` stands in for a model.json
    where the published files have none; parts in ``optional`` may be absent."""

    name: str
    title: str
    summary: str
    licence: str
    grid: int
    pixels: int
    parts: dict[str, tuple[Source, ...]]
    optional: tuple[str, ...] = ()
    info: dict = field(default_factory=dict)

    @property
    def by_class(self) -> bool:
        """Whether the model draws classes instead of prompts."""
        return self.parts["text"][0].layout == "classes"


@dataclass(frozen=True)
class Found:
    """The files of one part: ``paths`` in the order of ``source.files``."""

    source: Source
    paths: tuple[Path, ...]

    @property
    def folder(self) -> Path:
        return self.paths[0].parent


_NATIVE = Source("native", ("config.json", "model.safetensors"))
_TRAINED_HERE = Source("hf", ("config.json", "model.safetensors"))
_T5 = tuple(
    Source("encoder", ("config.json", *weights, "tokenizer.json", "tokenizer_config.json"),
           "google/flan-t5-xl", 11.4)
    for weights in (
        ("model.safetensors.index.json", "model-00001-of-00002.safetensors",
         "model-00002-of-00002.safetensors"),
        ("model.safetensors",),
    )
)  # fmt: skip
_PROMPTS = (
    "a red apple on a wooden table",
    "a lighthouse on a cliff at sunset",
    "a corgi wearing a bow tie, oil painting",
    "a bowl of ramen with an egg",
)
_CLASSES = ("golden retriever", "macaw", "volcano", "espresso", "beacon")


def _info(title: str, cfg: float, top_k: int, examples: tuple[str, ...]) -> dict:
    """What model.json says of our own model; the tree is the official default."""
    defaults = {
        "k": 1000, "delta": 0.2, "temperature": 1.0, "cfg": cfg, "top_k": top_k, "top_p": 1.0,
        "rule": "tvd", "nodes": 59, "depth": 5, "branch": 10,
    }  # fmt: skip
    return {"title": title, "defaults": defaults, "examples": list(examples)}


def _stage(number: int, grid: int, repo: str, drafter: str, original: str) -> ModelEntry:
    pixels = 16 * grid
    return ModelEntry(
        name=f"llamagen-stage{number}",
        title=f"LlamaGen Stage {'I' * number}",
        summary=f"775 M parameters, {pixels} x {pixels} px, {grid**2} tokens; the paper's model",
        licence="MIT (LlamaGen); Apache-2.0 (flan-t5-xl); the drafter's repository states none",
        grid=grid,
        pixels=pixels,
        parts={
            "target": (
                Source("hf", ("config.json", "model.safetensors"), repo, 3.1),
                Source("original", (original,), "peizesun/llamagen_t2i", 3.1),
            ),
            "drafter": tuple(
                Source("hf", ("config.json", file), drafter, 0.2)
                for file in ("pytorch_model.bin", "model.safetensors")
            ),
            "tokenizer": (Source("vq", ("vq_ds16_t2i.pt",), "peizesun/llamagen_t2i", 0.29),),
            "text": _T5,
        },
        info=_info(f"LlamaGen Stage {'I' * number}", 7.5, 1000, _PROMPTS),
    )


def _class_model(size: str, parameters: str, pixels: int, gigabytes: float) -> ModelEntry:
    grid = pixels // 16
    return ModelEntry(
        name=f"llamagen-{size.lower()}-{pixels}",
        title=f"LlamaGen-{size} {pixels} px",
        summary=f"{parameters} parameters, {pixels} x {pixels} px, {grid**2} tokens; ImageNet",
        licence="MIT (LlamaGen)",
        grid=grid,
        pixels=pixels,
        parts={
            "target": (
                Source(
                    "original", (f"c2i_{size}_{pixels}.pt",), "FoundationVision/LlamaGen", gigabytes
                ),
            ),
            "drafter": (_TRAINED_HERE,),
            "tokenizer": (Source("vq", ("vq_ds16_c2i.pt",), "FoundationVision/LlamaGen", 0.29),),
            "text": (Source("classes", ()),),
        },
        optional=("drafter",),
        info=_info(f"LlamaGen-{size} {pixels} px", 4.0, 2000, _CLASSES),
    )


MODELS = {
    entry.name: entry
    for entry in (
        ModelEntry(
            name="emoji-128",
            title="emoji-128",
            summary="21 M parameters, 128 x 128 px, 256 tokens; trained by this repository",
            licence="Apache-2.0 (weights); art MIT and Apache-2.0, see the model card",
            grid=16,
            pixels=128,
            parts={
                "target": (_NATIVE,),
                "drafter": (_NATIVE,),
                "tokenizer": (_NATIVE,),
                "text": (
                    Source("encoder", ("config.json", "model.safetensors", "tokenizer.json")),
                ),
            },
        ),
        _stage(1, 16, "jadohu/LlamaGen-T2I", "jadohu/llamagen_drafter", "t2i_XL_stage1_256.pt"),
        _stage(2, 32, "jadohu/LlamaGen-T2I-2", "jadohu/llamagen2_drafter", "t2i_XL_stage2_512.pt"),
        _class_model("B", "111 M", 256, 0.45),
        _class_model("L", "343 M", 256, 1.4),
        _class_model("B", "111 M", 384, 0.45),
        _class_model("L", "343 M", 384, 1.4),
        _class_model("XL", "775 M", 384, 3.1),
    )
}


def entry(name: str) -> ModelEntry:
    """The registry entry; ValueError lists the known names."""
    if name not in MODELS:
        raise ValueError(f"unknown model {name!r}; known are {', '.join(MODELS)}.")
    return MODELS[name]


def roots(model_dir: Path | None = None) -> list[Path]:
    """Folders that hold models: ``model_dir``, $LANTERN_MODELS, then the repository's own."""
    given = [model_dir, os.environ.get("LANTERN_MODELS")]
    return [Path(folder) for folder in given if folder] + [ROOT]


def folder_of(name: str, model_dir: Path | None = None) -> Path:
    """A model's folder in the first root that has one, else where it would belong."""
    entry(name)
    places = [root / name for root in roots(model_dir)]
    return next((place for place in places if place.is_dir()), places[0])


def in_folder(name: str, part: str, folder: Path) -> Found:
    """A part of a model that lies in ``folder``, wherever that is; its files may be missing."""
    source = entry(name).parts[part][0]
    return Found(source, tuple(folder / part / file for file in source.files))


def find(name: str, part: str, model_dir: Path | None = None) -> Found | None:
    """The files of a part, None if no source is complete.

    Looked for in <root>/<model>/<part>, <root>/<repository's name>, <root>/<model> (single files
    without a config.json) and the hub cache, place by place: a drafter trained here is used before
    a published one in the cache.
    """
    sources = entry(name).parts[part]
    for paths_here in zip_longest(*(_places(name, part, s, model_dir) for s in sources)):
        for source, paths in zip(sources, paths_here, strict=True):
            if paths is not None and all(path and path.is_file() for path in paths):
                return Found(source, tuple(paths))
    return None


def missing(name: str, part: str, model_dir: Path | None = None) -> list[str]:
    """File names that would complete a part, of the source of which most is there already (of the
    first if nothing is); [] if it is complete."""
    best, most = list(entry(name).parts[part][0].files), 0
    for source in entry(name).parts[part]:
        for paths in _places(name, part, source, model_dir):
            present = [bool(path and path.is_file()) for path in paths]
            if all(present):
                return []
            if sum(present) > most:
                most = sum(present)
                best = [f for f, here in zip(source.files, present, strict=True) if not here]
    return best


def _places(name: str, part: str, source: Source, model_dir: Path | None):
    # Our own model is one folder: another folder's parts would not belong to it.
    whole = not entry(name).info
    for root in [folder_of(name, model_dir).parent] if whole else roots(model_dir):
        repository = root / source.repo.split("/")[1] if source.repo else None
        # A config.json beside other parts' files could be any part's.
        together = None if "config.json" in source.files else root / name
        for folder in (root / name / part, repository, together):
            yield [folder / file if folder else None for file in source.files]
    if source.repo:
        from huggingface_hub import try_to_load_from_cache

        cached = [try_to_load_from_cache(source.repo, file) for file in source.files]
        yield [Path(path) if isinstance(path, str) else None for path in cached]


def unavailable(
    name: str, model_dir: Path | None = None, optional: tuple[str, ...] = ()
) -> str | None:
    """None if everything needed is there, else one sentence with the remedy. ``optional``: parts
    that the caller can do without."""
    known = entry(name)
    for part in known.parts:
        absent = missing(name, part, model_dir)
        if not absent or part in (*known.optional, *optional):
            continue
        others = len(absent) - 1
        more = f" and {others} more file{'s' * (others > 1)}" if others else ""
        if known.parts[part][0].repo is None:
            where = folder_of(name, model_dir) / part
            return (
                f"model {name} is incomplete: {where / absent[0]} is missing{more}; restore it "
                "with git checkout."
            )
        return (
            f"model {name} is not here: its {part} needs {absent[0]}{more}; get it with "
            f"python -m lantern download {name} ({download_size(name, model_dir):.1f} GB)."
        )
    return None


def download_size(name: str, model_dir: Path | None = None) -> float:
    """GB of everything that is still missing."""
    return sum(
        sources[0].gigabytes
        for part, sources in entry(name).parts.items()
        if find(name, part, model_dir) is None
    )


def download(name: str, model_dir: Path | None = None) -> None:
    """Fetch the missing parts into the hub cache, or into ``model_dir`` if given; goes on where an
    earlier download stopped. Shows progress bars. ConnectionError if the hub is out of reach."""
    import httpx
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    for part, sources in entry(name).parts.items():
        available = [source for source in sources if source.repo]
        if find(name, part, model_dir) or not available:
            continue
        problems = []
        for source in available:
            folder = model_dir / name / part if model_dir else None
            try:
                for file in source.files:
                    hf_hub_download(source.repo, file, local_dir=folder)
                break
            except OSError as error:
                # A full or read-only disk is no matter of the connection.
                if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
                    raise OSError(
                        f"could not write the {part} of {name} ({error.strerror}); free "
                        f"{download_size(name, model_dir):.1f} GB, or name another folder with "
                        "--model-dir, and try again."
                    ) from None
                problems.append(f"{source.repo}: {_first_line(error)}")
            except (LocalEntryNotFoundError, HfHubHTTPError, httpx.HTTPError) as error:
                problems.append(f"{source.repo}: {_first_line(error)}")
        else:
            raise ConnectionError(
                f"could not download the {part} of {name} ({problems[0]}); check the connection "
                f"and try python -m lantern download {name} again."
            )


def _first_line(error: Exception) -> str:
    """The first line of an error's message; some errors have none but their name."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
