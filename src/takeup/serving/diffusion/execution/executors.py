"""Executors: the network is called eagerly, or as CUDA graphs."""

from __future__ import annotations

import gc
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, Protocol

import torch

from takeup.serving.diffusion.contract import BatchRows, Family
from takeup.serving.diffusion.execution.convolutions import FusedUpsampling, channels_last
from takeup.serving.diffusion.execution.cuda_graph import (
    CAPTURE_LOCK,
    NUM_WARM_UPS,
    CapturedPass,
    StaticBuffers,
    Tensors,
    Uncaptured,
    capture,
    capture_encoders,
    cuda,
    num_padded,
)
from takeup.serving.diffusion.execution.fp8 import Fp8Layers
from takeup.serving.diffusion.execution.packed_attention import PackedAttention
from takeup.serving.diffusion.execution.unet_blocks import FusedResidualBlocks, InPlaceTransformers
from takeup.serving.diffusion.execution.weight_stacks import WeightStacks, stack_layers

LOG = logging.getLogger(__name__)

# Compiled regions: the blocks that make up a network, each compiled once and shared by all equal blocks ---------------
#
# Compiling a whole network takes minutes and rules out hooks. Its blocks repeat, in ControlNets too, so compiling them
# is cheaper, and hooks between them still work. Compiled code reads weights in place: patching weights in place needs
# no recompilation.

DEFAULT_OPTIONS: dict[str, Any] = {"conv_1x1_as_mm": True, "triton.multi_kernel": 1}
"""Options of TorchInductor: 1x1 convolutions as products; norms in the faster of two ways, tried when first called."""

REGIONS = frozenset(
    {
        "Transformer2DModel",
        "ResnetBlock2D",
        "Upsample2D",
        "Downsample2D",
        "JointTransformerBlock",
        "FluxTransformerBlock",
        "FluxSingleTransformerBlock",
    }
)
MAX_SHAPES = 256


def compile_regions(network: Any, options: dict[str, Any], apart: Set[Any] = frozenset()) -> int:
    """Compile the regions of the network, except those in `apart`, on their first call. Returns their number."""
    dynamo = import_module("torch._dynamo").config
    dynamo.recompile_limit = max(dynamo.recompile_limit, MAX_SHAPES)
    dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, 4 * MAX_SHAPES)
    regions = [one for one in network.modules() if type(one).__name__ in REGIONS and one not in apart]
    for module in regions:
        module.compile(fullgraph=True, dynamic=False, options=options)
    return len(regions)


# Where residuals enter a U-Net: before each up block ------------------------------------------------------------------
#
# Nothing in the first half depends on a ControlNet. Residuals are numbered in decoder order: 0 belongs to the mid
# block, 1 to the last skip, and so on.

Source = Callable[[int, torch.Tensor], torch.Tensor]
"""The residual of this number, in the shape of the tensor it is added to."""


def num_residuals(network: Any) -> int:
    """How many residuals a U-Net takes."""
    return 1 + sum(len(block.resnets) for block in network.up_blocks)


@contextmanager
def residuals_added(network: Any, source: Source, at_seam: Callable[[], None] | None = None) -> Iterator[None]:
    """Inside, calls of the network add the residuals of `source`; `at_seam` is called before the first one is added."""
    hooks = []
    first = 1
    for number, block in enumerate(network.up_blocks):
        numbers = range(first, first + len(block.resnets))
        hook = _adding(source, numbers, at_seam if number == 0 else None, with_middle=number == 0)
        hooks.append(block.register_forward_pre_hook(hook, with_kwargs=True))
        first = numbers.stop
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _adding(source: Source, numbers: range, at_seam: Callable[[], None] | None, with_middle: bool) -> Any:
    def add(block: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if at_seam is not None:
            at_seam()
        skips = list(named["res_hidden_states_tuple"])
        for place, number in enumerate(numbers, start=1):  # skips are used from the last to the first
            skips[-place] = skips[-place] + source(number, skips[-place])
        named["res_hidden_states_tuple"] = tuple(skips)
        if with_middle:
            named["hidden_states"] = named["hidden_states"] + source(0, named["hidden_states"])
        return args, named

    return add


# How the network is called: eagerly, or as CUDA graphs ----------------------------------------------------------------
#
# How it works. `CudaGraphExecutor` prepares a network once: linear weights move into stacks, convolutions become
# channels-last, blocks are compiled if requested. Then every kind of call (shapes, rows, residuals or none) is
# captured the first time it is made, for a number of rows from a short list; fewer rows are padded. What is constant
# between steps (the text, its keys and values) is not copied or computed again.

ROW_SIZES = (1, 2, 4, 6, 8, 12, 16)
MAX_STEPS_AHEAD = 2
MAX_EAGER_CALLS = 120
"""Of a kind that waits for an idle moment to be captured; then it is captured at once."""


class Executor(Protocol):
    """Calls networks for the step engine."""

    def prepare(self, family: Family) -> None:
        """Prepare the network of this family; called once, before the first call."""
        return

    def predict(self, family: Family, rows: BatchRows) -> torch.Tensor:
        """One call of the network, with the residuals that `rows` carries."""

    def pace(self) -> None:
        """Called after launching a step. Blocks if the device lags: new requests queue after all launched work."""
        return

    def idle(self) -> None:
        """Called when there are no requests."""
        return


class EagerExecutor(Executor):
    """Calls the network unmodified: on a CPU, or where results must be bit-identical to diffusers."""

    def predict(self, family: Family, rows: BatchRows) -> torch.Tensor:
        if rows.addon_inputs.residuals is None:
            return family.predict(rows)
        with residuals_added(family.network, rows.addon_inputs.residuals.total):
            return family.predict(rows)


@dataclass(slots=True)
class PreparedNetwork:
    """A network prepared for a device. `eight` computes in FP8, `lean` in place, if enabled."""

    network: Any
    stacks: WeightStacks
    packed: PackedAttention
    joined: FusedResidualBlocks
    quartered: FusedUpsampling
    eight: Fp8Layers | None = None
    lean: InPlaceTransformers | None = None
    _weights: Hashable = ()

    def follow(self, weights: Hashable) -> None:
        """Set the weights of the next call; if they changed, everything derived from them is recomputed."""
        if weights != self._weights:
            self.quartered.refresh()
            if self.eight is not None:
                self.eight.refresh()
        self._weights = weights

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Inside, every layer is called separately, as hooks on layers require."""
        eight, lean = (nullcontext() if one is None else one.separate() for one in (self.eight, self.lean))
        own = self.packed.unpacked(), self.joined.separate(), self.quartered.separate(), eight, lean
        with ExitStack() as stack:
            for one in (*own, torch.compiler.set_stance("force_eager")):
                stack.enter_context(one)
            yield


def prepare_network(
    network: Any, compile_options: Mapping[str, Any] | None = None, eight_bits: bool = False, is_lean: bool = True
) -> PreparedNetwork:
    """Stack, pack and lay out the weights of a network, once; compile its blocks if options are given."""
    stacks = stack_layers(channels_last(network))
    packed, joined = PackedAttention(network, stacks), FusedResidualBlocks(network, stacks if is_lean else None)
    quartered = FusedUpsampling(network)
    eight = Fp8Layers(network, stacks) if eight_bits else None
    lean = InPlaceTransformers(network) if is_lean and not eight_bits else None
    if compile_options is not None:
        compile_regions(network, dict(compile_options), frozenset() if lean is None else lean.modules)
    return PreparedNetwork(network, stacks, packed, joined, quartered, eight, lean)


class CudaGraphExecutor:
    """Executes calls as CUDA graphs. `compile_options` are those of TorchInductor; None disables compilation.

    With `eight_bits` the widest matmuls use FP8, which changes images. Otherwise transformer blocks compute in place,
    with custom kernels; with `is_lean=False` they are compiled like all others. With `eager_first` calls of a new kind
    are made eagerly until there are no requests: compiling and capturing would delay the first image of a size.
    """

    def __init__(
        self,
        compile_options: Mapping[str, Any] | None = None,
        max_kinds: int = 64,
        *,
        eight_bits: bool = False,
        is_lean: bool = True,
        eager_first: bool = False,
    ) -> None:
        self._compile_options, self._max_kinds = compile_options, max_kinds
        self._eager_first = eager_first
        self._put_off: dict[Hashable, Callable[[], object]] = {}
        self._num_eager: Counter[Hashable] = Counter()
        self._eight_bits, self._is_lean = eight_bits, is_lean
        self._prepared: dict[int, PreparedNetwork] = {}
        self._calls: OrderedDict[Hashable, _CapturedCall] = OrderedDict()
        self._sent: deque[Any] = deque()
        self._pool: Any = None

    def prepare(self, family: Family) -> None:
        self.prepared(family.network)
        capture_encoders(family.pipeline)

    def prepared(self, network: Any) -> PreparedNetwork:
        """The prepared network; prepared on first use."""
        if id(network) not in self._prepared:
            _autotune_convolutions(network.device)
            made = prepare_network(network, self._compile_options, self._eight_bits, self._is_lean)
            self._prepared[id(network)] = made
        return self._prepared[id(network)]

    @torch.no_grad()
    def predict(self, family: Family, rows: BatchRows) -> torch.Tensor:
        prepared = self.prepared(family.network)
        kind = self._kind(family, prepared, rows)
        record = partial(self._record, kind, family, prepared, replace(rows, runs=()))
        is_new = rows.addon_inputs.masked is None and kind not in self._calls
        if rows.addon_inputs.has_hooks or (is_new and self.puts_off(kind, record)):
            with prepared.plain(), CAPTURE_LOCK.shared():
                return EagerExecutor().predict(family, rows)
        prepared.follow(rows.addon_inputs.weights)
        return self._call(kind, record)(rows)

    def puts_off(self, kind: Hashable, record: Callable[[], object]) -> bool:
        """Whether a new kind of call is made eagerly now; then `record` is called when there are no requests."""
        if len(self._num_eager) > 16 * self._max_kinds:
            self._num_eager.clear()
        self._num_eager[kind] += 1
        if not self._eager_first or self._num_eager[kind] > MAX_EAGER_CALLS:
            self._put_off.pop(kind, None)
            return False
        self._put_off[kind] = record
        if len(self._put_off) > self._max_kinds:
            del self._put_off[next(iter(self._put_off))]
        return True

    @torch.no_grad()
    def idle(self) -> None:
        if self._put_off:
            try:
                self._put_off.pop(next(iter(self._put_off)))()
            except Exception as problem:  # it is tried again in a request, which then fails
                LOG.warning("a network call could not be captured: %s", problem)

    def pace(self) -> None:
        if not cuda.is_available() or not cuda.is_initialized():
            return
        event = cuda.Event()
        event.record()
        self._sent.append(event)
        if len(self._sent) > MAX_STEPS_AHEAD:
            self._sent.popleft().synchronize()

    def _kind(self, family: Family, prepared: PreparedNetwork, rows: BatchRows) -> Hashable:
        masked = rows.addon_inputs.masked
        is_silent = prepared.packed.is_silent(rows.inputs["encoder_hidden_states"])
        aided = rows.addon_inputs.residuals is not None, masked and masked.kind
        return id(family.network), _num_rows(rows), aided, is_silent, _shapes(rows)

    def _call(self, kind: Hashable, record: Callable[[], object]) -> _CapturedCall:
        if kind not in self._calls:
            record()
        self._calls.move_to_end(kind)
        return self._calls[kind]

    def _record(self, kind: Hashable, family: Family, prepared: PreparedNetwork, rows: BatchRows) -> None:
        made = self._calls[kind] = self._made(partial(_CapturedCall, family, prepared, rows, _num_rows(rows)))
        self._pool = self._pool if made.is_recorded else None
        while len(self._calls) > self._max_kinds:
            self._calls.popitem(last=False)

    def _made(self, make: Callable[[Any], _CapturedCall]) -> _CapturedCall:
        """Capture a call of a new kind; when out of memory, empty the cache, then drop all captured calls."""
        for relieve in (cuda.empty_cache, self._forget):
            try:
                return make(self._graph_pool())
            except torch.OutOfMemoryError:
                self._pool = None  # a failed capture leaves it unusable
            relieve()
        return make(self._graph_pool())

    def _graph_pool(self) -> Any:
        if self._pool is None and cuda.is_available():
            self._pool = cuda.graph_pool_handle()
        return self._pool

    def _forget(self) -> None:
        self._calls.clear()
        gc.collect()
        cuda.empty_cache()


def _num_rows(rows: BatchRows) -> int:
    return num_padded(len(rows.sample), ROW_SIZES) if rows.addon_inputs.masked is None else len(rows.sample)


def _autotune_convolutions(device: torch.device) -> None:
    """Enable cuDNN autotuning on CUDA: there are few shapes, and they are captured."""
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True


class _CapturedCall:
    """One kind of call: static input buffers, and the captured pass over them."""

    def __init__(self, family: Family, prepared: PreparedNetwork, rows: BatchRows, num_rows: int, pool: Any) -> None:
        self._family, self._packed = family, prepared.packed
        self._buffers = StaticBuffers({"sample": rows.sample, "timestep": rows.timestep, **rows.inputs}, num_rows)
        named = dict(self._buffers.tensors)
        self._shared = {name: tensor.clone() for name, tensor in rows.shared.items()}
        self._rows = BatchRows((), named.pop("sample"), named.pop("timestep"), named, self._shared)
        self._text = prepared.packed.blocks(named["encoder_hidden_states"])
        self._is_silent = prepared.packed.is_silent(rows.inputs["encoder_hidden_states"])
        self._residuals: dict[int, torch.Tensor] | None = None if rows.addon_inputs.residuals is None else {}
        masked = rows.addon_inputs.masked
        self._bound = None if masked is None else masked.bound(prepared)
        self._seen: tuple[Any, Any] = (None, None)
        self._fill(rows)
        if self._residuals is not None:
            self._compute(0, lambda: None)  # dry run, to learn the residual shapes
        if self._bound is not None:
            self._bound.fill(masked)  # autotuning compares results on this data
        num_places = 1 if self._bound is None else self._bound.num_places
        device = rows.sample.device
        self._passes: list[CapturedPass] = [
            capture(partial(self._compute, one), device, pool, 0 if one else NUM_WARM_UPS)  # warmed up by the first
            for one in range(num_places)
        ]
        if self._bound is not None:
            self._bound.forget()
        self._seen = (None, None)  # weights may have changed between the request and the capture

    @property
    def is_recorded(self) -> bool:
        return not any(isinstance(one, Uncaptured) for one in self._passes)

    def __call__(self, rows: BatchRows) -> torch.Tensor:
        """The prediction for these rows, in a tensor that later calls do not overwrite."""
        self._fill(rows)
        number = 0 if self._bound is None else self._bound.fill(rows.addon_inputs.masked)
        (prediction,) = self._passes[number].replay(lambda: self._take(rows))
        return prediction[: len(rows.sample)].clone()

    def _fill(self, rows: BatchRows) -> None:
        self._buffers.fill({"sample": rows.sample, "timestep": rows.timestep})
        inputs, weights = self._seen
        if rows.inputs is not inputs:
            self._buffers.fill(rows.inputs)
            for name, tensor in rows.shared.items():
                self._shared[name].copy_(tensor)
        if rows.inputs is not inputs or rows.addon_inputs.weights != weights:
            self._packed.project(self._rows.inputs["encoder_hidden_states"], self._text)
        self._seen = rows.inputs, rows.addon_inputs.weights

    def _compute(self, place: int, at_seam: Any) -> Tensors:
        self._packed.attach(self._text, self._is_silent)
        if self._bound is not None:
            with self._bound.computing(place):
                return (self._family.predict(self._rows),)
        if self._residuals is None:
            return (self._family.predict(self._rows),)
        with residuals_added(self._family.network, self._residual, at_seam):
            return (self._family.predict(self._rows),)

    def _residual(self, number: int, like: torch.Tensor) -> torch.Tensor:
        assert self._residuals is not None
        if number not in self._residuals:
            self._residuals[number] = torch.zeros_like(like)
        return self._residuals[number]

    def _take(self, rows: BatchRows) -> None:
        """At the seam between the two graphs: write the residuals of this step into their buffers."""
        assert rows.addon_inputs.residuals is not None
        assert self._residuals is not None
        ordered = [self._residuals[number] for number in range(len(self._residuals))]
        rows.addon_inputs.residuals.write([tensor[: len(rows.sample)] for tensor in ordered])


def _shapes(rows: BatchRows) -> Hashable:
    named = {"sample": rows.sample, **rows.inputs}
    shared = tuple((name, tensor.shape, tensor.dtype) for name, tensor in sorted(rows.shared.items()))
    return tuple((name, tensor.shape[1:], tensor.dtype) for name, tensor in sorted(named.items())), shared
