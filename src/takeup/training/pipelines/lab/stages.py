"""Stages of the laboratory: a small transformer with prescribed operation times, and artificially slow links."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from takeup.training.pipelines.engine.receives import WorkerThread
from takeup.training.pipelines.profile import Link, Profile, Stage

# Artificially slow links: a message is sent after the service of earlier messages, its own service, and a latency -----
#
# All messages between two ranks pass through `send` of their process group, for every schedule and every group, so
# they are delayed here. The compute thread is not blocked, unless the link models a device with a single hardware
# queue: then compute blocks until the message has been sent. Delegates send from a separate thread and never block
# compute.


class DelayedSend:
    """A delayed message that has not been sent yet, with the interface of a sent one."""

    def __init__(self, begun: Future[Any]) -> None:
        self._begun = begun

    def wait(self, timeout: timedelta | None = None) -> Any:
        """Block until the message has been sent and has arrived."""
        limit_s = None if timeout is None else timeout.total_seconds()
        work = self._begun.result(limit_s)
        return work.wait() if timeout is None else work.wait(timeout)


class SlowWire:
    """One direction of a slow link; with `one_queue`, sends block the main (compute) thread."""

    def __init__(self, link: Link, *, one_queue: bool = False) -> None:
        self._link = link
        self._one_queue = one_queue
        self._free_s = 0.0
        self._worker = WorkerThread("takeup-slow-link")

    def send(self, begin: Callable[[], Any]) -> DelayedSend:
        """Send the message when it is due, in FIFO order."""
        served_s = max(time.monotonic(), self._free_s) + self._link.service_s
        self._free_s = served_s
        begun = self._worker.submit(lambda: _call_at(served_s + self._link.latency_s, begin))
        if self._one_queue and threading.current_thread() is threading.main_thread():
            begun.result()
        return DelayedSend(begun)


def _call_at(due_s: float, begin: Callable[[], Any]) -> Any:
    time.sleep(max(0.0, due_s - time.monotonic()))
    return begin()


def slow_wires(truth: Profile, rank: int) -> dict[int, SlowWire]:
    """The slow links of a rank, by peer rank."""
    ends = {rank + 1: rank, rank - 1: rank - 1}
    links = {peer: truth.links[link] for peer, link in ends.items() if 0 <= link < len(truth.links)}
    return {peer: SlowWire(link, one_queue=truth.max_sends == 1) for peer, link in links.items() if link.delay_s > 0}


@contextmanager
def delayed_sends(wires: Mapping[int, SlowWire]) -> Iterator[None]:
    """Context in which messages to these ranks are delayed by their wires."""
    kept, plain = vars(dist.ProcessGroup)["send"], dist.ProcessGroup.send  # only the raw attribute binds as a method

    def send(group: dist.ProcessGroup, tensors: Any, peer: int, tag: int) -> Any:
        wire = wires.get(dist.get_global_rank(group, peer))
        if wire is None:
            return plain(group, tensors, peer, tag)
        return wire.send(lambda: plain(group, tensors, peer, tag))

    dist.ProcessGroup.send = send  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        dist.ProcessGroup.send = kept  # type: ignore[method-assign]


# A small transformer in stages, whose operations have prescribed durations --------------------------------------------
#
# The computation is real but tiny, so that gradients can be compared; for the rest of its duration an operation sleeps.
# Four ranks then need only one core, and their wall-clock times are still real.

WIDTH, NUM_HEADS, LENGTH = 16, 2, 4
BULK_LENGTH = 512  # for bandwidth-limited links
BULK_BYTES = BULK_LENGTH * WIDTH * 8
SEED = 5


class _Layer(torch.nn.Module):
    """A transformer layer on the first tokens; the others pass through unchanged and only enlarge messages."""

    def __init__(self) -> None:
        super().__init__()
        self._layer = torch.nn.TransformerEncoderLayer(
            WIDTH, NUM_HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, dtype=torch.float64
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Apply the layer to the first `LENGTH` tokens and pass the others through."""
        if tokens.shape[1] == LENGTH:
            return self._layer(tokens)  # type: ignore[no-any-return]
        return torch.cat([self._layer(tokens[:, :LENGTH]), tokens[:, LENGTH:]], dim=1)


def make_module(stage: int) -> torch.nn.Module:
    """The layer of a stage, the same in every process; in double precision, so that rounding does not hide errors."""
    torch.manual_seed(SEED + stage)
    return _Layer()


def make_batch(iteration: int, num_microbatches: int, length: int = LENGTH) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of an iteration, one row for each micro-batch."""
    generator = torch.Generator().manual_seed(SEED + 1000 * iteration)
    shape = (num_microbatches, length, WIDTH)
    inputs, targets = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return inputs, targets


def gradients_of(module: torch.nn.Module) -> list[torch.Tensor]:
    """Gradients of the module's parameters, where present."""
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def reference_gradients(stage: int, iteration: int, truth: Profile, length: int = LENGTH) -> list[torch.Tensor]:
    """Gradients of one stage, computed in a single process without a pipeline."""
    modules = [make_module(number) for number in range(truth.num_stages)]
    inputs, targets = make_batch(iteration, truth.num_microbatches, length)
    loss = torch.nn.functional.mse_loss(torch.nn.Sequential(*modules)(inputs), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    return gradients_of(modules[stage])


class PacedStage(PipelineStage):  # type: ignore[misc, unused-ignore]
    """A stage whose operations take the given times, or their compute time if that is longer."""

    def __init__(self, pace: Stage, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pace = pace

    def forward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """Run F with its prescribed duration."""
        return _paced(self._pace.forward_s, partial(super().forward_one_chunk, *arguments, **named))

    def backward_one_chunk(self, *arguments: Any, full_backward: bool = True, **named: Any) -> Any:
        """Run I with its prescribed duration, or B with that of I plus W."""
        pace_s = self._pace.backward_s + (self._pace.weight_s if full_backward else 0.0)
        named["full_backward"] = full_backward
        return _paced(pace_s, partial(super().backward_one_chunk, *arguments, **named))

    def backward_weight_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """Run W with its prescribed duration."""
        return _paced(self._pace.weight_s, partial(super().backward_weight_one_chunk, *arguments, **named))


def _paced(pace_s: float, compute: Callable[[], Any]) -> Any:
    start_s = time.perf_counter()
    result = compute()
    time.sleep(max(0.0, pace_s - (time.perf_counter() - start_s)))
    return result
