"""Studio: owns the pipeline and the one thread that runs it.

Runs of all visitors go through one first-in-first-out line, so no two ever share the device.
A handler submits a job, then reads snapshots of it; whatever happens to the handler (Stop, a
closed tab, a lost connection), the worker looks at the job's cancel flag after every step.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field

from PIL.Image import Image

from app.params import RunParams
from lantern.config import MODES
from lantern.pipeline import Pipeline
from lantern.trace import DecodeTrace

log = logging.getLogger("lantern.studio")

PREVIEW_SECONDS = 0.25
MAX_WAITING = 20
MAX_SECONDS = 180.0

QUEUED, RUNNING, DONE, STOPPED, FAILED = "queued", "running", "done", "stopped", "failed"


class QueueFull(RuntimeError):
    """Too many runs are waiting."""


@dataclass(eq=False)
class Lane:
    """One mode of a run: its trace so far, its latest image, whether it is finished."""

    mode: str
    trace: DecodeTrace
    image: Image | None = None
    finished: bool = False


@dataclass(eq=False)
class Job:
    """A run of one visitor. ``version`` grows with every change a reader might want to see."""

    params: RunParams
    owner: str
    state: str = QUEUED
    message: str = ""
    lanes: dict[str, Lane] = field(default_factory=dict)
    version: int = 0
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

    @property
    def over(self) -> bool:
        return self.state in (DONE, STOPPED, FAILED)


class Studio:
    """The pipeline behind one worker thread."""

    def __init__(self, pipeline: Pipeline):
        self.pipeline = pipeline
        self._line: deque[Job] = deque()
        self._current: Job | None = None
        self._ready = threading.Condition()
        threading.Thread(target=self._work, name="lantern-studio", daemon=True).start()

    def submit(self, params: RunParams, owner: str) -> Job:
        """Put a run in line; ValueError for a prompt the model cannot take, QueueFull if the line
        is too long."""
        self.pipeline.text.check(params.prompt)
        job = Job(params, owner)
        with self._ready:
            if len(self._waiting()) >= MAX_WAITING:
                raise QueueFull(f"{MAX_WAITING} runs are waiting already; try again in a minute.")
            self._line.append(job)
            self._ready.notify()
        return job

    def ahead_of(self, job: Job) -> int:
        """How many runs will finish before this one starts."""
        with self._ready:
            waiting = self._waiting()
            if job not in waiting:
                return 0
            return waiting.index(job) + (self._current is not None)

    def _waiting(self) -> list[Job]:
        """Runs in line whose visitor still wants them; call with the lock held."""
        return [job for job in self._line if not job.cancel.is_set()]

    def stop(self, owner: str) -> bool:
        """Stop every run of one visitor: queued ones at once, the current one within a step.
        Whether there was one."""
        with self._ready:
            queued = [job for job in self._waiting() if job.owner == owner]
            current = self._current if self._current and self._current.owner == owner else None
            for job in queued:
                self._line.remove(job)
        for job in queued:
            job.cancel.set()
            job.update(state=STOPPED)
        if current:
            current.cancel.set()
        return bool(queued or current)

    def _work(self) -> None:
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._line)
                self._current = job = self._line.popleft()
            try:
                self._run(job)
            except Exception as error:
                # Whatever a run meets, the next visitor's run must start; the sentence goes to
                # the visitor, the traceback to the log.
                log.exception("run failed")
                job.update(state=FAILED, message=f"This run failed: {error}.")
            finally:
                with self._ready:
                    self._current = None

    def _run(self, job: Job) -> None:
        pipeline, params = self.pipeline, job.params
        if job.cancel.is_set():
            job.update(state=STOPPED)
            return
        began = time.monotonic()
        job.update(state=RUNNING)
        pipeline.warm_up(pipeline.options(**params.decode_changes()))
        for mode in MODES:
            options = pipeline.options(mode=mode, **params.decode_changes())
            lane = Lane(mode, pipeline.new_trace(params.prompt, options))
            job.lanes[mode] = lane
            shown = time.monotonic()
            stream = pipeline.stream(params.prompt, options, lane.trace)
            try:
                for _ in stream:
                    now = time.monotonic()
                    if now - began > MAX_SECONDS:
                        job.cancel.set()
                        job.message = f"A run may take {MAX_SECONDS:.0f} s here. "
                    if job.cancel.is_set():
                        break
                    # Between two events the decoder's clock stands still, so previews cost the
                    # visitor a moment but not the measurement.
                    if now - shown >= PREVIEW_SECONDS:
                        lane.image = pipeline.image(lane.trace.tokens)
                        shown = time.monotonic()
                        job.update()
            finally:
                stream.close()
            if not lane.trace.complete:
                lane.image = pipeline.image(lane.trace.tokens)
                job.update(state=STOPPED)
                return
            lane.image, lane.finished = pipeline.finish(lane.trace), True
            job.update()
        job.update(state=DONE)
