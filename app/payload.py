"""A finished run as the page keeps it: everything that is drawn, replayed, inspected or exported
in the browser comes from this one value, and comes back in it."""

from __future__ import annotations

import base64
import binascii
import io
import json
from dataclasses import dataclass

from PIL import Image, UnidentifiedImageError

from lantern.columns import from_columns, to_columns
from lantern.config import ALL_MODES
from lantern.trace import DecodeTrace

CHUNK = "lantern"
MAX_SIDE = 1024  # pixels of a picture that comes back


@dataclass(frozen=True)
class Run:
    """Complete lanes by mode: their traces and images."""

    traces: dict[str, DecodeTrace]
    images: dict[str, Image.Image]


def to_payload(run: Run, params: dict | None = None, recorded: dict | None = None) -> dict:
    """JSON for the page. ``params``: what reproduces the run, by name. ``recorded`` says when and
    on what a recording was made; None for a live run."""
    return {
        "params": params,
        "recorded": recorded,
        "lanes": [
            to_columns(trace) | {"mode": mode, "image": data_url(run.images[mode])}
            for mode, trace in run.traces.items()
        ],
    }


def from_payload(value) -> Run:
    """The run in a payload that came back from a page, and is trusted as little as any input.
    ValueError if it is not one."""
    try:
        lanes = {lane["mode"]: lane for lane in value["lanes"]}
        if not lanes or len(lanes) < len(value["lanes"]) or not set(lanes) <= set(ALL_MODES):
            raise ValueError("unknown lanes")
        traces = {mode: from_columns(lane) for mode, lane in lanes.items()}
        images = {mode: from_data_url(lane["image"]) for mode, lane in lanes.items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"this is not a run of this page ({error}).") from None
    for mode, trace in traces.items():
        if trace.options.get("mode") != mode or not trace.complete or trace.grid > 64:
            raise ValueError("this is not a complete run of this page.")
    return Run(traces, images)


def signed(image: Image.Image, params: dict | None, mode: str) -> Image.Image:
    """A copy of the image whose PNG says how to draw it again (text chunk "lantern")."""
    copy = image.copy()
    if params is not None:
        copy.info[CHUNK] = json.dumps(params | {"mode": mode})
    return copy


def data_url(image: Image.Image) -> str:
    """The image as a PNG in a URL."""
    out = io.BytesIO()
    image.save(out, format="PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def from_data_url(text: str) -> Image.Image:
    """The PNG in a data URL, decoded anew: RGB. ValueError if it is none or too large."""
    head, _, body = text.partition(",")
    if head != "data:image/png;base64":
        raise ValueError("not a PNG")
    try:
        content = io.BytesIO(base64.b64decode(body, validate=True))
        with Image.open(content, formats=["PNG"]) as image:
            if max(image.size) > MAX_SIDE:
                raise ValueError("picture too large")
            return image.convert("RGB")
    except (binascii.Error, UnidentifiedImageError, OSError, SyntaxError) as error:
        raise ValueError(f"picture cannot be read: {error}") from None
