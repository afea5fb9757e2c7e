"""Pictures made in this process: the step loop in one thread, what comes before and after it in others.

How it works. A job is prepared (prompt encoded, image encoded) by one pool of threads, joins the step loop, and when
its last step is done it is decoded and written by another pool: the loop never waits for either. A failure anywhere
ends the one order it belongs to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from takeup.serving.engines.diffusers.controls.addon import Controls
from takeup.serving.engines.diffusers.lora.addon import Loras
from takeup.serving.engines.diffusers.lora.store import LoraStore
from takeup.serving.engines.diffusers.runs import DenoisingRun
from takeup.serving.engines.diffusers.steps import StepEngine
from takeup.serving.engines.diffusers.tickets import OnStep
from takeup.serving.model import Cancelled
from takeup.serving.server.editing import Editor
from takeup.serving.server.jobs import ImageJob, JobHandle, ModelCard
from takeup.serving.server.meter import StepLoopMeter
from takeup.serving.server.pictures import encode_image


class LocalBackend:
    """A step engine with its add-ons, and the threads around it."""

    def __init__(
        self, engine: StepEngine, editor: Editor, card: ModelCard, store: LoraStore, num_threads: int = 2
    ) -> None:
        self.engine, self._editor, self._card, self._store = engine, editor, card, store
        self._meter = meter = StepLoopMeter()
        self._before = ThreadPoolExecutor(num_threads, thread_name_prefix="prepare", initializer=meter.register)
        self._after = ThreadPoolExecutor(num_threads, thread_name_prefix="finish", initializer=meter.register)
        self._stopped = threading.Event()
        self._num_steps = 0
        self._num_rows = 0
        self._num_open = 0
        self._counting = threading.Lock()
        self._loop = threading.Thread(target=engine.run, args=(self._on_iteration,), name="step-loop", daemon=True)
        self._loop.start()

    @property
    def card(self) -> ModelCard:
        return self._card

    @property
    def is_ready(self) -> bool:
        return self._loop.is_alive() and not self._stopped.is_set()

    @property
    def loras(self) -> frozenset[str]:
        return self._store.names

    def start(self, job: ImageJob, on_step: OnStep) -> JobHandle:
        order = JobHandle(job, on_step)
        self._store.ahead = job.ahead
        self._count(1)
        order.done.add_done_callback(lambda _: self._count(-1))
        self._before.submit(_guarded, order, self._begin, order)
        return order

    def forget(self, name: str) -> None:
        self._store.forget(name)
        self._editor.forget(name)

    def numbers(self) -> Mapping[str, float]:
        return {
            "steps": self._num_steps,
            "network_calls": self.engine.num_calls,
            "adapter_loads": self._store.num_loads,
            "adapter_bytes": self._store.size_bytes,
            "running": self._num_open,
            **self._meter.numbers(),
        }

    def close(self) -> None:
        """Stop the loop at the next step boundary; weights are as they were loaded afterwards."""
        self._stopped.set()
        self._before.shutdown(cancel_futures=True)
        self._loop.join()
        self._after.shutdown(cancel_futures=True)
        _close_all(self.engine)
        self._editor.close()

    # ---------------------------------------------------------------------------------------------------------------

    def _begin(self, order: JobHandle) -> None:
        """In a thread of `before`."""
        if order.is_cancelled:
            raise Cancelled("the request was cancelled before its first step")
        with self._meter.working("prepare"):
            run = self._prepared(order.job)
        ticket = self.engine.enter(run, self._counted(run, order.on_step))
        order.on_cancel = ticket.cancel
        if order.is_cancelled:
            ticket.cancel()
        ticket.finished.add_done_callback(lambda finished: self._ended(order, finished))

    def _prepared(self, job: ImageJob) -> DenoisingRun:
        request = job.request
        if job.within_s is not None:
            request = replace(request, deadline_s=time.monotonic() + job.within_s)
        if job.edit is not None:
            return self._editor.prepare(request, job.edit)
        return self.engine.family.prepare(request)

    def _on_iteration(self) -> bool:
        """In the step loop, between two turns: whether it is over."""
        num_rows, self._num_rows = self._num_rows, 0
        self._meter.record(num_rows)
        return self._stopped.is_set()

    def _counted(self, run: DenoisingRun, on_step: OnStep) -> OnStep:
        def heard(step: int, num_steps: int) -> None:
            self._num_steps += 1  # only the loop counts
            self._num_rows += run.num_rows
            on_step(step, num_steps)

        return heard

    def _ended(self, order: JobHandle, finished: Future[DenoisingRun]) -> None:
        """In the step loop: hand on at once."""
        problem = finished.exception()
        if problem is not None:
            order.fail(problem)
        elif self._stopped.is_set():
            order.fail(Cancelled("the server was stopped"))
        else:
            self._after.submit(_guarded, order, self._finish, order, finished.result())

    def _finish(self, order: JobHandle, run: DenoisingRun) -> None:
        """In a thread of `after`."""
        with self._meter.working("finish"):
            job, image, report = order.job, self.engine.family.decode(run), None
            if job.edit is not None:
                image, report = self._editor.finish(job.edit, image), self._editor.report(run)
            picture = encode_image(image[0], job.format, job.quality)
        order.finish(picture, report)

    def _count(self, change: int) -> None:
        with self._counting:
            self._num_open += change


def _close_all(engine: StepEngine) -> None:
    """Close the add-ons that hold something."""
    held: Sequence[object] = engine.add_ons
    for add_on in held:
        if isinstance(add_on, Loras | Controls):
            add_on.close()


def _guarded(order: JobHandle, act: object, *arguments: object) -> None:
    """Let the order feel what goes wrong with it."""
    assert callable(act)
    try:
        act(*arguments)
    except BaseException as problem:
        order.fail(problem)
