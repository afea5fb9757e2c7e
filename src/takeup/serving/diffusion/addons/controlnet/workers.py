"""ControlNet calls and the workers that compute them: in a thread, or in a CUDA stream.

The denoiser adds residuals in its decoder: first that of the mid block, then those of the skips from the last to the
first. So residuals are numbered in *decoder order*: 0 is the mid block, 1 the last skip, and so on. Starting a call on
a worker returns a *stream*, from which residuals are taken in this order; taking one blocks for that one only, so the
decoder starts when the first few have arrived. Several workers run concurrently.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image

from takeup.serving.diffusion.execution.convolutions import device_and_dtype
from takeup.serving.diffusion.execution.cuda_graph import (
    CapturedPass,
    StaticBuffers,
    Tensors,
    capture,
    cuda,
    num_padded,
)
from takeup.serving.diffusion.execution.executors import ROW_SIZES, CudaGraphExecutor, PreparedNetwork

# Control images preprocessed as in diffusers, except that they are converted to floats on the device ------------------


def control_image(picture: Any, size: tuple[int, int], factor: int, net: Any) -> torch.Tensor:
    """An image of this height and width, one row, values from 0 to 1. `factor`: pixels of one latent along a side.

    Converting a large image to floats on the host takes as long as half a step and would block the loop.
    """
    make = import_module("diffusers.image_processor").VaeImageProcessor
    processor = make(vae_scale_factor=factor, do_convert_rgb=True, do_normalize=False)
    device, dtype = device_and_dtype(net)
    if isinstance(picture, Image.Image):
        height, width = processor.get_default_height_width(picture, *size)
        fitting = processor.convert_to_rgb(processor.resize(picture, height, width))
        pixels = torch.from_numpy(np.array(fitting)).to(device)
        image: torch.Tensor = (pixels[None].float() / 255).permute(0, 3, 1, 2)
    else:
        image = processor.preprocess(picture, height=size[0], width=size[1])
    # Contiguous too: convolutions round differently for channels-last inputs, the layout of decoded images.
    return image.to(device, dtype).contiguous()


# One call of a ControlNet: its inputs, its computation, and the order in which its residuals are used -----------------


@dataclass(frozen=True, slots=True)
class ControlCall:
    """The rows of one step that one ControlNet acts on. `images`: the keys of their images, in order."""

    tensors: Mapping[str, torch.Tensor]
    images: tuple[int, ...]


class ControlNet:
    """A ControlNet and its registered images, each embedded once instead of once in every step."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self._embed = module.controlnet_cond_embedding
        self._images: dict[int, torch.Tensor] = {}

    @torch.no_grad()
    def remember(self, key: int, image: torch.Tensor) -> None:
        """Embed an image; `image` has a row for every row of the request, as in the calls that follow."""
        flipped = torch.flip(image, dims=[1]) if self._is_bgr() else image
        embedding = self._embed(flipped)
        # The module flips the channels of its input, so flip them once more here.
        self._images[key] = torch.flip(embedding, dims=[1]) if self._is_bgr() else embedding

    def forget(self, key: int) -> None:
        """Drop the embedding of this image."""
        self._images.pop(key, None)

    @torch.no_grad()
    def residuals(self, call: ControlCall) -> list[torch.Tensor]:
        """All residuals in decoder order, not scaled yet."""
        return self.compute(call.tensors, self.embedded(call.images))

    def embedded(self, images: Sequence[int]) -> torch.Tensor:
        """The embeddings of these images, concatenated along the batch dimension."""
        return torch.cat([self._images[key] for key in images])

    @torch.no_grad()
    def compute(self, inputs: Mapping[str, torch.Tensor], embedded: torch.Tensor) -> list[torch.Tensor]:
        """The same for images that are already embedded."""
        tensors = dict(inputs)
        added = {name: tensors.pop(name) for name in ("text_embeds", "time_ids") if name in tensors}
        self.module.controlnet_cond_embedding = torch.nn.Identity()
        try:
            skips, middle = self.module(
                **tensors,
                controlnet_cond=embedded,
                conditioning_scale=_UnitScale(),
                added_cond_kwargs=added or None,
                return_dict=False,
            )
        finally:
            self.module.controlnet_cond_embedding = self._embed
        return [middle, *reversed(skips)]

    def _is_bgr(self) -> bool:
        return bool(self.module.config.controlnet_conditioning_channel_order == "bgr")


class _UnitScale:
    """A scale of one that costs no pass over memory: ControlNets multiply all their outputs by the scale."""

    def __rmul__(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def scales_of(scale: float, num_residuals: int, guess_mode: bool) -> Sequence[float | torch.Tensor]:
    """The scale of every residual in decoder order; guess mode weakens those of the early skips."""
    if not guess_mode:
        return [scale] * num_residuals
    rising = torch.logspace(-1, 0, num_residuals) * scale
    return list(rising.flip(0))


# ControlNet workers: in a separate thread, or in a separate CUDA stream ---


class ResidualStream(Protocol):
    """The residuals of one call."""

    def take(self, number: int) -> torch.Tensor:
        """The residual of this number in decoder order; blocks until ready. Valid until the worker's next call."""


class ControlWorker(Protocol):
    """Computes one ControlNet."""

    def remember(self, key: int, image: torch.Tensor) -> None:
        """Register an image for later calls."""

    def forget(self, key: int) -> None:
        """Drop the image."""

    def start(self, call: ControlCall) -> ResidualStream:
        """Start computing without blocking."""

    def close(self) -> None:
        """Stop the worker."""


class ThreadWorker:
    """Computes in a separate thread, overlapping with the denoiser where the device or the CPU allows it."""

    def __init__(self, module: Any) -> None:
        self._net = ControlNet(module)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="controlnet")

    def remember(self, key: int, image: torch.Tensor) -> None:
        self._thread.submit(self._net.remember, key, image).result()

    def forget(self, key: int) -> None:
        self._thread.submit(self._net.forget, key)

    def start(self, call: ControlCall) -> ResidualStream:
        computing: Future[list[torch.Tensor]] = self._thread.submit(self._net.residuals, call)
        return _FutureStream(computing.result)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)


class _FutureStream:
    """A stream whose residuals all become available at once."""

    def __init__(self, compute: Callable[[], list[torch.Tensor]]) -> None:
        self._compute = compute
        self._residuals: list[torch.Tensor] | None = None

    def take(self, number: int) -> torch.Tensor:
        if self._residuals is None:
            self._residuals = self._compute()
        return self._residuals[number]


# ControlNets as CUDA graphs, each in a separate stream of the same device ---------------------------------------------
#
# A ControlNet captured as a CUDA graph is one launch, so all ControlNets of a call and the first half of the denoiser
# run concurrently, as far as the device has capacity. Residuals are read after an event, in decoder order.


CHANGING = ("sample", "timestep")


class StreamWorker:
    """Computes one ControlNet with the optimizations of `compute`. Without CUDA it is computed inline."""

    def __init__(self, module: Any, compute: CudaGraphExecutor) -> None:
        self._net = ControlNet(module)
        self._compute, self._prepared = compute, compute.prepared(module)
        self._calls: dict[Hashable, _CapturedCalls] = {}
        self._stream = cuda.Stream(module.device) if module.device.type == "cuda" else None
        self._pool = cuda.graph_pool_handle() if self._stream is not None else None

    def remember(self, key: int, image: torch.Tensor) -> None:
        self._net.remember(key, image)

    def forget(self, key: int) -> None:
        self._net.forget(key)

    @torch.no_grad()
    def start(self, call: ControlCall) -> ResidualStream:
        kind = self._kind(call)
        if kind not in self._calls:
            record = partial(self._record, kind, call, self._net.embedded(call.images))
            if self._compute.puts_off((id(self), kind), record):
                with self._prepared.plain():
                    return _FutureStream(partial(list, self._net.residuals(call)))
            record()
        with self._beside():
            residuals = self._calls[kind].replay(call)
            return _EventStream(residuals, len(call.tensors["sample"]), self._event())

    def close(self) -> None:
        """Drop the CUDA graphs."""
        self._calls.clear()

    def _kind(self, call: ControlCall) -> Hashable:
        is_silent = self._prepared.packed.is_silent(call.tensors["encoder_hidden_states"])
        sizes = tuple((name, tensor.shape[1:]) for name, tensor in call.tensors.items())
        return num_padded(len(call.tensors["sample"]), ROW_SIZES), is_silent, sizes

    def _record(self, kind: Any, call: ControlCall, embedded: torch.Tensor) -> None:
        self._calls[kind] = _CapturedCalls(self._net, self._prepared, call, embedded, kind[0], self._pool)

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

    def __init__(
        self,
        net: ControlNet,
        prepared: PreparedNetwork,
        call: ControlCall,
        embedded: torch.Tensor,
        num_rows: int,
        pool: Any,
    ) -> None:
        self._net, self._packed = net, prepared.packed
        self._buffers = StaticBuffers({**call.tensors, "embedded": embedded}, num_rows)
        self._inputs = dict(self._buffers.tensors)
        self._embedded = self._inputs.pop("embedded")
        self._text = prepared.packed.blocks(self._inputs["encoder_hidden_states"])
        self._is_silent = prepared.packed.is_silent(call.tensors["encoder_hidden_states"])
        self._seen: tuple[list[torch.Tensor], tuple[int, ...]] = ([], call.images)
        self._buffers.fill({"embedded": embedded})
        self._fill(call)
        self._pass: CapturedPass = capture(self._compute, embedded.device, pool)
        self._seen = ([], ())  # the image of the request may be gone

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
