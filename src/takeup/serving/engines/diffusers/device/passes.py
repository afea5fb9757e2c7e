"""Passes: a computation on static buffers, captured once as a CUDA graph and replayed.

How it works. A CUDA graph is a list of kernels with the addresses they read and write. Replaying it costs one launch
instead of thousands, but all addresses must be those of the capture. So inputs are copied into buffers (`StaticBuffers`), and
results are read from fixed tensors. A computation may have one *seam*, at which something that is not captured happens
(residuals arrive): it is then captured as two graphs. Where there are no graphs, or capture fails, the same computation
on the same buffers is run eagerly.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from takeup.serving.engines.diffusers.device.quiet import CAPTURE_LOCK

LOG = logging.getLogger(__name__)
NUM_WARM_UPS = 2
Tensors = Sequence[torch.Tensor]
Seam = Callable[[], None]
Computation = Callable[[Seam], Tensors]
"""Computes from buffers into tensors, and calls the seam once, where it has one."""

cuda: Any = torch.cuda  # whose functions are not annotated


class CapturedPass(Protocol):
    """A captured computation."""

    def replay(self, at_seam: Seam) -> Tensors:
        """Replay the computation; the results are valid until the next replay."""


class Uncaptured:
    """Runs the computation eagerly on every replay."""

    def __init__(self, compute: Computation) -> None:
        self._compute = compute

    def replay(self, at_seam: Seam) -> Tensors:
        return self._compute(at_seam)


class CudaGraphPass:
    """One CUDA graph, or two with a seam between them. Graphs of one `pool` share memory: replay one at a time."""

    def __init__(self, compute: Computation, pool: Any = None, num_warm_ups: int = NUM_WARM_UPS) -> None:
        self._pool = cuda.graph_pool_handle() if pool is None else pool
        self._graphs: list[Any] = []
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with CAPTURE_LOCK.exclusive(), cuda.stream(stream):
            for _ in range(num_warm_ups):  # compilation and autotuning happen here
                compute(_nothing)
            stream.synchronize()
            self._results = self._recorded(compute)
        cuda.current_stream().wait_stream(stream)

    def replay(self, at_seam: Seam) -> Tensors:
        first, *others = self._graphs
        first.replay()
        for graph in others:
            at_seam()
            graph.replay()
        return self._results

    def _recorded(self, compute: Computation) -> Tensors:
        self._begin()
        try:
            return compute(self._cut)
        finally:
            self._graphs[-1].capture_end()

    def _begin(self) -> None:
        self._graphs.append(cuda.CUDAGraph())
        self._graphs[-1].capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def _cut(self) -> None:
        self._graphs[-1].capture_end()
        self._begin()


def capture(
    compute: Computation, device: torch.device, pool: Any = None, num_warm_ups: int = NUM_WARM_UPS
) -> CapturedPass:
    """The fastest pass that this device supports. After a failed capture the pool must not be used again."""
    if device.type != "cuda":
        return Uncaptured(compute)
    try:
        return CudaGraphPass(compute, pool, num_warm_ups)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, torch.AcceleratorError) as problem:
        LOG.warning("a network call could not be recorded and is made anew in every step: %s", problem)
        cuda.synchronize()
        return Uncaptured(compute)


class StaticBuffers:
    """Static buffers. The first dimension has capacity for `num_rows` rows."""

    def __init__(self, like: Mapping[str, torch.Tensor], num_rows: int) -> None:
        self.tensors = {name: one.new_zeros((num_rows, *one.shape[1:])) for name, one in like.items()}

    def fill(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy these into the first rows; the remaining rows keep stale data, and their outputs are discarded."""
        for name, tensor in tensors.items():
            self.tensors[name][: len(tensor)].copy_(tensor, non_blocking=True)


def num_padded(num_rows: int, sizes: Sequence[int]) -> int:
    """The smallest of the sizes that is at least `num_rows`; `num_rows` itself if there is none."""
    return min((size for size in sizes if size >= num_rows), default=num_rows)


def _nothing() -> None:
    """The seam during warm-up runs: no-op."""
