"""CUDA graphs: a computation on static buffers, captured once and replayed; text encoders as such graphs.

Where there is no CUDA device, or capture fails, the computation runs eagerly (`Uncaptured`).
"""

import copy
import logging
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any, Protocol

import torch
from torch.utils import _pytree as trees

# Reader-writer lock around CUDA-graph capture: a device-wide synchronization would break the capture ------------------
#
# How it works. Threads other than the step loop encode and decode images, and cuDNN benchmarks convolutions of a size
# that is new to a thread, which synchronizes the whole device. Code that may do so holds the shared side (`shared`).
# Graph capture holds the exclusive side (`exclusive`): it waits until no other thread is busy, and blocks new ones.


class CaptureLock:
    """Reentrant; a thread can hold both sides, acquired in any order."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy: Counter[int] = Counter()
        self._alone: Counter[int] = Counter()
        self._num_waiting = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Shared section: no other thread is in an exclusive section."""
        me = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._may_enter(me))
            self._busy[me] += 1
        try:
            yield
        finally:
            self._leave(self._busy, me)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Exclusive section. A holder of the shared side releases it while waiting, to avoid a self-deadlock."""
        me = threading.get_ident()
        with self._changed:
            was_busy = self._busy.pop(me, 0)
            self._num_waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._busy and self._alone.keys() <= {me})
            self._num_waiting -= 1
            self._alone[me] += 1
        try:
            yield
        finally:
            if was_busy:
                self._busy[me] = was_busy
            self._leave(self._alone, me)

    def _may_enter(self, me: int) -> bool:
        """Writer preference: waiting writers block new readers, but not threads that already hold the lock."""
        is_inside = me in self._alone or me in self._busy
        return is_inside or not (self._alone or self._num_waiting)

    def _leave(self, threads: Counter[int], me: int) -> None:
        with self._changed:
            threads[me] -= 1
            if not threads[me]:
                del threads[me]
            self._changed.notify_all()


CAPTURE_LOCK = CaptureLock()
"""That of this process, as its devices are."""


# Passes: a computation on static buffers, captured once as a CUDA graph and replayed ----------------------------------
#
# How it works. A CUDA graph is a list of kernels with the addresses they read and write. Replaying it costs one launch
# instead of thousands, but all addresses must be those of the capture. So inputs are copied into buffers
# (`StaticBuffers`), and results are read from fixed tensors. A computation may have one *seam*, at which something
# that is not captured happens (residuals arrive): it is then captured as two graphs. Where there are no graphs, or
# capture fails, the same computation on the same buffers is run eagerly.

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
        LOG.warning("a network call could not be captured and runs eagerly in every step: %s", problem)
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


# Text encoders as CUDA graphs: hundreds of small operations for a few tokens, launched as one -------------------------

TEXT_ENCODERS = ("text_encoder", "text_encoder_2")


def capture_encoders(pipeline: Any) -> int:
    """Capture the text encoders of the pipeline on their first call. Returns the number of encoders."""
    found = [getattr(pipeline, part, None) for part in TEXT_ENCODERS]
    encoders = [
        one for one in found if one is not None and not isinstance(one.__dict__.get("forward"), _CapturedEncoder)
    ]
    for encoder in encoders:
        encoder.forward = _CapturedEncoder(encoder)
    if encoders:
        pipeline.encode_prompt = _without_parts(pipeline).encode_prompt
    return len(encoders)


def _without_parts(pipeline: Any) -> Any:
    """A copy of the pipeline whose encoders hide their submodules.

    Before each call diffusers walks all submodules of an encoder, twice, to find offloading hooks. There are hundreds
    of submodules and no hooks, and it takes milliseconds.
    """
    light = copy.copy(pipeline)
    for name in TEXT_ENCODERS:
        if getattr(pipeline, name, None) is not None:
            light.__dict__[name] = _OpaqueModule(getattr(pipeline, name))
    return light


class _OpaqueModule(torch.nn.Module):
    """A module that hides its submodules."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self._only = (module,)  # a tuple hides it from submodules

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_only"][0], name)

    def forward(self, *arguments: Any, **options: Any) -> Any:
        return self._only[0](*arguments, **options)


class _CapturedEncoder:
    """The forward of an encoder. Calls with tensors other than the tokens run eagerly."""

    def __init__(self, encoder: Any) -> None:
        self._usual = MethodType(type(encoder).forward, encoder)
        self._calls: dict[Hashable, _EncoderCall] = {}

    def __call__(self, input_ids: torch.Tensor, **options: Any) -> Any:
        if any(isinstance(option, torch.Tensor) for option in options.values()):
            return self._usual(input_ids, **options)
        kind = input_ids.shape, tuple(sorted(options.items()))
        if kind not in self._calls:
            self._calls[kind] = _EncoderCall(self._usual, input_ids, options)
        return self._calls[kind](input_ids)


class _EncoderCall:
    """One kind of call: the static token buffer, and the captured pass over it."""

    def __init__(self, usual: Any, input_ids: torch.Tensor, options: dict[str, Any]) -> None:
        self._usual, self._options = usual, options
        self._input_ids = input_ids.clone()
        self._shape: Any = None
        self._pass: CapturedPass = capture(self._compute, input_ids.device)

    @torch.no_grad()
    def __call__(self, input_ids: torch.Tensor) -> Any:
        """The encoder output, in tensors that later calls do not overwrite."""
        self._input_ids.copy_(input_ids)
        tensors = [tensor.clone() for tensor in self._pass.replay(lambda: None)]
        return trees.tree_unflatten(tensors, self._shape)

    @torch.no_grad()
    def _compute(self, _at_seam: Any) -> Tensors:
        leaves, self._shape = trees.tree_flatten(self._usual(self._input_ids, **self._options))
        return leaves
