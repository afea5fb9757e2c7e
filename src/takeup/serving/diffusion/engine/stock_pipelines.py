"""Any pipeline of diffusers in the step engine: its own code runs, and only its calls of the denoiser are shared.

How it works. Each request runs the `__call__` of a shallow copy of the pipeline in a separate thread. The copy has its
scheduler to itself and a proxy of the denoiser: when the pipeline calls it, the thread waits while the step engine
makes the call, together with those of other requests whose arguments fit. So prompts, noise, guidance and schedule are
those of stock, also for pipelines that diffusers gains later. The image is decoded in the same thread, once the step
loop has released the request.

Arguments are shared by rule, not by knowledge of a network: what has one entry for each row is concatenated; everything
else, and token positions (`*_ids`, `*_shapes`), must be equal in value. The first shared call of a kind is compared
with separate calls; if they differ by more than rounding, calls of this kind are never shared.
"""

import copy
import inspect
import logging
import queue
import re
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as trees

from takeup.errors import BadInput
from takeup.serving.diffusion.contract import AddOn, BatchRows, DenoisingRun, digest
from takeup.serving.diffusion.engine.sampling import options_of
from takeup.serving.diffusion.execution.convolutions import DeviceAndDtype, device_and_dtype
from takeup.serving.model import Request

LOG = logging.getLogger("takeup.serving")
DENOISERS = ("transformer", "transformer_2", "unet")
MAY_BE_UNUSED = {"true_guidance": "true_cfg_scale"} | {
    name: name for name in ("guidance_rescale", "negative_prompt", "strength")
}
"""Fields of a request by what pipelines call them."""
MOST_CHECKED = 4096
POSITIONS = re.compile(r"(_ids|_shapes|_lens|_sizes?)$")

# One call of a denoiser, and which calls can be made together ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NetworkCall:
    """A call that a pipeline makes: the network, and its arguments by name or position."""

    network: Any
    arguments: Mapping[str | int, Any]

    @property
    def num_rows(self) -> int:
        """Entries of the first tensor or list of tensors."""
        return next((len(value) for value in self.arguments.values() if _has_rows(value)), 1)

    def kind(self, digest_of: Callable[[torch.Tensor], Hashable]) -> Hashable:
        """Equal for calls that may be made as one."""
        rows, named = self.num_rows, self.arguments.items()
        return id(self.network), tuple((name, _kind(str(name), value, rows, digest_of)) for name, value in named)

    def __call__(self) -> Any:
        named = {name: value for name, value in self.arguments.items() if isinstance(name, str)}
        return self.network(*[value for name, value in self.arguments.items() if isinstance(name, int)], **named)


def by_place_or_name(arguments: Sequence[Any], named: Mapping[str, Any]) -> dict[str | int, Any]:
    """The arguments of a call in one mapping."""
    merged: dict[str | int, Any] = dict(enumerate(arguments))
    return merged | dict(named)


def _has_rows(value: Any) -> bool:
    return (isinstance(value, torch.Tensor) and value.ndim > 1) or _is_list_of_tensors(value)


def _is_list_of_tensors(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, torch.Tensor) for each in value)


def _kind(name: str, value: Any, rows: int, digest_of: Callable[[torch.Tensor], Hashable]) -> Hashable:
    if isinstance(value, dict):
        return tuple((each, _kind(each, inner, rows, digest_of)) for each, inner in value.items())
    if isinstance(value, torch.Tensor):
        is_shared = not _is_by_row(value, rows) or POSITIONS.search(name) is not None
        return value.shape[1:], value.dtype, digest_of(value) if is_shared else None
    if _is_list_of_tensors(value):
        is_shared = len(value) != rows
        return tuple((each.shape, each.dtype, digest_of(each) if is_shared else None) for each in value)
    if isinstance(value, tuple):
        return tuple(_kind(name, each, 0, digest_of) for each in value)
    return repr(value)


def _is_by_row(value: Any, rows: int) -> bool:
    """Whether an argument has one entry for each row."""
    if isinstance(value, torch.Tensor):
        return value.ndim > 0 and len(value) == rows
    return isinstance(value, list) and len(value) == rows


def together(calls: Sequence[NetworkCall]) -> NetworkCall:
    """One call for several of one kind."""
    joined = {name: _joined([call.arguments[name] for call in calls], calls[0].num_rows) for name in calls[0].arguments}
    return NetworkCall(calls[0].network, joined)


def _joined(values: Sequence[Any], rows: int) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return {name: _joined([value[name] for value in values], rows) for name in first}
    if not _is_by_row(first, rows):
        return first
    return torch.cat(list(values)) if isinstance(first, torch.Tensor) else [each for value in values for each in value]


def rows_of(output: Any, start: int, end: int, total: int) -> Any:
    """The part of an output that belongs to some of `total` rows."""

    def part(value: Any) -> Any:
        return value[start:end] if _is_by_row(value, total) else value

    return trees.tree_map(part, output, is_leaf=lambda value: isinstance(value, list))


def _differ(ours: Any, theirs: Any) -> bool:
    """Whether two outputs differ by more than the rounding of their types."""
    return any(map(_is_another, trees.tree_leaves(ours), trees.tree_leaves(theirs)))


def _is_another(ours: Any, theirs: Any) -> bool:
    if not isinstance(theirs, torch.Tensor):
        return False
    tolerance = max(1e-4, 8 * torch.finfo(theirs.dtype).eps) if theirs.is_floating_point() else 0.0
    bound = tolerance * float(theirs.abs().max()) if theirs.numel() else 0.0
    return ours.shape != theirs.shape or bool(((ours - theirs).abs() > bound).any())


# A request in its own thread: the pipeline waits at each call of the denoiser -----------------------------------------


class _Stop(BaseException):
    """Ends the thread of a request that has left; no pipeline catches it."""


@dataclass(slots=True, eq=False)
class StockRun(DenoisingRun):
    """A request whose pipeline waits for its next call of the denoiser, for its decoding, or has ended."""

    call: NetworkCall | None = None
    result: Any = None
    output: Any = None
    is_decoding: bool = False
    kind: Hashable = None
    num_steps: Callable[[], int] = lambda: 0
    num_stepped: int = 0
    said: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    heard: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    digests: dict[int, tuple[torch.Tensor, Hashable]] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return self.call.num_rows if self.call else 1

    @property
    def is_done(self) -> bool:
        return self.call is None

    @property
    def timestep(self) -> torch.Tensor:
        return self.timesteps[0]

    def bucket(self) -> Hashable:
        return self.kind

    def scaled_latents(self) -> torch.Tensor:
        return torch.zeros(self.num_rows)

    def receive(self) -> None:
        """Wait until the pipeline calls its denoiser, wants to decode, or has ended."""
        said = self.said.get()
        if isinstance(said, BaseException):
            raise said
        self.call = said if isinstance(said, NetworkCall) else None
        self.kind = self.call.kind(self.digest_of) if self.call else None
        self.is_decoding = said is None
        self.result = said if said is not None and self.call is None else None
        num_calls = self.step + 1 + (self.call is not None)
        per_step = -(-self.step // self.num_stepped) if self.num_stepped else 1  # two with separate guidance calls
        self.timesteps = [self.timesteps[0]] * max(num_calls, per_step * (self.num_steps() or self.request.num_steps))

    def digest_of(self, tensor: torch.Tensor) -> Hashable:
        """The digest of a tensor; pipelines pass the same positions in every step."""
        known = self.digests.get(id(tensor))
        if known is None or known[0] is not tensor:
            if len(self.digests) > 64:
                self.digests.clear()
            known = self.digests[id(tensor)] = tensor, digest(tensor)
        return known[1]

    # In the thread of the pipeline ------------------------------------------------------------------------------------

    def ask(self, call: NetworkCall | None) -> Any:
        """Say what is wanted and wait for it."""
        self.said.put(call)
        answer = self.heard.get()
        if answer is _Stop:
            raise _Stop
        return answer

    def play(self, act: Callable[[], Any]) -> None:
        """Run the pipeline to its end."""
        try:
            self.said.put(act())
        except _Stop:
            pass
        except Exception as problem:
            self.said.put(problem)


class _HandOver:
    """In place of a scheduler: gives the output of the denoiser to the pipeline, and waits for what it does next."""

    def __init__(self, run: StockRun) -> None:
        self._run = run

    def step(self, *_: Any, **__: Any) -> tuple[torch.Tensor]:
        """Hand over the output."""
        self._run.heard.put(self._run.output)
        self._run.receive()
        return (self._run.latents,)


class _Proxy(torch.nn.Module):
    """Stands in for a network in the copy of a pipeline; what it does not do itself, the network does."""

    def __init__(self, network: Any, run: StockRun) -> None:
        super().__init__()
        self.__dict__["_real"], self.__dict__["_run"] = network, run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_real"], name)

    def parameters(self, recurse: bool = True) -> Iterator[torch.nn.Parameter]:
        """Those of the network."""
        found: Iterator[torch.nn.Parameter] = self._real.parameters(recurse)
        return found


class DenoiserProxy(_Proxy):
    """Calls of the denoiser go to the step engine."""

    def cache_context(self, name: str) -> AbstractContextManager[None]:
        """Step caches belong to a network, not to a request."""
        return nullcontext()

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Wait for the step engine to make the call."""
        return self._run.ask(NetworkCall(self._real, by_place_or_name(arguments, named)))


class DecoderProxy(_Proxy):
    """The image is decoded once the step loop has released the request."""

    def decode(self, *arguments: Any, **named: Any) -> Any:
        """Wait for the release, then decode."""
        self._run.ask(None)
        return self._real.decode(*arguments, **named)


def _counting(scheduler: Any, run: StockRun) -> Any:
    """The scheduler, which counts its steps in the run."""
    step = scheduler.step

    def counted(*arguments: Any, **named: Any) -> Any:
        run.num_stepped += 1
        return step(*arguments, **named)

    scheduler.step = counted
    return scheduler


# The family -----------------------------------------------------------------------------------------------------------


class StockPipeline:
    """A pipeline that is served through its own `__call__`; `checked` are the kinds of calls that may be shared."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self.encoding: AbstractContextManager[Any] = threading.RLock()
        self.add_ons: tuple[AddOn, ...] = (_Release(),)
        self.parameters = inspect.signature(type(pipeline).__call__).parameters
        self.options = tuple(self.parameters)
        self.unused = tuple(ours for ours, theirs in MAY_BE_UNUSED.items() if theirs not in self.parameters)
        self.checked: dict[Hashable, bool] = {}
        vae: Any = getattr(pipeline, "vae", None)
        if getattr(vae, "dtype", None) == torch.float16 and getattr(vae.config, "force_upcast", False):
            vae.to(torch.float32)  # pipelines convert it for every image, which is not safe in several threads

    @property
    def network(self) -> Any:
        return next((getattr(self.pipeline, name) for name in DENOISERS if hasattr(self.pipeline, name)), None)

    @property
    def where(self) -> DeviceAndDtype:
        """The device and dtype of the network."""
        return device_and_dtype(self.network)

    def prepare(self, request: Request, **inputs: Any) -> StockRun:
        """Start the pipeline's call, with further inputs such as an image; returns at the first denoiser call."""
        run = StockRun(request, torch.zeros(1), None, [torch.zeros(())], {})
        run.scheduler = _HandOver(run)
        own = self._copy(run)
        run.num_steps = lambda: int(getattr(own, "_num_timesteps", 0) or 0)
        named = {**self._arguments(request), **inputs}
        threading.Thread(target=run.play, args=(lambda: own(**named),), name="pipeline", daemon=True).start()
        try:
            run.receive()
        except (ValueError, TypeError) as problem:  # how pipelines refuse inputs
            takes_image = "image" in self.parameters and "image" not in inputs
            advice = "it takes an image: send the request as an edit" if takes_image else "change it accordingly"
            raise BadInput(f"the pipeline refuses this request ({problem}); {advice}") from problem
        return run

    def encode(self, request: Request) -> dict[str, torch.Tensor]:
        """Prompts are encoded in the pipeline's own call."""
        return {}

    @torch.no_grad()
    def predict(self, rows: BatchRows) -> torch.Tensor:
        """Make the calls, and leave each request its output."""
        runs = [run for run in rows.runs if isinstance(run, StockRun)]
        if len(runs) == 1 or not self._is_shared(runs):
            for run in runs:
                assert run.call is not None
                run.output = run.call()
        return rows.sample

    def guide(self, run: DenoisingRun, prediction: torch.Tensor) -> torch.Tensor:
        return prediction

    def decode(self, run: DenoisingRun) -> torch.Tensor:
        """Let the pipeline decode its image, and wait for it."""
        assert isinstance(run, StockRun)
        if run.is_decoding:
            run.heard.put(None)
            run.receive()
        while run.call is not None or run.is_decoding:  # some pipelines decode in parts
            run.heard.put(run.call() if run.call else None)
            run.receive()
        images = _images_of(run.result)
        wanted = run.request.height_px, run.request.width_px
        if None not in wanted and images.shape[-2:] != wanted:
            made = f"{images.shape[-1]}x{images.shape[-2]}"
            raise BadInput(f"this pipeline made {made} pixels instead of {wanted[1]}x{wanted[0]}; ask for that size")
        return images

    def _copy(self, run: StockRun) -> Any:
        own = copy.copy(self.pipeline)
        parts = vars(own)
        for name in DENOISERS:
            if parts.get(name) is not None:
                parts[name] = DenoiserProxy(parts[name], run)
        if getattr(own, "scheduler", None) is not None:
            parts["scheduler"] = _counting(copy.deepcopy(own.scheduler), run)
        if hasattr(getattr(own, "vae", None), "decode"):
            parts["vae"] = DecoderProxy(own.vae, run)
        if hasattr(own, "encode_prompt"):
            parts["encode_prompt"] = self._alone(own.encode_prompt)
        return own

    def _alone(self, encode: Callable[..., Any]) -> Callable[..., Any]:
        """Tokenizers are not safe to use from several threads."""

        def encoded(*arguments: Any, **named: Any) -> Any:
            with self.encoding:
                return encode(*arguments, **named)

        return encoded

    def _arguments(self, request: Request) -> dict[str, Any]:
        """The arguments of the pipeline's call, as far as it takes them."""
        if request.scheduler is not None:
            raise BadInput(f"the scheduler of a {type(self.pipeline).__name__} is fixed; leave out 'scheduler'")
        offered = {
            "prompt": request.prompt,
            "negative_prompt": request.negative_prompt,
            "num_inference_steps": request.num_steps,
            "guidance_scale": request.guidance if self._takes_guidance else None,
            "true_cfg_scale": request.true_guidance,
            "guidance_rescale": request.guidance_rescale or None,
            "height": request.height_px,
            "width": request.width_px,
            "generator": torch.Generator("cpu").manual_seed(request.seed),
            "output_type": "pt",
            **options_of(request, self.options),
        }
        return {name: value for name, value in offered.items() if name in self.parameters and value is not None}

    @property
    def _takes_guidance(self) -> bool:
        """Whether the guidance scale has an effect: in some families only for networks distilled with it."""
        default = getattr(self.parameters.get("guidance_scale"), "default", None)
        return default is not None or bool(getattr(self.network.config, "guidance_embeds", False))

    def _is_shared(self, runs: list[StockRun]) -> bool:
        """Make one call for all, unless calls of this kind cannot be shared; the first one of a kind is checked."""
        calls = [run.call for run in runs if run.call is not None]
        kind = calls[0].kind(lambda _: None)  # shapes and types; values are compared when calls are grouped
        if self.checked.get(kind) is False:
            return False
        try:
            output = together(calls)()
        except (RuntimeError, ValueError, TypeError, IndexError) as problem:
            LOG.warning("calls of %s are made one by one: %s", type(calls[0].network).__name__, problem)
            self.checked[kind] = False
            return False
        ends = np.cumsum([call.num_rows for call in calls])
        for run, call, end in zip(runs, calls, ends.tolist(), strict=True):
            run.output = rows_of(output, end - call.num_rows, end, int(ends[-1]))
        return self.checked.get(kind) or self._check(kind, runs)

    def _check(self, kind: Hashable, runs: list[StockRun]) -> bool:
        if len(self.checked) > MOST_CHECKED:
            self.checked.clear()
        shared = [run.output for run in runs]
        alone = [run.call() for run in runs if run.call is not None]
        self.checked[kind] = not any(_differ(ours, theirs) for ours, theirs in zip(shared, alone, strict=True))
        if not self.checked[kind]:
            LOG.warning("calls of %s are made one by one: together they differ", type(self.network).__name__)
        return self.checked[kind]


class _Release(AddOn):
    """Ends the thread of a request that leaves before its end."""

    def joined(self, run: DenoisingRun) -> None:
        if run.request.controls or (run.request.loras and "loras" not in run.extras):
            raise BadInput("ControlNets, and LoRAs without an add-on for them, are not served here; leave them out")

    def left(self, run: DenoisingRun) -> None:
        if isinstance(run, StockRun) and run.call is not None:
            run.heard.put(_Stop)


def _images_of(result: Any) -> torch.Tensor:
    """Images as numbers from 0 to 1, channels first, from what a pipeline returned."""
    images: Any = getattr(result, "images", result[0] if isinstance(result, tuple) else result)
    if isinstance(images, torch.Tensor):
        return images
    if isinstance(images, list) and images and isinstance(images[0], torch.Tensor):
        return torch.stack(images)
    pixels = np.stack([np.asarray(image) for image in images])
    numbers = torch.from_numpy(pixels).movedim(-1, 1)
    return numbers / 255 if numbers.dtype == torch.uint8 else numbers
