"""Studio: owns the loaded model and the one thread that runs it.

Runs of all visitors go through one first-in-first-out line, so no two ever share the device. A job
names its model; the worker loads it when the job's turn comes, and drops the one before it first,
so that there is never memory for two. A handler submits a job, then reads snapshots of it;
whatever happens to the handler (Stop, a closed tab, a lost connection), the worker looks at the
job's cancel flag after every step and after every part it loads.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from PIL.Image import Image

from app.params import RunParams, draws_classes, problem, sentence_case
from lantern import checkpoints
from lantern.config import DecodeOptions
from lantern.pipeline import Pipeline
from lantern.runtime import is_out_of_memory, release_memory
from lantern.trace import DecodeTrace, StepEvent
from lantern.tuning import Tuner

log = logging.getLogger("lantern.studio")

PREVIEW_SECONDS = 0.25
MAX_WAITING = 20
MAX_PER_VISITOR = 3  # waiting and running together: one visitor cannot fill the line
MAX_SECONDS = 180.0

QUEUED, LOADING, MEASURING, RUNNING = "queued", "loading", "measuring", "running"
DONE, STOPPED, FAILED = "done", "stopped", "failed"


OUT_OF_MEMORY = (
    "The device ran out of memory; choose a smaller draft tree or a smaller model and run again."
)


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
    every change a reader might want to see; ``result`` is what ``work`` has to show so far."""

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


class _Interruptible:
    """A pipeline that ends its runs with Stopped once ``stopped`` says so: the tuner measures
    through it, so that Stop works within a step there too."""

    def __init__(self, pipeline: Pipeline, stopped: Callable[[], bool]):
        self._pipeline, self._stopped = pipeline, stopped

    def __getattr__(self, name: str):
        return getattr(self._pipeline, name)

    def stream(self, *arguments) -> Iterator[StepEvent]:
        for event in self._pipeline.stream(*arguments):
            if self._stopped():
                raise Stopped
            yield event


class Studio:
    """One model at a time behind one worker thread. ``model`` is the one visitors start with;
    ``load`` stands in for ``Pipeline.load`` in tests."""

    def __init__(self, model: str = "emoji-128", load: Callable = Pipeline.load):
        self.model = model
        self.vocabulary: dict[str, int] = {}  # of every model that was ever loaded
        self.pipeline: Pipeline | None = None
        self._tuner: Tuner | None = None
        self._load = load
        self._line: deque[Job] = deque()
        self._current: Job | None = None
        self._ready = threading.Condition()
        self._prepare(model, lambda what: None)
        threading.Thread(target=self._work, name="lantern-studio", daemon=True).start()

    # -- for handlers -----------------------------------------------------------------------

    def submit(self, params: RunParams, owner: str) -> Job:
        """Put a run in line; ValueError for a prompt the model cannot take, as far as that is
        known before it is loaded, QueueFull if the line is too long."""
        message = self.prompt_problem(params.model, params.prompt)
        if message:
            raise ValueError(message)
        return self._enqueue(Job(params.model, owner, params))

    def submit_work(self, model: str, owner: str, work: Callable[[Pipeline, Job], None]) -> Job:
        """Put other work on a model in line: ``work(pipeline, job)`` runs on the worker thread,
        calls ``job.check()`` after every step and publishes with ``job.update(result=...)``. It
        ends DONE, STOPPED after ``Stopped``, or FAILED with a ValueError's sentence. QueueFull if
        the line is too long."""
        return self._enqueue(Job(model, owner, work=work))

    def load(self, model: str, owner: str) -> Job:
        """Put the loading of a model in line, so that it is warm when Run is pressed."""
        return self._enqueue(Job(model, owner))

    def prompt_problem(self, model: str, prompt: str) -> str | None:
        """One sentence if the prompt is empty or too long, else None. Word pieces are counted only
        if the model is the loaded one; the worker looks again."""
        message = problem("prompt", prompt)
        if message and draws_classes(model):
            return "Choose a class from the list, for example “macaw”."
        pipeline = self.pipeline
        if message or pipeline is None or pipeline.name != model:
            return message
        try:
            pipeline.text.check(prompt)
        except ValueError as error:
            return sentence_case(str(error))
        return None

    def ahead_of(self, job: Job) -> int:
        """How many runs will finish before this one starts."""
        with self._ready:
            waiting = self._waiting()
            if job not in waiting:
                return 0
            return waiting.index(job) + (self._current is not None)

    def loading_for(self, owner: str) -> str:
        """What is being loaded for this visitor right now; empty if nothing is."""
        current = self._current
        mine = current is not None and current.owner == owner and current.state == LOADING
        return current.message if mine else ""

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

    def _enqueue(self, job: Job) -> Job:
        with self._ready:
            replaced = [old for old in self._waiting() if self._replaces(job, old)]
            waiting = [old for old in self._waiting() if old not in replaced]
            if len(waiting) >= MAX_WAITING:
                raise QueueFull(f"{MAX_WAITING} runs are waiting already; try again in a minute.")
            current = self._current
            busy = current is not None and not current.cancel.is_set()
            own = [
                old for old in (*waiting, *([current] if busy else [])) if old.owner == job.owner
            ]
            if len(own) >= MAX_PER_VISITOR and job.limited:
                raise QueueFull(
                    f"{len(own)} of your runs are in line already; wait for one or press Stop."
                )
            for old in replaced:
                old.cancel.set()
            if current and self._replaces(job, current):
                replaced.append(current)
                # What the new job needs too goes on loading.
                if current.model != job.model:
                    current.cancel.set()
            for old in replaced:
                old.replaced = True
            self._line.append(job)
            self._ready.notify()
        return job

    @staticmethod
    def _replaces(job: Job, old: Job) -> bool:
        return not old.limited and old.owner == job.owner

    def _waiting(self) -> list[Job]:
        """Jobs in line whose visitor still wants them; call with the lock held."""
        return [job for job in self._line if not job.cancel.is_set()]

    # -- the worker -------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._line)
                self._current = job = self._line.popleft()
            try:
                self._do(job)
            except Exception as error:
                # Whatever a run meets, the next visitor's run must start; the sentence goes to
                # the visitor, the traceback to the log.
                log.exception("run failed")
                job.update(state=FAILED, message=_failure(error))
                if self.pipeline is not None:
                    self.pipeline.forget()
                release_memory()
            finally:
                with self._ready:
                    self._current = None

    def _do(self, job: Job) -> None:
        if job.cancel.is_set():
            job.update(state=STOPPED)
            return
        title = checkpoints.entry(job.model).title

        def progress(what: str) -> None:
            if job.cancel.is_set():
                raise Stopped
            job.update(state=LOADING, message=f"Loading {title}: {what} …")

        try:
            self._prepare(job.model, progress)
        except Stopped:
            job.update(state=STOPPED)
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            log.warning("%s did not load: %s", job.model, error)
            reason = (str(error).strip() or type(error).__name__).split("\n")[0]
            job.update(state=FAILED, message=f"{title} could not be loaded: {reason}")
        else:
            if job.work is not None:
                self._do_work(job, job.work)
            elif job.params is not None:
                self._run(job, job.params)
            else:
                job.update(state=DONE)
        if self.pipeline is None:
            release_memory()  # of what a broken-off load had read

    def _prepare(self, model: str, progress: Callable[[str], None]) -> None:
        """Make ``model`` the loaded one, warmed up; errors as in ``Pipeline.load``."""
        if self.pipeline is not None and self.pipeline.name == model:
            return
        message = checkpoints.unavailable(model)
        if message:
            raise FileNotFoundError(message)  # and the model that is loaded stays
        progress("target")
        self.pipeline = self._tuner = None
        release_memory()
        pipeline = self._load(model, progress=progress)
        progress("first steps")
        pipeline.warm_up()
        self.vocabulary[model] = pipeline.vocab_size
        self._tuner = Tuner(_Interruptible(pipeline, lambda: self._current.cancel.is_set()))
        self.pipeline = pipeline

    def _do_work(self, job: Job, work: Callable[[Pipeline, Job], None]) -> None:
        job.update(state=RUNNING, message="")
        try:
            work(self.pipeline, job)
        except Stopped:
            job.update(state=STOPPED)
        except ValueError as error:
            job.update(state=FAILED, message=sentence_case(str(error)))
        else:
            job.update(state=DONE)

    def _run(self, job: Job, params: RunParams) -> None:
        pipeline = self.pipeline
        try:
            pipeline.text.check(params.prompt)
        except ValueError as error:
            job.update(state=FAILED, message=sentence_case(str(error)))
            return
        try:
            lanes = self._options(job, params)
        except Stopped:
            job.update(state=STOPPED)
            return
        began = time.monotonic()
        job.update(state=RUNNING, message="")
        for options in lanes:
            pipeline.warm_up(options)
        for options in lanes:
            lane = Lane(options.mode, pipeline.new_trace(params.prompt, options))
            lane.trace.options["auto_tree"] = params.auto
            job.lanes[lane.mode] = lane
            next_preview = time.monotonic() + PREVIEW_SECONDS
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
                    # visitor a moment but not the measurement; a fifth of the time at most.
                    if now >= next_preview:
                        lane.image = pipeline.image(lane.trace.tokens)
                        job.update()
                        took = time.monotonic() - now
                        next_preview = now + took + max(PREVIEW_SECONDS, 4 * took)
            finally:
                stream.close()
            if not lane.trace.complete:
                lane.image = pipeline.image(lane.trace.tokens)
                job.update(state=STOPPED)
                return
            lane.image, lane.finished = pipeline.finish(lane.trace), True
            self._tuner.observe(lane.trace)
            job.update()
        job.update(state=DONE)

    def _options(self, job: Job, params: RunParams) -> list[DecodeOptions]:
        """What every lane decodes with, in order; with ``auto`` each has a tree of its own."""
        pipeline, changes = self.pipeline, params.decode_changes()
        lanes = [
            pipeline.options(mode=mode, **changes)
            for mode in params.modes
            if mode in pipeline.modes
        ]
        if params.auto and len(lanes) > 1:
            job.update(state=MEASURING, message="Measuring this device …")
            lanes = [self._tuner.choose(options) for options in lanes]
        return lanes


def _failure(error: Exception) -> str:
    """What the visitor is told of an exception nobody expected."""
    if is_out_of_memory(error):
        return OUT_OF_MEMORY
    reason = (str(error).strip() or type(error).__name__).split("\n")[0].rstrip(".")
    return f"This run failed: {reason}. Please run it again."
