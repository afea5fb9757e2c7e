"""ControlNets concurrent with the denoiser on the same device: CUDA graphs, each in a separate stream.

A ControlNet captured as a CUDA graph is one launch, so all ControlNets of a call and the first half of the denoiser run
concurrently, as far as the device has capacity. Residuals are read after an event, in decoder order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from takeup.serving.diffusion.addons.controlnet.workers import ControlCall, ControlNet, ResidualStream
from takeup.serving.diffusion.execution.cuda_graph import (
    CapturedPass,
    StaticBuffers,
    Tensors,
    capture,
    cuda,
    num_padded,
)
from takeup.serving.diffusion.execution.executors import ROW_SIZES, CudaGraphExecutor, PreparedNetwork

CHANGING = ("sample", "timestep")


class StreamWorker:
    """Computes one ControlNet with the optimizations of `compute`. Without CUDA it is computed inline."""

    def __init__(self, module: Any, compute: CudaGraphExecutor) -> None:
        self._net = ControlNet(module)
        self._prepared = compute.prepared(module)
        self._calls: dict[Hashable, _CapturedCalls] = {}
        self._stream = cuda.Stream(module.device) if module.device.type == "cuda" else None
        self._pool = cuda.graph_pool_handle() if self._stream is not None else None

    def remember(self, key: int, image: torch.Tensor) -> None:
        self._net.remember(key, image)

    def forget(self, key: int) -> None:
        self._net.forget(key)

    @torch.no_grad()
    def start(self, call: ControlCall) -> ResidualStream:
        recording = self._recording(call)
        with self._beside():
            residuals = recording.replay(call)
            return _EventStream(residuals, len(call.tensors["sample"]), self._event())

    def close(self) -> None:
        """Drop the CUDA graphs."""
        self._calls.clear()

    def _recording(self, call: ControlCall) -> _CapturedCalls:
        num_rows = num_padded(len(call.tensors["sample"]), ROW_SIZES)
        is_silent = self._prepared.packed.is_silent(call.tensors["encoder_hidden_states"])
        kind = num_rows, is_silent, tuple((name, tensor.shape[1:]) for name, tensor in call.tensors.items())
        if kind not in self._calls:
            self._calls[kind] = _CapturedCalls(self._net, self._prepared, call, num_rows, self._pool)
        return self._calls[kind]

    def _beside(self) -> AbstractContextManager[Any]:
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(cuda.current_stream())  # inputs are ready, and the last residuals were read
        beside: AbstractContextManager[Any] = cuda.stream(self._stream)
        return beside

    def _event(self) -> Any:
        if self._stream is None:
            return None
        event = cuda.Event()
        event.record()
        return event


class _EventStream:
    """Residuals that are valid once the event has completed."""

    def __init__(self, residuals: Tensors, num_rows: int, event: Any) -> None:
        self._residuals, self._num_rows, self._event = residuals, num_rows, event

    def take(self, number: int) -> torch.Tensor:
        if self._event is not None:
            self._event.wait()  # the stream that reads waits, not this thread
            self._event = None
        return self._residuals[number][: self._num_rows]


class _CapturedCalls:
    """The calls of one shape: static buffers, and the captured pass over them."""

    def __init__(self, net: ControlNet, prepared: PreparedNetwork, call: ControlCall, num_rows: int, pool: Any) -> None:
        self._net, self._packed = net, prepared.packed
        embedded = net.embedded(call.images)
        self._buffers = StaticBuffers({**call.tensors, "embedded": embedded}, num_rows)
        self._inputs = dict(self._buffers.tensors)
        self._embedded = self._inputs.pop("embedded")
        self._text = prepared.packed.blocks(self._inputs["encoder_hidden_states"])
        self._is_silent = prepared.packed.is_silent(call.tensors["encoder_hidden_states"])
        self._seen: tuple[list[torch.Tensor], tuple[int, ...]] = ([], ())
        self._fill(call)
        self._pass: CapturedPass = capture(self._compute, embedded.device, pool)

    def replay(self, call: ControlCall) -> Tensors:
        """All residuals in decoder order, for all rows of the buffers."""
        self._fill(call)
        return self._pass.replay(lambda: None)

    def _fill(self, call: ControlCall) -> None:
        lasting = {name: tensor for name, tensor in call.tensors.items() if name not in CHANGING}
        self._buffers.fill({name: call.tensors[name] for name in CHANGING})
        old, images = self._seen
        if len(old) != len(lasting) or any(a is not b for a, b in zip(old, lasting.values(), strict=True)):
            self._buffers.fill(lasting)
            self._packed.project(self._inputs["encoder_hidden_states"], self._text)
        if images != call.images:
            self._buffers.fill({"embedded": self._net.embedded(call.images)})
        self._seen = list(lasting.values()), call.images

    def _compute(self, at_seam: Callable[[], None]) -> Tensors:
        self._packed.attach(self._text, self._is_silent)
        return self._net.compute(self._inputs, self._embedded)
