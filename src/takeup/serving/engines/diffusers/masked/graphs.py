"""A call recorded once and repeated: on an accelerator as a graph, elsewhere by calling again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch

__all__ = ["Repeated", "preferring"]

NUM_WARM_UPS = 3

cuda: Any = torch.cuda  # whose functions are not annotated


class Repeated:
    """`call` with inputs in fixed memory: write into `inputs`, then call this; the answer lies in fixed memory too."""

    def __init__(self, call: Callable[..., torch.Tensor], inputs: Mapping[str, Any]) -> None:
        self.inputs, self._call = inputs, call
        self._graph: Any = None
        if any(one.is_cuda for one in inputs.values() if isinstance(one, torch.Tensor)):
            self._record()

    @torch.no_grad()
    def __call__(self) -> torch.Tensor:
        if self._graph is None:
            return self._call(**self.inputs)
        self._graph.replay()
        return self._output

    @torch.no_grad()
    def _record(self) -> None:
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            for _ in range(NUM_WARM_UPS):
                self._call(**self.inputs)
        cuda.current_stream().wait_stream(stream)
        self._graph = cuda.CUDAGraph()
        with cuda.graph(self._graph):
            self._output = self._call(**self.inputs)


@contextmanager
def preferring(backends: Sequence[str]) -> Iterator[None]:
    """Inside, attention is computed by the first of these that can: such as CUDNN_ATTENTION, FLASH_ATTENTION."""
    attention = import_module("torch.nn.attention")
    chosen = [getattr(attention.SDPBackend, name) for name in (*backends, "MATH")]
    with attention.sdpa_kernel(chosen, set_priority=True):
        yield
