"""Everything of one run in a zip: pictures, traces, tables and figures for a paper."""

from __future__ import annotations

import base64
import csv
import io
import json
import zipfile

from app.figures import histogram_file
from app.params import sentence_case
from app.payload import Run, from_payload, signed
from lantern.columns import short

README = """What is in here
---------------
MODE.png                   the picture; the page restores the settings from it
MODE.json                  the trace: every token and every draft tree
parameters.json            what reproduces the run
accepted-lengths.csv       target passes by mode and accepted length
accepted-lengths.pdf/.svg  the same as a figure
tokens.csv                 one line a token and mode
"""


def bundle(question: dict) -> dict:
    """Server function: ``{"run": payload}`` -> ``{"url": data URL of a zip}`` or
    ``{"error": sentence}``."""
    try:
        payload = question.get("run") if isinstance(question, dict) else None
        run = from_payload(payload)
        params = payload.get("params")
        content = archive(run, params if isinstance(params, dict) else None)
    except ValueError as error:
        return {"error": sentence_case(str(error))}
    return {"url": "data:application/zip;base64," + base64.b64encode(content).decode()}


def archive(run: Run, params: dict | None) -> bytes:
    """The zip file's bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("README.txt", README)
        if params is not None:
            file.writestr("parameters.json", json.dumps(params, indent=2) + "\n")
        for mode, trace in run.traces.items():
            file.writestr(f"{mode}.json", trace.to_json())
            file.writestr(f"{mode}.png", png(signed(run.images[mode], params, mode)))
        file.writestr("accepted-lengths.csv", lengths_csv(run))
        file.writestr("tokens.csv", tokens_csv(run))
        drafted = {mode: trace for mode, trace in run.traces.items() if mode != "ar"}
        for kind in ("pdf", "svg") if drafted else ():
            file.writestr(f"accepted-lengths.{kind}", histogram_file(drafted, kind))
    return out.getvalue()


def png(image) -> bytes:
    """PNG bytes with the image's text chunks."""
    from PIL.PngImagePlugin import PngInfo

    chunks = PngInfo()
    for key, text in image.info.items():
        if isinstance(text, str):
            chunks.add_text(key, text)
    out = io.BytesIO()
    image.save(out, format="PNG", pnginfo=chunks)
    return out.getvalue()


def lengths_csv(run: Run) -> str:
    """mode, accepted length, passes, share of the mode's passes."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["mode", "accepted_length", "passes", "share"])
    for mode, trace in run.traces.items():
        for length, count in trace.accepted_lengths.items():
            table.writerow([mode, length, count, short(count / trace.steps)])
    return out.getvalue()


TOKEN_COLUMNS = (
    "position", "kind", "token", "choice", "p_token", "p_choice", "margin", "relaxed_mass", "rank",
    "distance", "depth",
)  # fmt: skip


def tokens_csv(run: Run) -> str:
    """One line a token."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["mode", *TOKEN_COLUMNS])
    for mode, trace in run.traces.items():
        for token in trace.token_events:
            table.writerow([mode, *(getattr(token, name) for name in TOKEN_COLUMNS)])
    return out.getvalue()
