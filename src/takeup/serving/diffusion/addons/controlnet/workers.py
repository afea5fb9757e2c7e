"""ControlNet calls and the workers that compute them: inline (on first use), in a thread, or in a separate process.

The denoiser adds residuals in its decoder: first that of the mid block, then those of the skips from the last to the
first. So residuals are numbered in *decoder order*: 0 is the mid block, 1 the last skip, and so on. Starting a call on
a worker returns a *stream*, from which residuals are taken in this order; taking one blocks for that one only, so the
decoder starts when the first few have arrived. Several workers run concurrently. The death of a process is detected
when a residual is taken from it.
"""

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image

from takeup.errors import TakeupError
from takeup.serving.diffusion.execution.convolutions import device_and_dtype

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
#
# The denoiser adds residuals in its decoder: first that of the mid block, then those of the skips from the last to the
# first. So residuals are numbered in *decoder order*: 0 is the mid block, 1 the last skip, and so on. Workers send them
# in this order, and the decoder starts when the first few have arrived.


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

    @property
    def knows(self) -> set[int]:
        """The keys of the registered images."""
        return set(self._images)

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


# ControlNet workers: inline (on first use), in a separate thread, or in a separate process ----------------------------
#
# Starting a call on a worker returns a *stream*, from which residuals are taken in decoder order; taking one blocks for
# that one only. Several workers run concurrently. The death of a process is detected when a residual is taken from it.


class WorkerDied(TakeupError):
    """The process of a ControlNet has died."""


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


class InlineWorker:
    """Computes in the calling thread, when the first residual is taken."""

    def __init__(self, module: Any) -> None:
        self.net = ControlNet(module)

    def remember(self, key: int, image: torch.Tensor) -> None:
        self.net.remember(key, image)

    def forget(self, key: int) -> None:
        self.net.forget(key)

    def start(self, call: ControlCall) -> ResidualStream:
        return _FutureStream(lambda: self.net.residuals(call))

    def close(self) -> None:
        """No-op: nothing is running."""


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


class ProcessWorker:
    """Computes in a separate process. Inputs and residuals are in shared memory.

    Tensors are shared once for every set of shapes; after that only control messages are sent: "compute", and "residual
    3 is ready". Answers carry the number of their call, because a caller that failed may have left some of them unread.
    """

    def __init__(self, module: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=run_worker_process, args=(theirs, module), daemon=True)
        self._process.start()
        theirs.close()
        self._inputs: dict[str, torch.Tensor] = {}
        self._residuals: list[torch.Tensor] = []
        self._num_calls = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def remember(self, key: int, image: torch.Tensor) -> None:
        self._send(("remember", key, image))

    def forget(self, key: int) -> None:
        with suppress(WorkerDied):  # a dead worker holds no images
            self._send(("forget", key))

    def start(self, call: ControlCall) -> ResidualStream:
        if not _same_shapes(self._inputs, dict(call.tensors)):
            self._inputs = {name: _shared(tensor) for name, tensor in call.tensors.items()}
            self._send(("inputs", self._inputs))
        else:
            for name, tensor in call.tensors.items():
                self._inputs[name].copy_(tensor)
        self._num_calls += 1
        self._send(("compute", self._num_calls, call.images))
        return _PipeStream(self._receive, self._num_calls, self._residuals)

    def close(self) -> None:
        self._line.close()
        self._process.join()

    def _send(self, message: object) -> None:
        try:
            self._line.send(message)
        except (OSError, ValueError) as problem:
            raise WorkerDied(f"the process of a ControlNet is gone ({problem}); it is computed here") from problem

    def _receive(self) -> Any:
        try:
            return self._line.recv()
        except (EOFError, OSError) as problem:
            raise WorkerDied("the process of a ControlNet died while it computed; it is computed here") from problem


class _PipeStream:
    """A stream that delivers one residual at a time."""

    def __init__(self, receive: Callable[[], Any], call: int, residuals: list[torch.Tensor]) -> None:
        self._receive, self._call, self._residuals = receive, call, residuals
        self._num_there = 0

    def take(self, number: int) -> torch.Tensor:
        while self._num_there <= number:
            self._hear(*self._receive())
        return self._residuals[number]

    def _hear(self, call: int, answer: Any) -> None:
        if isinstance(answer, list):  # new shapes: new shared-memory residual buffers
            self._residuals[:] = answer
        elif call != self._call:
            return
        elif isinstance(answer, Exception):
            raise answer
        else:
            self._num_there = answer + 1


def _shared(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in shared memory."""
    copy: torch.Tensor = tensor.detach().contiguous().clone().share_memory_()  # type: ignore[no-untyped-call]
    return copy


def _same_shapes(old: dict[str, torch.Tensor], new: dict[str, torch.Tensor]) -> bool:
    def described(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}

    return described(old) == described(new)


def run_worker_process(line: Connection, module: Any) -> None:
    """Main loop of a ControlNet process: handle messages until the pipe is closed."""
    torch.set_num_threads(1)
    desk = _WorkerState(line, ControlNet(module))
    while True:
        try:
            desk.hear(line.recv())
        except (EOFError, OSError):
            return


class _WorkerState:
    """The state of the worker process between messages."""

    def __init__(self, line: Connection, net: ControlNet) -> None:
        self._line, self._net = line, net
        self._inputs: dict[str, torch.Tensor] = {}
        self._shared: list[torch.Tensor] = []

    def hear(self, message: tuple[Any, ...]) -> None:
        """Handle one message."""
        word, *arguments = message
        if word == "inputs":
            (self._inputs,) = arguments
        elif word == "compute":
            self._compute(*arguments)
        else:
            getattr(self._net, word)(*arguments)

    def _compute(self, call: int, images: tuple[int, ...]) -> None:
        try:
            residuals = self._net.residuals(ControlCall(self._inputs, images))
        except Exception as problem:
            self._line.send((call, TakeupError(f"a ControlNet failed: {problem}")))
            return
        if [one.shape for one in residuals] != [one.shape for one in self._shared]:
            self._shared = [_shared(one) for one in residuals]
            self._line.send((call, self._shared))
        for number, (shared, residual) in enumerate(zip(self._shared, residuals, strict=True)):
            shared.copy_(residual)
            self._line.send((call, number))
