"""Ways to compute the same thing, and which is the fastest here: measured once for every shape, then kept.

How it works. An operation has several ways: libraries, kernels of our own, other sizes of blocks. The first is the
usual one, which stands where nothing is measured. When an operation meets a new shape on a CUDA device, every way is
tried on the tensors it got: one that fails, or answers otherwise than the usual one, is out, and the fastest of the
others is kept. Calls are repeated inside a graph, for a kernel of some microseconds ends before the next one is sent.
While a graph is recorded nothing is measured; computations are tried out before that, and choices are made then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from takeup.serving.engines.diffusers.device.quiet import QUIET

__all__ = ["CHOICES", "Choice", "Choices", "Way", "described"]

LOG = logging.getLogger(__name__)
NUM_CALLS, NUM_ROUNDS = 10, 3
MOST_OFF = 0.02
"""The most that ways may differ, as a share of the answer: all of them round to 16 bits in between."""

Way = Callable[..., torch.Tensor]
cuda: Any = torch.cuda  # whose functions are not annotated


@dataclass(frozen=True, slots=True)
class Choice:
    """What was found for an operation on one shape: the way, and microseconds of every way that can."""

    operation: str
    shape: Hashable
    way: str
    times_us: Mapping[str, float]


class Choices:
    """What was chosen so far. `off` names operations that stay with the usual way."""

    def __init__(self) -> None:
        self.off: frozenset[str] = frozenset()
        self._made: dict[tuple[str, Hashable], Choice] = {}

    @property
    def made(self) -> list[Choice]:
        """All choices, in the order in which they were made."""
        return list(self._made.values())

    def forget(self) -> None:
        """Measure again when next asked."""
        self._made.clear()

    def way(
        self, operation: str, shape: Hashable, ways: Mapping[str, Way], arguments: Callable[[], tuple[Any, ...]]
    ) -> Way:
        """The fastest way, the usual one first; `arguments` makes those of a trial, anew where ways write to them."""
        usual = next(iter(ways.values()))
        if operation in self.off or len(ways) == 1:
            return usual
        if (operation, shape) not in self._made:
            if not _can_measure():
                return usual
            with QUIET.alone():
                self._made[operation, shape] = _measured(operation, shape, ways, arguments)
        return ways.get(self._made[operation, shape].way, usual)


CHOICES = Choices()
"""Those of this process: what is fastest is a property of the device."""


def described(*tensors: torch.Tensor) -> Hashable:
    """What of tensors a choice depends on."""
    return tuple((tuple(one.shape), one.stride(), one.dtype) for one in tensors)


def _measured(
    operation: str, shape: Hashable, ways: Mapping[str, Way], arguments: Callable[[], tuple[Any, ...]]
) -> Choice:
    usual = next(iter(ways))
    truth = ways[usual](*arguments()).clone()
    times_us: dict[str, float] = {}
    for name, way in ways.items():
        try:
            if _is_right(way(*arguments()), truth):
                times_us[name] = _time_us(way, arguments())
            else:
                LOG.warning("%s: the way %r answers otherwise than %r and is not used", operation, name, usual)
        except Exception as problem:  # whatever it is, the usual way stands
            LOG.info("%s: the way %r cannot: %s", operation, name, problem)
    return Choice(operation, shape, min(times_us, key=times_us.__getitem__, default=usual), times_us)


def _is_right(answer: torch.Tensor, truth: torch.Tensor) -> bool:
    """Never of an answer that is not a number."""
    return bool((answer.float() - truth.float()).norm() <= MOST_OFF * truth.float().norm())


def _can_measure() -> bool:
    return bool(cuda.is_available() and not cuda.is_current_stream_capturing())


def _time_us(way: Way, given: tuple[Any, ...]) -> float:
    """Of one call: the best of some rounds."""
    stream = cuda.Stream()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        way(*given)  # in this stream, too, before it is recorded
        stream.synchronize()
        graph = cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for _ in range(NUM_CALLS):
                way(*given)
        finally:
            graph.capture_end()
        graph.replay()
        best_us = min(_replay_us(graph) for _ in range(NUM_ROUNDS))
    cuda.current_stream().wait_stream(stream)
    return best_us / NUM_CALLS


def _replay_us(graph: Any) -> float:
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3
