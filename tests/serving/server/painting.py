"""A backend without a model that does what the test says, here or in another process. Imports nothing heavy."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from takeup.serving.model import Cancelled
from takeup.serving.server.backends import Backend, ImageJob, JobHandle, ModelCard

if TYPE_CHECKING:
    from takeup.serving.diffusion.engine.steps import OnStep

__all__ = ["DEADLY", "PICTURE", "Painter", "PainterPlan"]

PICTURE = b"a picture of "
DEADLY = "kill the worker"


class Painter:
    """Paints at once, or when the test says so: `let_go` lets every job go that is held, and all that follow."""

    def __init__(self, holds: bool = False) -> None:
        self._card = ModelCard("PainterPipeline", _no_targets(), ("depth",))
        self._free = threading.Event()
        self.orders: list[JobHandle] = []
        self.forgotten: list[str] = []
        self.pinned: set[str] = set()
        self.is_ready = True
        self.is_closed = False
        if not holds:
            self._free.set()

    @property
    def card(self) -> ModelCard:
        return self._card

    @property
    def loras(self) -> set[str]:
        """What was asked for is in memory."""
        return {use.name for order in self.orders for use in order.job.request.loras}

    def start(self, job: ImageJob, on_step: OnStep) -> JobHandle:
        order = JobHandle(job, on_step)
        order.on_cancel = lambda: order.fail(Cancelled("cancelled"))
        self.orders.append(order)
        threading.Thread(target=self._paint, args=(order,), daemon=True).start()
        return order

    def _paint(self, order: JobHandle) -> None:
        for step in range(order.job.request.num_steps):
            order.on_step(step + 1, order.job.request.num_steps)
        self._free.wait()
        if order.job.request.prompt == DEADLY:
            os.kill(os.getpid(), 9)
        order.finish(PICTURE + str(order.job.request.seed).encode())

    def let_go(self) -> None:
        """Paint what is held."""
        self._free.set()

    def forget(self, name: str) -> None:
        self.forgotten.append(name)

    def pin(self, name: str, *, is_pinned: bool) -> None:
        (self.pinned.add if is_pinned else self.pinned.discard)(name)

    def numbers(self) -> Mapping[str, float]:
        return {"steps": len(self.orders)}

    def close(self) -> None:
        self.is_closed = True
        self.let_go()


@dataclass(frozen=True)
class PainterPlan:
    """A painter for another process. `folder` has a file for each process that was started.

    One that `loads_once` does so in the first process; in others it loads for ever.
    """

    folder: Path
    holds: bool = False
    dies: bool = False
    loads_once: bool = False
    problem: Exception | None = None

    def build(self) -> Backend:
        (self.folder / str(os.getpid())).touch()
        if self.problem is not None:
            raise self.problem
        if self.dies:
            os.kill(os.getpid(), 9)
        if self.loads_once and len(list(self.folder.iterdir())) > 1:
            threading.Event().wait()
        return Painter(self.holds)


def _no_targets() -> Any:
    """A model without layers; what describes real ones would bring the networks with it."""
    return SimpleNamespace(base="PainterPipeline", shapes={}, names={})
