"""Jobs of the studio: what a visitor has asked for, how far it is, and what is said of its end."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field

from PIL.Image import Image

from app.i18n import say
from app.params import RunParams
from lantern import checkpoints
from lantern.pipeline import Pipeline
from lantern.runtime import is_out_of_memory
from lantern.trace import DecodeTrace

log = logging.getLogger("lantern.studio")

QUEUED, LOADING, MEASURING, RUNNING = "queued", "loading", "measuring", "running"
DONE, STOPPED, FAILED = "done", "stopped", "failed"


class QueueFull(RuntimeError):
    """Too many runs are waiting, of everybody or of one visitor."""


class Stopped(Exception):
    """The visitor left or stopped the job."""


@dataclass(eq=False)
class Lane:
    """One mode of a run: its trace so far, its latest image, whether it is finished."""

    mode: str
    trace: DecodeTrace
    image: Image | None = None
    finished: bool = False


@dataclass(eq=False)
class Job:
    """A run of one visitor (``params``), other work on the model (``work``), or, with neither,
    only the loading of a model. ``message`` says what is being loaded or measured, or what went
    wrong. ``replaced``: the visitor has asked for something else since. ``version`` grows with
    every change a reader might want to see; ``result`` is what ``work`` has to show so far, and
    ``images`` how many images it decodes. ``context`` is that of the request: its language, and on
    ZeroGPU whose quota pays."""

    model: str
    owner: str
    params: RunParams | None = None
    work: Callable[[Pipeline, Job], None] | None = None
    result: object = None
    state: str = QUEUED
    message: str = ""
    lanes: dict[str, Lane] = field(default_factory=dict)
    version: int = 0
    replaced: bool = False
    images: int = 1
    context: Context = field(default_factory=copy_context)
    cancel: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def update(self, **values) -> None:
        with self.changed:
            for name, value in values.items():
                setattr(self, name, value)
            self.version += 1
            self.changed.notify_all()

    def wait(self, version: int, timeout: float) -> int:
        """Block until the job is newer than ``version`` or the time is up; its version."""
        with self.changed:
            self.changed.wait_for(lambda: self.version > version, timeout)
            return self.version

    def check(self) -> None:
        """For ``work``, after every step: raises Stopped once the visitor has left or stopped."""
        if self.cancel.is_set():
            raise Stopped

    @property
    def limited(self) -> bool:
        """Whether it counts against MAX_PER_VISITOR; loading alone does not, since a later choice
        of the same visitor takes its place."""
        return self.params is not None or self.work is not None

    @property
    def over(self) -> bool:
        return self.state in (DONE, STOPPED, FAILED)


def record_of(job: Job, seconds: float) -> str:
    """One line of JSON about a job that is over. What a visitor wrote is only in it where
    LANTERN_LOG_PROMPTS asks for it."""
    kind = "run" if job.params else "work" if job.work else "load"
    record = {
        "job": kind,
        "outcome": job.state,
        "model": job.model,
        "seconds": round(seconds, 2),
        "lanes": {
            mode: {"tokens": len(lane.trace.tokens), "seconds": round(lane.trace.seconds, 2)}
            for mode, lane in job.lanes.items()
        },
    }
    if job.params and os.environ.get("LANTERN_LOG_PROMPTS"):
        record["prompt"] = job.params.prompt
    return json.dumps(record)


def load_failure(model: str, error: Exception) -> str:
    """What the visitor is told of a model that did not load."""
    log.warning("%s did not load: %s", model, error)
    reason = (str(error).strip() or type(error).__name__).split("\n")[0]
    return say("run.not_loaded", title=checkpoints.entry(model).title, reason=reason)


def failure(error: Exception) -> str:
    """What the visitor is told of an exception nobody expected."""
    if is_out_of_memory(error):
        return say("run.memory")
    reason = (str(error).strip() or type(error).__name__).split("\n")[0].rstrip(".")
    return say("run.failed", reason=reason)
