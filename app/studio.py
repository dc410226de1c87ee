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

from app.i18n import say
from app.jobs import (
    DONE,
    FAILED,
    LOADING,
    MEASURING,
    RUNNING,
    STOPPED,
    Job,
    Lane,
    QueueFull,
    Stopped,
    failure,
    load_failure,
    record_of,
)  # fmt: skip
from app.params import BOUNDS, RunParams, draws_classes, problem, sentence_case
from lantern import checkpoints
from lantern.config import DecodeOptions
from lantern.pipeline import Pipeline
from lantern.runtime import release_memory
from lantern.trace import StepEvent
from lantern.tuning import Tuner

log = logging.getLogger("lantern.studio")

PREVIEW_SECONDS = 0.25
MAX_WAITING = 20
MAX_PER_VISITOR = 3  # waiting and running together: one visitor cannot fill the line
MAX_SECONDS = 180.0

LOAD_ERRORS = (ValueError, OSError, RuntimeError, MemoryError)


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
    ``load`` stands in for ``Pipeline.load`` in tests. If it cannot be loaded ``problem`` says so
    and the first run tries again; ValueError only for a name that does not exist. ``borrow``
    (``zerogpu.borrowed``) wraps what needs the device, where that is lent to single jobs only:
    then the first model stays the only one, and steps are warmed up by each job."""

    def __init__(
        self,
        model: str = "emoji-128",
        load: Callable = Pipeline.load,
        borrow: Callable | None = None,
    ):
        self.model = model
        self.problem = ""  # why the first model did not load; the page then shows recordings
        self.vocabulary: dict[str, int] = {}  # of every model that was ever loaded
        self.pipeline: Pipeline | None = None
        self._tuner: Tuner | None = None
        self._load = load
        self._line: deque[Job] = deque()
        self._current: Job | None = None
        self._performed: Job | None = None  # in a fork another one than the current one
        self._lent = borrow is not None
        self._on_device = borrow(self.perform, self._layers) if borrow else self.perform
        self._ready = threading.Condition()
        checkpoints.entry(model)  # a name that does not exist is the caller's mistake
        try:
            self._prepare(model, lambda what: None)
        except LOAD_ERRORS as error:
            self.problem = load_failure(model, error)
        threading.Thread(target=self._work, name="lantern-studio", daemon=True).start()

    # -- for handlers -----------------------------------------------------------------------

    def submit(self, params: RunParams, owner: str) -> Job:
        """Put a run in line; ValueError for a prompt the model cannot take, as far as that is
        known before it is loaded, QueueFull if the line is too long."""
        message = self.prompt_problem(params.model, params.prompt)
        if message:
            raise ValueError(message)
        return self._enqueue(Job(params.model, owner, params))

    def submit_work(
        self, model: str, owner: str, work: Callable[[Pipeline, Job], None], images: int = 1
    ) -> Job:
        """Put other work on a model in line: ``work(pipeline, job)`` runs on the worker thread,
        calls ``job.check()`` after every step and publishes with ``job.update(result=...)``. It
        ends DONE, STOPPED after ``Stopped``, or FAILED with a ValueError's sentence. QueueFull if
        the line is too long. It decodes at most ``images`` images. On ZeroGPU it is pickled, so it
        is a function of a module or a ``functools.partial`` of one."""
        return self._enqueue(Job(model, owner, work=work, images=images))

    def load(self, model: str, owner: str) -> Job:
        """Put the loading of a model in line, so that it is warm when Run is pressed."""
        return self._enqueue(Job(model, owner))

    def prompt_problem(self, model: str, prompt: str) -> str | None:
        """One sentence if the prompt is empty or too long, else None. Word pieces are counted only
        if the model is the loaded one; the worker looks again."""
        message = problem("prompt", prompt)
        if message and draws_classes(model):
            return say("bad.class")
        pipeline = self.pipeline
        if message or pipeline is None or pipeline.name != model:
            return message
        try:
            pipeline.text.check(prompt)
        except ValueError as error:
            return sentence_case(str(error))
        return None

    def codes(self, model: str) -> int:
        """Size of the model's vocabulary; before it was ever loaded, the largest there is."""
        return self.vocabulary.get(model, int(BOUNDS["top_k"].high))

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
                raise QueueFull(say("run.full", count=MAX_WAITING))
            current = self._current
            busy = current is not None and not current.cancel.is_set()
            own = [
                old for old in (*waiting, *([current] if busy else [])) if old.owner == job.owner
            ]
            if len(own) >= MAX_PER_VISITOR and job.limited:
                raise QueueFull(say("run.own", count=len(own)))
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
            job.context.run(self._do_whatever_happens, job)

    def _do_whatever_happens(self, job: Job) -> None:
        began = time.monotonic()
        try:
            self._do(job)
        except Exception as error:
            self._fail(job, error)
        finally:
            with self._ready:
                self._current = None
            log.info(record_of(job, time.monotonic() - began))

    def _fail(self, job: Job, error: Exception) -> None:
        # Whatever a run meets, the next visitor's run must start; the sentence goes to the visitor,
        # the traceback to the log.
        log.error("run failed", exc_info=error)
        job.update(state=FAILED, message=failure(error))
        if self.pipeline is not None:
            self.pipeline.forget()
        release_memory()

    def _do(self, job: Job) -> None:
        if job.cancel.is_set():
            job.update(state=STOPPED)
            return
        title = checkpoints.entry(job.model).title

        def progress(what: str) -> None:
            if job.cancel.is_set():
                raise Stopped
            part = say("run.part." + what)
            job.update(state=LOADING, message=say("run.loading", title=title, part=part))

        try:
            self._prepare(job.model, progress)
        except Stopped:
            job.update(state=STOPPED)
        except LOAD_ERRORS as error:
            job.update(state=FAILED, message=load_failure(job.model, error))
        else:
            if job.limited:
                self._on_device(job)
            else:
                job.update(state=DONE)
        if self.pipeline is None:
            release_memory()  # of what a broken-off load had read

    def _prepare(self, model: str, progress: Callable[[str], None]) -> None:
        """Make ``model`` the loaded one, warmed up; errors as in ``Pipeline.load``."""
        if self.pipeline is not None and self.pipeline.name == model:
            return
        if self._lent and model != self.model:
            raise ValueError(say("run.one_model", title=checkpoints.entry(self.model).title))
        message = checkpoints.unavailable(model)
        if message:
            raise FileNotFoundError(message)  # and the model that is loaded stays
        progress("target")
        self.pipeline = self._tuner = None
        release_memory()
        pipeline = self._load(model, progress=progress)
        if not self._lent:
            progress("first steps")
            pipeline.warm_up()
        self.vocabulary[model] = pipeline.vocab_size
        self.problem = ""
        self._tuner = Tuner(_Interruptible(pipeline, lambda: self._performed.cancel.is_set()))
        self.pipeline = pipeline

    def _layers(self, job: Job) -> int:
        """How many layers a job computes at most, one token each."""
        images = len(job.params.modes) if job.params else job.images
        config = self.pipeline.decoder.target.config
        return images * config.image_tokens * config.layers

    def perform(self, job: Job) -> None:
        """Do what the job asks of the loaded model; whatever happens, it is over afterwards."""
        self._performed = job
        try:
            if job.work is not None:
                self._do_work(job, job.work)
            else:
                self._run(job, job.params)
        except Exception as error:
            self._fail(job, error)

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

        def check() -> None:
            if time.monotonic() - began > MAX_SECONDS:
                job.cancel.set()
                job.message = say("run.limit", seconds=f"{MAX_SECONDS:.0f}")
            job.check()

        try:
            for options in lanes:
                pipeline.warm_up(options, check)
        except Stopped:
            job.update(state=STOPPED)
            return
        for options in lanes:
            lane = Lane(options.mode, pipeline.new_trace(params.prompt, options))
            lane.trace.options["auto_tree"] = params.auto
            job.lanes[lane.mode] = lane
            next_preview = time.monotonic() + PREVIEW_SECONDS
            stream = pipeline.stream(params.prompt, options, lane.trace)
            try:
                for _ in stream:
                    try:
                        check()
                    except Stopped:
                        break
                    now = time.monotonic()
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
            job.update(state=MEASURING, message=say("run.measuring"))
            lanes = [self._tuner.choose(options) for options in lanes]
        return lanes
