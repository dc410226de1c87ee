"""The Codebook tab: near codes as patches, and random replacement decoding (the paper's Figure 3):
the premise of LANTERN, to be tried by hand."""

from __future__ import annotations

import random

import gradio as gr
import numpy as np
from PIL import Image

from app.codebook_figures import codebook as figure
from app.inspection import answer
from app.page import Page, refusal
from app.payload import data_url, from_payload
from app.studio import Studio
from app.summary import TITLES
from lantern import codebook
from lantern.config import ALL_MODES, MAX_K, MAX_SEED
from lantern.pipeline import Pipeline

ABOUT = (
    "A token stands for one code of the tokenizer's codebook. LANTERN lets a near code stand in "
    "for the one that was drawn; here is what near ones look like, and what an image looks like "
    "once many of its tokens have been replaced by near ones at random."
)
SHOWN = 24
UPLOAD = "upload"
NEIGHBOURS_HINT = '<div class="lt-hint">Choose a code, or take one at random.</div>'
REPLACED_HINT = '<div class="lt-hint">Press Replace: the image before, after, and where.</div>'


def build(studio: Studio, page: Page) -> None:
    """Codes on the left, replacement on the right."""
    gr.Markdown(ABOUT, elem_classes="lt-prose")
    with gr.Row(elem_classes="lt-codebook"):
        with gr.Column(min_width=340):
            _neighbours(studio, page)
        with gr.Column(min_width=340):
            _replacement(studio, page)


def _neighbours(studio: Studio, page: Page) -> None:
    with gr.Row(elem_classes="lt-buttons"):
        code = gr.Number(0, label="Code", precision=0, minimum=0, elem_id="lt-code", min_width=120)
        look = gr.Button("Show", variant="primary", elem_id="lt-code-show", min_width=90)
        dice = gr.Button("Random code", elem_id="lt-code-random", min_width=90)
    found = gr.HTML(NEIGHBOURS_HINT, elem_id="lt-neighbours", elem_classes="lt-panel")

    async def show(model: str, code, request: gr.Request):
        whole = int(code) if isinstance(code, float) and code.is_integer() else code
        return await _ask(studio, model, request, lambda pipeline: neighbours_page(pipeline, whole))

    gr.on(
        [look.click, code.submit], show, [page.inputs["model"], code], found,
        show_progress="minimal", api_visibility="private", concurrency_limit=32, preprocess=False,
    )  # fmt: skip

    def pick(model: str):
        return random.SystemRandom().randrange(studio.vocabulary.get(model, 4096))

    dice.click(pick, page.inputs["model"], code, queue=False, api_visibility="private").then(
        show, [page.inputs["model"], code], found, show_progress="minimal",
        api_visibility="private", preprocess=False,
    )  # fmt: skip


def _replacement(studio: Studio, page: Page) -> None:
    with gr.Row():
        source = gr.Dropdown(
            [*((f"the run on show, {TITLES[m]}", m) for m in ALL_MODES), ("my picture", UPLOAD)],
            value="ar", label="Image", elem_id="lt-replace-source", filterable=False,
        )  # fmt: skip
        seed = gr.Number(0, label="Seed", precision=0, minimum=0, maximum=MAX_SEED, min_width=90)
    picture = gr.Image(
        type="pil", label="My picture", visible=False, height=160, elem_id="lt-replace-upload",
        sources=["upload", "clipboard"],
    )  # fmt: skip
    share = gr.Slider(
        0, 1, value=0.5, step=0.05, label="share of tokens replaced", buttons=[],
        elem_id="lt-replace-share",
    )  # fmt: skip
    k = gr.Slider(
        1, MAX_K, value=100, step=1, label="by one of the k nearest", buttons=[],
        elem_id="lt-replace-k",
    )  # fmt: skip
    start = gr.Button("Replace", variant="primary", elem_id="lt-replace")
    found = gr.HTML(REPLACED_HINT, elem_id="lt-replaced", elem_classes="lt-panel")
    source.input(
        lambda value: gr.Image(visible=value == UPLOAD), source, picture, queue=False,
        api_visibility="private",
    )  # fmt: skip

    async def replace(model, run_on_show, source, picture, share, k, seed, request: gr.Request):
        tokens = None
        if source != UPLOAD:
            try:
                trace = from_payload(run_on_show).traces[source]
            except (ValueError, KeyError):
                text = "the Compare tab shows no such image yet; run it first."
                raise refusal("Codebook", text) from None
            model, tokens = trace.model, trace.tokens
        elif picture is None:
            raise refusal("Codebook", "choose a picture first: drop one on the box, or paste it.")
        return await _ask(
            studio, model, request,
            lambda pipeline: replaced_page(
                pipeline, tokens or codebook.encode(pipeline, picture), float(share), int(k),
                int(seed or 0),
            ),
        )  # fmt: skip

    gr.on(
        [start.click, share.release, k.release], replace,
        [page.inputs["model"], page.runs, source, picture, share, k, seed], found,
        show_progress="minimal", api_visibility="private", concurrency_limit=32,
    )  # fmt: skip


async def _ask(studio: Studio, model: str, request: gr.Request, make) -> str:
    """HTML that ``make(pipeline)`` returns on the worker; its ValueErrors reach the visitor."""

    def work(pipeline, job):
        job.update(result={"html": make(pipeline)})

    result = await answer(studio, model, f"codebook {request.session_hash}", work)
    if "error" in result:
        raise refusal("Codebook", result["error"])
    return result["html"]


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
        f'<div class="lt-tiles" role="group" aria-label="Code {code} and its {SHOWN} nearest '
        f'codes, with distances">{tiles}</div>{svg}'
    )


def replaced_page(pipeline: Pipeline, tokens: list[int], share: float, k: int, seed: int) -> str:
    """HTML: the image before and after, and the difference."""
    changed = codebook.replace_tokens(tokens, pipeline.decoder.neighbours, share, k, seed)
    before, after = pipeline.image(tokens), pipeline.image(changed)
    apart = np.abs(np.asarray(after, np.int16) - np.asarray(before, np.int16)).mean(2)
    shade = Image.fromarray(np.clip(255 - 2 * apart, 0, 255).astype(np.uint8)).convert("RGB")
    count = sum(a != b for a, b in zip(tokens, changed, strict=True))
    tiles = "".join(
        f'<figure><img src="{data_url(image)}" alt="{name}"><figcaption>{name}</figcaption>'
        "</figure>"
        for name, image in (("before", before), ("after", after), ("difference", shade))
    )
    return (
        f'<div class="lt-triple">{tiles}</div><p class="lt-hint">{count} of {len(tokens)} tokens '
        f"replaced by one of their {k} nearest codes; colours differ by "
        f"{100 * apart.mean() / 255:.1f} % on average.</p>"
    )
