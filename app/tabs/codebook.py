"""The Codebook tab: near codes as patches, and random replacement decoding (the paper's Figure 3):
the premise of LANTERN, to be tried by hand."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import gradio as gr
import numpy as np
from gradio.utils import get_upload_folder, is_in_or_equal
from PIL import Image, ImageOps

from app.codebook_figures import codebook as figure
from app.i18n import label, language_of, say, speaking
from app.inspection import answer
from app.jobs import Job
from app.page import Page, hint, refusal
from app.params import Bound, outside
from app.payload import data_url, from_payload
from app.studio import Studio
from app.summary import TITLES
from lantern import codebook
from lantern.config import ALL_MODES, MAX_K, MAX_SEED
from lantern.pipeline import Pipeline

SHOWN = 24
UPLOAD = "upload"
MEGAPIXELS = 50
BOUNDS = {
    "share": Bound(0, 1),
    "k": Bound(1, MAX_K, whole=True),
    "seed": Bound(0, MAX_SEED, whole=True),
}


def build(studio: Studio, page: Page) -> None:
    """Codes on the left, replacement on the right."""
    page.text(gr.Markdown(say("text.codebook"), elem_classes="lt-prose"), "text.codebook")
    with gr.Row(elem_classes="lt-codebook"):
        with gr.Column(min_width=340):
            _neighbours(studio, page)
        with gr.Column(min_width=340):
            _replacement(studio, page)


def _neighbours(studio: Studio, page: Page) -> None:
    with gr.Row(equal_height=True, elem_classes="lt-buttons"):
        code = gr.Number(
            0, label=label("code"), precision=0, minimum=0, elem_id="lt-code", min_width=120
        )
        look = gr.Button(
            label("code.show"), variant="primary", elem_id="lt-code-show", min_width=90
        )
        dice = gr.Button(label("code.random"), elem_id="lt-code-random", min_width=90)
    found = gr.HTML(
        hint(say("text.codebook.hint")), elem_id="lt-neighbours", elem_classes="lt-panel"
    )
    page.text(found, "text.codebook.hint", hint)

    async def show(model: str, code, request: gr.Request):
        whole = int(code) if isinstance(code, float) and code.is_integer() else code
        return await _ask(studio, model, request, partial(neighbours_page, code=whole))

    gr.on(
        [look.click, code.submit], show, [page.inputs["model"], code], found,
        show_progress="minimal", api_visibility="private", concurrency_limit=32, preprocess=False,
    )  # fmt: skip

    def pick(model: str):
        return random.SystemRandom().randrange(studio.codes(model))

    dice.click(pick, page.inputs["model"], code, queue=False, api_visibility="private").then(
        show, [page.inputs["model"], code], found, show_progress="minimal",
        api_visibility="private", preprocess=False,
    )  # fmt: skip


def _replacement(studio: Studio, page: Page) -> None:
    with gr.Row():
        source = gr.Dropdown(
            _sources(), value="ar", label=label("replace.source"), filterable=False,
            elem_id="lt-replace-source", min_width=240,
        )  # fmt: skip
        seed = gr.Number(
            0, label=label("seed"), precision=0, minimum=0, maximum=MAX_SEED, min_width=90
        )
    page.text(source, "codebook.mine", lambda _: gr.Dropdown(_sources()))
    picture = gr.Image(
        type="pil", label=label("replace.upload"), visible=False, height=160,
        elem_id="lt-replace-upload", sources=["upload", "clipboard"],
    )  # fmt: skip
    share = gr.Slider(
        0, 1, value=0.5, step=0.05, label=label("replace.share"), buttons=[],
        elem_id="lt-replace-share",
    )  # fmt: skip
    k = gr.Slider(
        1, MAX_K, value=100, step=1, label=label("replace.k"), buttons=[],
        elem_id="lt-replace-k",
    )  # fmt: skip
    start = gr.Button(label("replace"), variant="primary", elem_id="lt-replace")
    found = gr.HTML(hint(say("text.replaced.hint")), elem_id="lt-replaced", elem_classes="lt-panel")
    page.text(found, "text.replaced.hint", hint)
    source.input(
        lambda value: gr.Image(visible=value == UPLOAD), source, picture, queue=False,
        api_visibility="private",
    )  # fmt: skip

    async def replace(model, run_on_show, source, picture, share, k, seed, request: gr.Request):
        given = {"share": share, "k": k, "seed": seed}
        tokens = None
        try:
            with speaking(language_of(request)):
                for name, bound in BOUNDS.items():
                    message = outside(name, given[name], bound)
                    if message:
                        raise ValueError(message)
                if source == UPLOAD:
                    picture = opened(picture)
                else:
                    model, tokens = _drawn(run_on_show, source)
        except ValueError as error:
            raise _refusal(request, str(error)) from None
        make = partial(_replaced, tokens=tokens, picture=picture, **given)
        return await _ask(studio, model, request, make)

    gr.on(
        [start.click, share.release, k.release], replace,
        [page.inputs["model"], page.runs, source, picture, share, k, seed], found,
        show_progress="minimal", api_visibility="private", concurrency_limit=32,
        # Raw values: Gradio's own preprocessing answers wrong ones with paths and Python errors.
        preprocess=False,
    )  # fmt: skip


def _drawn(run_on_show, lane: str) -> tuple[str, list[int]]:
    """Model and tokens of a lane of the run on show; ValueError if there is none."""
    try:
        trace = from_payload(run_on_show).traces[lane]
    except (ValueError, KeyError, TypeError):
        raise ValueError(say("codebook.norun")) from None
    return trace.model, trace.tokens


def opened(upload) -> Image.Image:
    """The picture behind an upload, ``{"path": ..}`` as the browser sends it; ValueError in words.
    Only what was uploaded is opened, whatever path is named."""
    path = upload.get("path") if isinstance(upload, dict) else None
    if not path:
        raise ValueError(say("codebook.nopicture"))
    try:
        if not is_in_or_equal(path, get_upload_folder()):
            raise ValueError("not an upload")
        with Image.open(path) as image:
            if image.width * image.height > 1e6 * MEGAPIXELS:
                raise ValueError("too large")
            return ImageOps.exif_transpose(image.convert("RGB"))
    except (OSError, ValueError, TypeError, SyntaxError, Image.DecompressionBombError):
        raise ValueError(say("codebook.unreadable", most=MEGAPIXELS)) from None


async def _ask(studio: Studio, model: str, request: gr.Request, make) -> str:
    """HTML that ``make(pipeline)`` returns on the worker; its ValueErrors reach the visitor."""
    with speaking(language_of(request)):
        owner = f"codebook {request.session_hash}"
        result = await answer(studio, model, owner, partial(_show, make=make))
        if "error" in result:
            raise refusal(say("codebook.title"), result["error"])
    return result["html"]


def _show(pipeline: Pipeline, job: Job, make: Callable[[Pipeline], str]) -> None:
    job.update(result={"html": make(pipeline)})


def _replaced(pipeline: Pipeline, tokens, picture, share, k, seed) -> str:
    tokens = tokens or codebook.encode(pipeline, picture)
    return replaced_page(pipeline, tokens, float(share), int(k), int(seed))


def _refusal(request: gr.Request, text: str) -> gr.Error:
    with speaking(language_of(request)):
        return refusal(say("codebook.title"), text)


def _sources() -> list[tuple[str, str]]:
    """Pictures to replace tokens of: (what it is called, value)."""
    lanes = [(say("codebook.onshow", lane=TITLES[mode]), mode) for mode in ALL_MODES]
    return [*lanes, (say("codebook.mine"), UPLOAD)]


def neighbours_page(pipeline: Pipeline, code: int) -> str:
    """HTML: a code, its nearest codes as patches, where they lie."""
    codes = pipeline.vq.quantize.codes
    far = codebook.distances(codes, code).cpu()
    near = [code, *pipeline.decoder.neighbours[code, :SHOWN].tolist()]
    pictures = codebook.patches(pipeline, near)
    tiles = "".join(
        f'<figure><img src="{data_url(picture)}" alt=""><figcaption>{name}<br>{far[name]:.2f}'
        "</figcaption></figure>"
        for name, picture in zip(near, pictures, strict=True)
    )
    svg = figure(codebook.plane(codes).cpu().numpy(), far.numpy(), code, near[1:])
    return (
        f'<div class="lt-tiles" role="group" '
        f'aria-label="{say("codebook.group", code=code, count=SHOWN)}">{tiles}</div>{svg}'
    )


def replaced_page(pipeline: Pipeline, tokens: list[int], share: float, k: int, seed: int) -> str:
    """HTML: the image before and after, and the difference."""
    changed = codebook.replace_tokens(tokens, pipeline.decoder.neighbours, share, k, seed)
    before, after = pipeline.image(tokens), pipeline.image(changed)
    apart = np.abs(np.asarray(after, np.int16) - np.asarray(before, np.int16)).mean(2)
    shade = Image.fromarray(np.clip(255 - 2 * apart, 0, 255).astype(np.uint8)).convert("RGB")
    count = sum(a != b for a, b in zip(tokens, changed, strict=True))
    titles = [say("codebook." + name) for name in ("before", "after", "difference")]
    tiles = "".join(
        f'<figure><img src="{data_url(image)}" alt="{name}"><figcaption>{name}</figcaption>'
        "</figure>"
        for name, image in zip(titles, (before, after, shade), strict=True)
    )
    text = say(
        "codebook.count", count=count, total=len(tokens), k=k,
        percent=f"{100 * apart.mean() / 255:.1f}",
    )  # fmt: skip
    return f'<div class="lt-triple">{tiles}</div><p class="lt-hint">{text}</p>'
