"""Servers for tests: a backend without a model that does what the test says, and a way to start a server around it."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from takeup.serving.engines.diffusers.lora.targets import Targets
from takeup.serving.engines.diffusers.tickets import OnStep
from takeup.serving.model import Cancelled
from takeup.serving.server.app import make_app
from takeup.serving.server.jobs import Backend, Card, Job, Order
from takeup.serving.server.run import running
from takeup.serving.server.settings import Limits, Settings
from takeup.serving.server.tenants import Keys

__all__ = ["ALICE", "BOB", "KEYS", "MODEL", "Painter", "PainterPlan", "ask", "bearer", "eventually", "house", "metric"]

MODEL = "takeup/painter"
ALICE, BOB = "alice-has-a-long-key", "bob-has-another-long-key"
KEYS = Keys([("alice", ALICE), ("bob", BOB)])
PICTURE = b"a picture of "
DEADLY = "kill the worker"


class Painter:
    """Paints at once, or when the test says so: `let_go` lets every job go that is held, and all that follow."""

    def __init__(self, holds: bool = False) -> None:
        self._card = Card("PainterPipeline", Targets("PainterPipeline", {}, {}), ("depth",))
        self._free = threading.Event()
        self.orders: list[Order] = []
        self.forgotten: list[str] = []
        self.is_ready = True
        self.is_closed = False
        if not holds:
            self._free.set()

    @property
    def card(self) -> Card:
        return self._card

    def start(self, job: Job, on_step: OnStep) -> Order:
        order = Order(job, on_step)
        order.on_cancel = lambda: order.fail(Cancelled("cancelled"))
        self.orders.append(order)
        threading.Thread(target=self._paint, args=(order,), daemon=True).start()
        return order

    def _paint(self, order: Order) -> None:
        for step in range(order.job.request.num_steps):
            order.on_step(step + 1, order.job.request.num_steps)
        self._free.wait()
        if order.job.request.prompt == DEADLY:
            os.kill(os.getpid(), 9)
        order.finish(PICTURE + str(order.job.request.seed).encode())

    def let_go(self) -> None:
        """Paint what is held."""
        self._free.set()

    def forget(self, lora: str) -> None:
        self.forgotten.append(lora)

    def numbers(self) -> Mapping[str, float]:
        return {"steps": len(self.orders)}

    def close(self) -> None:
        self.is_closed = True
        self.let_go()


@dataclass(frozen=True)
class PainterPlan:
    """A painter for another process. `folder` has a file for each process that was started."""

    folder: Path
    holds: bool = False
    dies: bool = False
    problem: Exception | None = None
    moods: Mapping[str, str] = field(default_factory=dict)

    def build(self) -> Backend:
        (self.folder / str(os.getpid())).touch()
        if self.problem is not None:
            raise self.problem
        if self.dies:
            os.kill(os.getpid(), 9)
        return Painter(self.holds)


@contextmanager
def house(
    backend: Backend, *, keys: Keys | None = None, model: str = MODEL, adapters: Path | None = None, **limits: Any
) -> Iterator[httpx.Client]:
    """A client of a server around this backend."""
    with tempfile.TemporaryDirectory() as uploads:
        settings = Settings(model, Path(uploads), adapters, Limits(**limits))
        app = make_app(settings, backend, KEYS if keys is None else keys)
        with running(app) as url, httpx.Client(base_url=url, headers=bearer(ALICE), timeout=60) as client:
            client.app = app  # type: ignore[attr-defined]
            yield client


def app_of(client: httpx.Client) -> FastAPI:
    """The app behind the client."""
    app: FastAPI = client.app  # type: ignore[attr-defined]
    return app


def bearer(key: str) -> dict[str, str]:
    """The header that carries the key."""
    return {"Authorization": f"Bearer {key}"}


def ask(**fields: Any) -> dict[str, Any]:
    """A small generation."""
    return {"prompt": "a cat", "size": "32x32", "steps": 2, "seed": 1, **fields}


def metric(client: httpx.Client, name: str) -> float:
    """A number of the page of metrics."""
    page = client.get("/metrics").text
    (value,) = [line.split()[1] for line in page.splitlines() if line.split()[0] == f"takeup_serving_{name}"]
    return float(value)


def eventually(holds: Callable[[], bool], within_s: float = 60.0) -> None:
    """Wait until something is true; fail if it never is."""
    until_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until_s, "it did not happen"
        time.sleep(0.01)
