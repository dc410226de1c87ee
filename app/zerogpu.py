"""ZeroGPU Spaces: a GPU is lent to one call at a time, in a process forked for it.

The server's own process never touches a GPU. ``borrowed`` wraps what the studio does on the device:
the job travels there as an ``Order``, is performed on the fork's copy of the model, and comes back
as ``Snapshot``s that the waiting job takes over, so that handlers notice no difference. All that
travels is pickled. Elsewhere this module does nothing.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import gradio as gr

from app.i18n import language, say, speaking
from app.jobs import FAILED, STOPPED, Job, Lane
from app.params import RunParams
from app.studio import MAX_SECONDS, Studio
from lantern.pipeline import Pipeline
from lantern.runtime import set_threads

# Of the fork's start and a model's first steps, and of one layer for one image token; generous:
# a visitor's quota is only charged for what was used, but a call that overruns is ended.
START_SECONDS = 10.0
LAYER_SECONDS = 0.001
# How long Stop may take to reach the fork: it looks after every value that it yields.
HEARTBEAT = 0.2


def active() -> bool:
    """Whether this process runs on a ZeroGPU Space."""
    return os.environ.get("SPACES_ZERO_GPU", "").lower() in ("1", "t", "true")


@dataclass(frozen=True)
class Order:
    """A job as it travels to the fork; ``layers`` is how many it may compute, one token each."""

    model: str
    params: RunParams | None
    work: Callable | None
    language: str
    layers: int


@dataclass(frozen=True)
class Snapshot:
    """A job's state as it travels back."""

    state: str
    message: str
    lanes: dict[str, Lane]
    result: object


def _snapshot(job: Job) -> Snapshot:
    return Snapshot(job.state, job.message, dict(job.lanes), job.result)


def seconds_needed(order: Order) -> int:
    """What to ask for: checked against the visitor's quota before the call."""
    return math.ceil(min(MAX_SECONDS, START_SECONDS + LAYER_SECONDS * order.layers))


def borrowed(perform: Callable[[Job], None], layers: Callable[[Job], int]) -> Callable[[Job], None]:
    """``perform`` on a borrowed GPU; ``layers`` estimates what a job computes. The result ends
    the job in any case: a refused loan is a FAILED one."""
    import spaces

    @spaces.GPU(duration=seconds_needed)
    def lent(order: Order) -> Iterator[Snapshot | None]:
        with speaking(order.language):
            job = Job(order.model, "", order.params, order.work)
        thread = threading.Thread(target=job.context.run, args=(perform, job), daemon=True)
        thread.start()
        seen = -1
        try:
            while thread.is_alive():
                version = job.wait(seen, HEARTBEAT)
                yield _snapshot(job) if version > seen else None
                seen = version
            yield _snapshot(job)
        finally:
            job.cancel.set()
            thread.join()

    def perform_elsewhere(job: Job) -> None:
        order = Order(job.model, job.params, job.work, language.get(), layers(job))
        snapshots = lent(order)
        try:
            for snapshot in snapshots:
                if snapshot is not None:
                    finished = {mode: lane for mode, lane in job.lanes.items() if lane.finished}
                    job.update(**vars(snapshot) | {"lanes": snapshot.lanes | finished})
                if job.cancel.is_set() and not job.over:
                    job.update(state=STOPPED)
                    return
        except Exception as error:
            reason = refusal(error)
            if reason is None:
                raise
            job.update(state=FAILED, message=say("run.no_gpu", reason=reason))
        finally:
            snapshots.close()

    return perform_elsewhere


def studio(model: str) -> Studio:
    """A studio that borrows its GPU. One CPU thread, since OpenMP's do not survive a fork; steps
    are not captured as CUDA graphs, which every new fork would have to do again."""
    set_threads(1)
    return Studio(model, partial(Pipeline.load, graphs=False), borrowed)


def refusal(error: Exception) -> str | None:
    """What the Space says if it lends no GPU: used up, none free. None for any other error."""
    title = error.title if isinstance(error, gr.Error) else ""
    return str(error.message).strip().rstrip(".") if title.startswith("ZeroGPU") else None
