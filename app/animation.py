"""A run as an animated picture for slides: every lane fills in at its own speed on one clock."""

from __future__ import annotations

import base64
import io
import itertools
import threading

from PIL import Image, ImageDraw, ImageFont

from app.figures import PRINT
from app.params import sentence_case
from app.payload import Run, from_payload
from app.summary import TITLES
from lantern.trace import DecodeTrace

FORMATS = {"webp": "image/webp", "gif": "image/gif"}
FRAMES = 60
FRAME_MS = 80
HOLD_MS = 2500  # the last frame stays
WIDTH = 1280  # of the whole picture, all lanes together
GAP, TOP, FOOT = 16, 54, 58
PAPER, INK, SOFT, BLANK = (250, 249, 246), (28, 25, 23), (87, 83, 78), (128, 128, 128)
_one_at_a_time = threading.Lock()


def animate(question: dict) -> dict:
    """Server function: ``{"run": payload, "format": "webp" | "gif"}`` -> ``{"url": data URL}`` or
    ``{"error": sentence}``."""
    try:
        name = question.get("format") if isinstance(question, dict) else None
        if name not in FORMATS:
            raise ValueError(f"choose a format: {', '.join(FORMATS)}.")
        run = from_payload(question.get("run"))
        with _one_at_a_time:
            content = render(run, name)
    except ValueError as error:
        return {"error": sentence_case(str(error))}
    return {"url": f"data:{FORMATS[name]};base64,{base64.b64encode(content).decode()}"}


def render(run: Run, name: str, width: int = WIDTH) -> bytes:
    """The animation as a file of format ``name``; real time if the slowest lane takes about five
    seconds, else faster or slower, which the picture says."""
    count = len(run.traces)
    side = (width - GAP * (count + 1)) // count
    clocks = {mode: _finish_times(trace) for mode, trace in run.traces.items()}
    end = max(times[-1] for times, _ in clocks.values())
    speed = end / (FRAMES * FRAME_MS / 1000)
    pictures = {m: i.resize((side, side), Image.Resampling.LANCZOS) for m, i in run.images.items()}
    frames = []
    for number in range(FRAMES + 1):
        time = end * number / FRAMES
        frame = Image.new("RGB", (width, TOP + side + FOOT), PAPER)
        for place, (mode, trace) in enumerate(run.traces.items()):
            left = GAP + place * (side + GAP)
            _draw_lane(frame, left, side, mode, trace, pictures[mode], clocks[mode], time)
        _footer(frame, time, speed)
        frames.append(frame)
    durations = [FRAME_MS] * FRAMES + [HOLD_MS]
    out = io.BytesIO()
    if name == "gif":
        # Half-way through, both the blank and most of the pictures are there.
        palette = frames[FRAMES // 2].quantize(255, method=Image.Quantize.MEDIANCUT)
        frames = [f.quantize(palette=palette, dither=Image.Dither.NONE) for f in frames]
        options = {"optimize": False, "disposal": 1}
    else:
        options = {"quality": 70, "method": 2}
    frames[0].save(
        out, name.upper(), save_all=True, append_images=frames[1:], duration=durations, loop=0,
        **options,
    )  # fmt: skip
    return out.getvalue()


def _finish_times(trace: DecodeTrace) -> tuple[list[float], list[int]]:
    """When each pass was over, in seconds, and how many tokens there were then."""
    times = itertools.accumulate(sum(event.seconds.values()) for event in trace.events)
    return list(times), list(itertools.accumulate(e.accepted_length for e in trace.events))


def _draw_lane(frame, left, side, mode, trace, picture, clock, time):
    times, counts = clock
    done = sum(t <= time for t in times)
    count = counts[done - 1] if done else 0
    row, column = divmod(count, trace.grid)
    cell = side / trace.grid
    draw = ImageDraw.Draw(frame)
    draw.rectangle([left, TOP, left + side - 1, TOP + side - 1], fill=BLANK)
    for box in (
        (0, 0, side, int(row * cell)),
        (0, int(row * cell), int(column * cell), int((row + 1) * cell)),
    ):
        if box[2] > box[0] and box[3] > box[1]:
            frame.paste(picture.crop(box), (left + box[0], TOP + box[1]))
    draw.rectangle([left, TOP - 6, left + side - 1, TOP - 3], fill=PRINT[mode])
    size = 24 if side > 250 else 19
    draw.text((left, 12), TITLES[mode], fill=PRINT[mode], font=ImageFont.load_default(size))
    words = f"{done} passes, {count} tokens"
    if done == len(times):
        words = f"{done} passes, {times[-1]:.2f} s"
    draw.text(
        (left, TOP + side + 6),
        words,
        fill=INK,
        font=ImageFont.load_default(18 if side > 250 else 15),
    )


def _footer(frame, time, speed):
    draw = ImageDraw.Draw(frame)
    pace = f"{time:.2f} s" + (
        ""
        if 0.8 < speed < 1.25
        else f", shown {1 / speed:.1f}x slower"
        if speed < 1
        else f", shown {speed:.1f}x faster"
    )
    font = ImageFont.load_default(15)
    draw.text((frame.width - GAP, frame.height - 8), pace, fill=SOFT, font=font, anchor="rs")
