"""Backend on Ray Serve: replicas on this machine or on all machines of a cluster, routed by Ray."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from takeup.errors import TakeupError
from takeup.serving.model import Cancelled
from takeup.serving.server.backends import Backend, ImageJob, JobHandle, ModelCard
from takeup.serving.server.backends.worker_pool import BackendPlan
from takeup.serving.server.errors import WorkerLost

if TYPE_CHECKING:
    from takeup.serving.diffusion.engine.steps import OnStep


# A replica of Ray Serve: a backend inside an actor. Light imports, so that a new replica starts quickly ---------------

ReplicaEvent = tuple[str, Any]


class Replica:
    """A backend inside an actor of Ray."""

    def __init__(self, plan: BackendPlan) -> None:
        self._backend: Backend = plan.build()

    def card(self) -> ModelCard:
        """The model."""
        return self._backend.card

    def forget(self, name: str) -> None:
        """Drop this LoRA or template from caches; it will not be requested again."""
        self._backend.forget(name)

    def pin(self, name: str, is_pinned: bool) -> None:
        """Keep this LoRA in memory, or no longer."""
        self._backend.pin(name, is_pinned=is_pinned)

    def make(self, job: ImageJob) -> Iterator[ReplicaEvent]:
        """Yield steps, then the image or the error; closing the generator cancels the job."""
        said: queue.SimpleQueue[ReplicaEvent] = queue.SimpleQueue()
        order = self._backend.start(job, lambda step, num_steps: said.put(("step", (step, num_steps))))
        order.done.add_done_callback(lambda _: said.put(_outcome(order)))
        try:
            word = ""
            while word not in ("made", "failed"):
                word, fact = said.get()
                yield word, fact
        finally:
            order.cancel()


def _outcome(order: JobHandle) -> ReplicaEvent:
    problem = order.done.exception()
    if problem is None:
        return "made", (order.done.result(), order.report)
    return "failed", problem if isinstance(problem, TakeupError) else RuntimeError(type(problem).__name__)


# Replicas of Ray Serve: workers on this machine or on all machines of a cluster, routed by Ray ------------------------
#
# Every replica builds the same plan, and answers a job with a stream: its steps, then its picture. Ray starts dead
# replicas again; what one of them was making is begun again once, on another. Uploaded LoRAs are named by their paths,
# so on several machines the folder of uploads must be one that all of them see.

NAME = "takeup-serving"
MAX_ONGOING = 256
MAX_ATTEMPTS = 2
START_S = 300.0
MAX_KNOWN = 64


class RayBackend:
    """Joins the cluster that this process is connected to or RAY_ADDRESS names; else starts a local Ray.

    At the end it stops what it started: on a cluster its own replicas and nothing else.
    """

    def __init__(self, plan: BackendPlan, num_replicas: int, **actor_options: Any) -> None:
        ray, serve = _ray()
        self._owns_ray = not ray.is_initialized() and "RAY_ADDRESS" not in os.environ
        if self._owns_ray:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        elif not ray.is_initialized():
            ray.init(log_to_driver=False, logging_level=logging.ERROR)
        serve.start(proxy_location="Disabled")  # replicas are called by their handle: no process, no port for a proxy
        deployment = serve.deployment(
            num_replicas=num_replicas, max_ongoing_requests=MAX_ONGOING, ray_actor_options=actor_options
        )(Replica)
        self._handle = serve.run(deployment.bind(plan), name=NAME, route_prefix=None)
        self._card: ModelCard = self._handle.card.remote().result(timeout_s=START_S)
        self._threads = ThreadPoolExecutor(MAX_ONGOING, thread_name_prefix="ray")
        self._retries = 0
        self._num_steps = 0
        self._known: OrderedDict[str, None] = OrderedDict()
        self._counting = threading.Lock()
        self._closing = False

    @property
    def card(self) -> ModelCard:
        return self._card

    @property
    def is_ready(self) -> bool:
        return not self._closing

    @property
    def loras(self) -> frozenset[str]:
        """LoRAs of recent jobs; Ray does not say which replica has them."""
        return frozenset(self._known)

    def start(self, job: ImageJob, on_step: OnStep) -> JobHandle:
        order = JobHandle(job, on_step)
        self._remember(job)
        self._threads.submit(self._make, order)
        return order

    def forget(self, name: str) -> None:
        """Tells one replica; the others evict it when it is the least recently used."""
        with suppress(Exception):
            self._handle.forget.remote(name)

    def pin(self, name: str, *, is_pinned: bool) -> None:
        """Tells one replica, like `forget`."""
        with suppress(Exception):
            self._handle.pin.remote(name, is_pinned)

    def numbers(self) -> Mapping[str, float]:
        return {"steps": self._num_steps, "retries": self._retries}

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        ray, serve = _ray()
        serve.delete(NAME)
        if self._owns_ray:
            serve.shutdown()
            ray.shutdown()

    def _remember(self, job: ImageJob) -> None:
        with self._counting:
            for use in job.request.loras:
                self._known[use.name] = None
                self._known.move_to_end(use.name)
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)

    def _make(self, order: JobHandle) -> None:
        """Runs in a pool thread: follow the stream, and retry if the replica dies."""
        for attempt in range(MAX_ATTEMPTS):
            try:
                self._follow(order)
                return
            except _ray()[0].exceptions.RayActorError:
                with self._counting:
                    self._retries += attempt + 1 < MAX_ATTEMPTS
            except Exception as problem:
                order.fail(problem)
                return
        order.fail(WorkerLost(f"{MAX_ATTEMPTS} replicas died while they made this image; change the request"))

    def _follow(self, order: JobHandle) -> None:
        stream: Any = self._handle.options(stream=True).make.remote(order.job)
        order.on_cancel = stream.cancel
        for word, fact in stream:
            if order.is_cancelled:
                stream.cancel()
                raise Cancelled("the request was cancelled")
            self._on_event(order, word, fact)

    def _on_event(self, order: JobHandle, word: str, fact: Any) -> None:
        if word == "step":
            with self._counting:
                self._num_steps += 1
            order.on_step(*fact)
        elif word == "made":
            order.finish(*fact)
        else:
            order.fail(fact)


def _ray() -> tuple[Any, Any]:
    """Ray and Ray Serve, imported when they are used: they are large, and warn while they are imported."""
    return import_module("ray"), import_module("ray.serve")
