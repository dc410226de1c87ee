"""What the token map and the inspector ask the model: server functions of their components.

They get plain JSON from the browser, trusted as little as any input, and answer with JSON; faults
are answers too: ``{"error": sentence}``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from app.i18n import say
from app.jobs import DONE, Job, QueueFull
from app.params import problem, sentence_case
from app.payload import data_url
from app.studio import Studio
from lantern.ambiguity import ambiguity
from lantern.inspect import inspect_token
from lantern.pipeline import Pipeline

MAX_SECONDS = 60.0  # that a question may wait for its turn and its answer
MAX_TOKENS = 64 * 64


def server_functions(studio: Studio) -> tuple[Callable, Callable]:
    """``measure`` (entropy along an image) and ``look`` (one token)."""

    async def measure(question: dict) -> dict:
        try:
            model, prompt, tokens = _image(question)
        except ValueError as error:
            return {"error": sentence_case(str(error))}
        work = partial(_measure, question=question, prompt=prompt, tokens=tokens)
        return await answer(studio, model, _owner(question), work)

    async def look(question: dict) -> dict:
        try:
            model, prompt, tokens = _image(question)
            (position,), refused = _whole([question.get("position")]), _whole(question["refused"])
        except (ValueError, KeyError, TypeError) as error:
            return {"error": sentence_case(str(error))}
        work = partial(
            _look, question=question, prompt=prompt, tokens=tokens, position=position,
            refused=refused,
        )  # fmt: skip
        return await answer(studio, model, _owner(question), work)

    return measure, look


def _measure(pipeline: Pipeline, job: Job, question: dict, prompt: str, tokens: list[int]) -> None:
    options = pipeline.options(**_options(question))
    found = ambiguity(pipeline, prompt, tokens, options)
    job.update(result={"entropy": [round(v, 4) for v in found.entropy.tolist()]})


def _look(
    pipeline: Pipeline,
    job: Job,
    question: dict,
    prompt: str,
    tokens: list[int],
    position: int,
    refused: list[int],
) -> None:
    options = pipeline.options(**_options(question))
    found = inspect_token(pipeline, prompt, options, tokens, position, refused)
    values = asdict(found) | {"relaxed": found.members > 0 or options.relaxed}
    values["pictures"] = {str(code): data_url(image) for code, image in found.pictures.items()}
    values["budget"] = round(found.budget, 4)
    job.update(result=values)


async def answer(studio: Studio, model: str, owner: str, work: Callable) -> dict:
    """Do ``work`` when its turn comes and return the result it published, or ``{"error": ..}``.
    Holds no server thread while it waits."""
    try:
        job = studio.submit_work(model, owner, work)
    except QueueFull as error:
        return {"error": str(error)}
    end = time.monotonic() + MAX_SECONDS
    try:
        while not job.over and time.monotonic() < end:
            await asyncio.sleep(0.05)
    finally:
        job.cancel.set()
    if job.state == DONE:
        return job.result
    return {"error": job.message or say("run.busy")}


def _owner(question: dict) -> str:
    """Questions of a page count apart from its runs: a click must not be refused because runs of
    the same visitor wait. Pages name themselves at random: behind a proxy all addresses are one."""
    return f"look {str(question.get('asker'))[:40]}"


def _image(question: dict) -> tuple[str, str, list[int]]:
    """Model, prompt and tokens of the image asked about; ValueError in words."""
    if not isinstance(question, dict):
        raise ValueError("the question is not one of this page.")
    for name in ("model", "prompt"):
        message = problem(name, question.get(name))
        if message:
            raise ValueError(message)
    tokens = question.get("tokens")
    if not isinstance(tokens, list) or not 0 < len(tokens) <= MAX_TOKENS:
        raise ValueError("the question is not about an image of this page.")
    return question["model"], question["prompt"], _whole(tokens)


def _whole(values) -> list[int]:
    if not isinstance(values, list) or len(values) > MAX_TOKENS:
        raise ValueError("the question is not about an image of this page.")
    if any(isinstance(v, bool) or not isinstance(v, int) for v in values):
        raise ValueError("tokens and positions are whole numbers.")
    return values


OPTIONS = (
    "mode", "seed", "k", "delta", "temperature", "cfg", "top_k", "top_p", "rule", "factor", "pick",
)  # fmt: skip


def _options(question: dict) -> dict:
    """The decode options that matter to a distribution; DecodeOptions checks them."""
    given = question.get("options")
    if not isinstance(given, dict):
        raise ValueError("the question does not say how the image was drawn.")
    return options_of(given)


def options_of(given: dict) -> dict:
    """Those of a trace's options."""
    return {name: given[name] for name in OPTIONS if name in given}
