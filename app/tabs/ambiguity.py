"""The Ambiguity tab: how sure the target is of its next token (the paper's Figure 2)."""

from __future__ import annotations

import html
from functools import partial

import gradio as gr

from app.ambiguity_figures import curves, maps
from app.i18n import label, language_of, say, speaking
from app.inspection import answer, options_of
from app.jobs import Job
from app.page import Page, hint, refusal
from app.payload import Run, data_url, from_payload
from app.studio import Studio
from app.summary import TITLES
from lantern.ambiguity import PAPER, Ambiguity, ambiguity
from lantern.config import ALL_MODES
from lantern.pipeline import Pipeline
from lantern.trace import DecodeTrace
from lantern.tuning import Rates

LEVELS = 4


def build(studio: Studio, page: Page) -> None:
    """A button, then what it found."""
    page.text(gr.Markdown(say("text.ambiguity"), elem_classes="lt-prose"), "text.ambiguity")
    with gr.Row(equal_height=True, elem_classes="lt-buttons"):
        measure = gr.Button(label("ambiguity.run"), variant="primary", elem_id="lt-ambiguity-run")
        mode = gr.Dropdown(
            [(TITLES[m], m) for m in ALL_MODES], value="ar", label=label("ambiguity.lane"),
            elem_id="lt-ambiguity-lane", filterable=False,
        )  # fmt: skip
    found = gr.HTML(
        hint(say("text.ambiguity.hint")), elem_id="lt-ambiguity", elem_classes="lt-panel"
    )
    page.text(found, "text.ambiguity.hint", hint)

    async def look(run_on_show, chosen: str, request: gr.Request):
        with speaking(language_of(request)):
            title = say("ambiguity.title")
            try:
                run = from_payload(run_on_show)
            except ValueError:
                raise refusal(title, say("ambiguity.none")) from None
            chosen = chosen if chosen in run.traces else next(iter(run.traces))
            owner = f"ambiguity {request.session_hash}"
            result = await answer(studio, run.traces[chosen].model, owner, partial(_work, run=run))
            if "error" in result:
                raise refusal(title, result["error"])
            return page_of(run, result, chosen)

    gr.on(
        [measure.click, mode.input],
        look,
        [page.runs, mode],
        found,
        show_progress="minimal",
        api_visibility="private",
        concurrency_id="ambiguity",
        concurrency_limit=32,
        preprocess=True,
    )


def _work(pipeline: Pipeline, job: Job, run: Run) -> None:
    measured = {}
    for mode, trace in run.traces.items():
        job.check()
        options = pipeline.options(**options_of(trace.options))
        measured[mode] = ambiguity(pipeline, trace.prompt, trace.tokens, options)
    job.update(result=measured)


def page_of(run: Run, measured: dict[str, Ambiguity], chosen: str) -> str:
    """HTML: curves and maps of the chosen lane, a table of all lanes and the paper's models."""
    trace, found = run.traces[chosen], measured[chosen]
    source = data_url(run.images[chosen])
    title = html.escape(say("ambiguity.head", lane=TITLES[chosen], prompt=trace.prompt))
    return (
        f'<div class="lt-ambiguity"><div><h3>{title}</h3>{curves(found)}'
        f'<div class="lt-maps"><img src="{source}" alt="{say("ambiguity.alt")}">'
        f"{maps(found, trace.grid)}</div></div>"
        f"<div>{_table(run, measured)}{_drafter(run)}</div></div>"
    )


def _table(run: Run, measured: dict[str, Ambiguity]) -> str:
    rows = [
        (f"{run.traces[mode].model}, {TITLES[mode]}", float(a.top1.mean()), float(a.top10.mean()),
         f"{float(a.entropy.mean()):.2f}")
        for mode, a in measured.items()
    ]  # fmt: skip
    rows += [
        (say("ambiguity.paper", name=name), top1, top10, "–")
        for name, (top1, top10) in PAPER.items()
    ]
    body = "".join(
        f"<tr><th scope=row>{html.escape(name)}</th><td>{top1:.3f}</td><td>{top10:.3f}</td>"
        f"<td>{entropy}</td></tr>"
        for name, top1, top10, entropy in rows
    )
    heads = "".join(
        f"<th scope=col>{say('ambiguity.' + name)}</th>"
        for name in ("model", "top1", "top10", "entropy")
    )
    return (
        f"<h3>{say('ambiguity.mean')}</h3><table><thead><tr>{heads}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def level_rates(trace: DecodeTrace) -> list[tuple[float, float]]:
    """By depth of the draft tree, as long as it was tried: how often the drafter's first child, and
    how often any child of an accepted node, was accepted."""
    rates = Rates()
    for event in trace.events:
        rates.add(event)
    levels = []
    for depth in range(1, LEVELS + 1):
        tries = rates.tries.get((depth, 0), 0)
        if not tries:
            break
        hits = [n for (level, _), n in rates.hits.items() if level == depth]
        levels.append((rates.hits.get((depth, 0), 0) / tries, sum(hits) / tries))
    return levels


def _drafter(run: Run) -> str:
    rows = ""
    for mode, trace in run.traces.items():
        levels = level_rates(trace)
        if not levels:
            continue
        cells = "".join(f"<td>{100 * one:.0f} / {100 * some:.0f} %</td>" for one, some in levels)
        cells += "<td>–</td>" * (LEVELS - len(levels))
        rows += f"<tr><th scope=row>{TITLES[mode]}</th>{cells}</tr>"
    if not rows:
        return ""
    heads = [say("ambiguity.mode")]
    heads += [say("ambiguity.level", depth=depth) for depth in range(1, LEVELS + 1)]
    return (
        f"<h3>{say('ambiguity.drafter')}</h3><table><thead><tr>"
        + "".join(f"<th scope=col>{head}</th>" for head in heads)
        + f"</tr></thead><tbody>{rows}</tbody></table><p>{say('ambiguity.about')}</p>"
    )
