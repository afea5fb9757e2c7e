"""Masked calls of U-Nets and of Flux for CUDA-graph capture, and the choice of the one for a network.

U-Nets: masked convolutions whose transformers compute in place (`unet_blocks`). Flux: the same computation as with
hooks, with fewer kernels. AdaLN modulations of time and prompt are computed when an edit begins (`Modulations`).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn.functional import linear

from takeup.serving.diffusion.contract import DenoisingRun, GraphBuffers
from takeup.serving.diffusion.execution.executors import PreparedNetwork
from takeup.serving.diffusion.execution.ops import token_attention
from takeup.serving.diffusion.execution.unet_blocks import advance_block
from takeup.serving.diffusion.execution.weight_stacks import WeightStacks
from takeup.serving.editing.masked.graph_calls import GraphCall, MaskedBatch, like_all
from takeup.serving.editing.masked.kv_cache import (
    ColumnTables,
    FluxCache,
    IndexTables,
    TokenTables,
    UnetCache,
    write_tokens,
)
from takeup.serving.editing.masked.masked_convolutions import (
    MaskedConvolutions,
    column,
    supports_masked_convolutions,
    tokens_of,
)
from takeup.serving.editing.masked.tokens import MAP, NORM, OUT, Grid, TokenIndices
from takeup.serving.editing.masked.transformer_blocks import Modulations, rotate

# Masked U-Net calls for CUDA-graph capture: columns (`columns`) whose transformers compute in place (`lean`) ----------


class UnetGraphCall(GraphCall):
    """One kind of masked call of a U-Net."""

    def __init__(self, prepared: PreparedNetwork, masked: MaskedBatch) -> None:
        assert isinstance(masked.tables, ColumnTables)
        tables, device = masked.tables.copied(), prepared.network.device
        like = like_all(masked.pages(), device, frozenset())
        kept = {name: one for name, one in like.items() if not name.endswith((MAP, NORM))}
        self._prepared = prepared
        self._kept = [UnetCache(like, tables, flat) for flat in masked.memory.flats(kept)]
        self._columns = _InPlaceConvolutions(prepared.network, self._kept[0])
        super().__init__(tables, self._kept, masked.memory)

    @contextmanager
    def computing(self, number: int) -> Iterator[None]:
        """Inside, the network computes masked pixels and reads cached activations from buffer `number`."""
        self._columns.source = self._kept[number]
        with self._prepared.plain():
            self._columns.put()
            try:
                yield
            finally:
                self._columns.remove()


class _InPlaceConvolutions(MaskedConvolutions):
    """Columns whose transformers compute in place."""

    def _transformer(self, name: str, module: Any, sample: torch.Tensor, *_: Any, **__: Any) -> Any:
        source: Any = self.source
        tokens = linear(tokens_of(module.norm(sample)), module.proj_in.weight.flatten(1), module.raised_bias)
        for number, block in enumerate(module.transformer_blocks):
            key, value = (source.views[f"{name}.{number}.{part}"] for part in "kv")
            places = source.tables.places[key.shape[1]].flat
            advance_block(block, tokens, partial(_cached_attention, key, value, places))
        out = linear(tokens, module.proj_out.weight.flatten(1), module.proj_out.bias)
        return (column(out) + sample,)


def _cached_attention(
    key: torch.Tensor, value: torch.Tensor, places: torch.Tensor, module: Any, packed: Any
) -> torch.Tensor:
    """Attention of masked tokens to all tokens; their new keys and values overwrite the cached ones."""
    num_rows, num_tokens, _ = packed.shape
    parts = packed.view(num_rows * num_tokens, 3, -1)
    write_tokens(key, places, parts[:, 1])
    write_tokens(value, places, parts[:, 2])
    heads = (num_rows, -1, module.heads, parts.shape[2] // module.heads)
    attended: torch.Tensor = token_attention(*(part.reshape(heads) for part in (parts[:, 0], key, value)))
    return attended


def can_bind_columns(prepared: PreparedNetwork) -> bool:
    """Whether all blocks of the network are supported here, and compute in place."""
    network, lean = prepared.network, prepared.lean
    if lean is None or not supports_masked_convolutions(network):
        return False
    return all(one in lean.modules for one in network.modules() if type(one).__name__ == "Transformer2DModel")


# Masked Flux calls for CUDA-graph capture: the same computation as with hooks, with fewer kernels ---------------------
#
# Blocks read their tensors from attributes of their modules, so that equal blocks share compiled code, which is
# compiled for a dynamic number of tokens. AdaLN modulations of time and prompt are computed when an edit begins
# (`modulations`).

SLOT = "modulations"
PROJECTIONS = {"packed_qkv": ("to_q", "to_k", "to_v"), "packed_text": ("add_q_proj", "add_k_proj", "add_v_proj")}
Layer = tuple[torch.Tensor, torch.Tensor | None]


class _CachedAttention:
    """Attention processor; reads `packed_qkv`, `packed_text`, `kept_{k,v,places,turns}` of the module."""

    _attention_backend = None
    _parallel_config = None

    def __call__(
        self,
        module: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: Any = None,
    ) -> Any:
        query, key, value = _split(hidden_states, module.packed_qkv, module.head_dim)
        query, key = module.norm_q(query), module.norm_k(key)
        if encoder_hidden_states is not None:
            text_query, text_key, text_value = _split(encoder_hidden_states, module.packed_text, module.head_dim)
            query = torch.cat([module.norm_added_q(text_query), query], dim=1)
            key = torch.cat([module.norm_added_k(text_key), key], dim=1)
            value = torch.cat([text_value, value], dim=1)
        query, key = rotate(query, module.kept_turns), rotate(key, module.kept_turns)
        write_tokens(module.kept_k, module.kept_places, key)
        write_tokens(module.kept_v, module.kept_places, value)
        attended = token_attention(query, module.kept_k, module.kept_v)
        if encoder_hidden_states is None:
            return attended
        num_text = encoder_hidden_states.shape[1]
        return module.to_out[0](attended[:, num_text:]), module.to_add_out(attended[:, :num_text])


class FluxGraphCall(GraphCall):
    """One kind of masked call of Flux."""

    def __init__(self, prepared: PreparedNetwork, masked: MaskedBatch) -> None:
        assert isinstance(masked.tables, TokenTables)
        network, tables = prepared.network, masked.tables.copied()
        pages, num_text = masked.pages(), tables.num_text
        like = like_all(pages, network.device, frozenset(pages[0]) - {OUT}, num_text)
        self._kept = [FluxCache(flat, num_text) for flat in masked.memory.flats(like)]
        self._network, self._own = network, tables.own.flat
        self._modulations = Modulations(network, len(tables.own.by_row))
        self._blocks = [*network.transformer_blocks, *network.single_transformer_blocks]
        self._compiled = {  # recompile blocks of static shape with dynamic shapes
            one: torch.compile(one._call_impl, dynamic=True, fullgraph=True)
            for one in self._blocks
            if one._compiled_call_impl is not None
        }
        fixed = {"kept_places": tables.behind.flat, "kept_turns": tables.turns}
        self._fixed = [fixed | _packed(prepared.stacks, network, block.attn) for block in self._blocks]
        super().__init__(tables, self._kept, masked.memory)

    def fill(self, masked: MaskedBatch) -> int:
        """Load cached activations and norm modulations of the step; return the buffer number."""
        first = 0
        for run in masked.runs:
            self._modulations.show(self._numbers(run, masked)[run.step], first)
            first += run.num_rows
        return super().fill(masked)

    @contextmanager
    def computing(self, number: int) -> Iterator[None]:
        """Inside, the network computes masked tokens and reads cached activations from buffer `number`."""
        views, processors = self._kept[number].flat.views, dict(self._network.attn_processors)
        for place, (block, fixed) in enumerate(zip(self._blocks, self._fixed, strict=True)):
            block.attn.processor = _CachedAttention()
            vars(block.attn).update(fixed, kept_k=views[f"{place}.k"], kept_v=views[f"{place}.v"])
        hooks = [
            self._network.x_embedder.register_forward_hook(partial(_taken, self._own)),
            self._network.proj_out.register_forward_hook(partial(_given, views[OUT], self._own)),
        ]
        self._modulations.put()
        try:
            with _compiled_as(self._compiled):
                yield
        finally:
            self._modulations.remove()
            for hook in hooks:
                hook.remove()
            self._network.set_attn_processor(processors)
            for block, fixed in zip(self._blocks, self._fixed, strict=True):
                for name in (*fixed, "kept_k", "kept_v"):
                    del vars(block.attn)[name]

    def _numbers(self, run: DenoisingRun, masked: MaskedBatch) -> torch.Tensor:
        """Modulations for all steps of a run, cached; recomputed only if the weights change."""
        weights, numbers = run.extras.get(SLOT, (None, None))
        if numbers is None or weights != masked.weights:
            dtype = run.latents.dtype
            times = torch.stack([one.to(torch.float32) for one in run.timesteps]).to(dtype) / 1000
            inputs = {"hidden_states": run.latents, "timestep": times, **run.inputs}
            numbers = self._modulations.of(times.to(run.latents.device), inputs)
            run.extras[SLOT] = masked.weights, numbers
        found: torch.Tensor = numbers
        return found


@contextmanager
def _compiled_as(compiled: dict[Any, Any]) -> Iterator[None]:
    """Inside, these blocks use the given compiled functions."""
    usual = {block: block._compiled_call_impl for block in compiled}
    for block, call in compiled.items():
        block._compiled_call_impl = call
    try:
        yield
    finally:
        for block, call in usual.items():
            block._compiled_call_impl = call


def _packed(stacks: WeightStacks, network: Any, attention: Any) -> dict[str, Layer | None]:
    """Fused QKV weights, one matmul instead of three: a view where the weights are contiguous, else a copy."""
    path = next(path for path, one in network.named_modules() if one is attention)
    found: dict[str, Layer | None] = {}
    for name, parts in PROJECTIONS.items():
        layers = [getattr(attention, part, None) for part in parts]
        found[name] = None if layers[0] is None else _joined(stacks, [f"{path}.{part}" for part in parts], layers)
    return found


def _joined(stacks: WeightStacks, paths: list[str], layers: list[Any]) -> Layer:
    bias = None if layers[0].bias is None else torch.cat([layer.bias.detach() for layer in layers])
    if stacks.are_neighbours(tuple(paths)):
        return stacks.rows(paths[0], len(paths)), bias
    return torch.cat([layer.weight.detach() for layer in layers]), bias


def _split(tokens: torch.Tensor, layer: Layer, head_dim: int) -> tuple[torch.Tensor, ...]:
    packed = linear(tokens, *layer)
    return packed.view(*packed.shape[:2], 3, -1, head_dim).unbind(2)


def _taken(places: torch.Tensor, module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return output.reshape(-1, output.shape[-1]).index_select(0, places).view(len(output), -1, output.shape[-1])


def _given(out: torch.Tensor, places: torch.Tensor, module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    write_tokens(out, places, output)
    return out


def can_bind_tokens(prepared: PreparedNetwork) -> bool:
    """Whether this is Flux and all its attention processors are those of diffusers."""
    network = prepared.network
    if type(network).__name__ != "FluxTransformer2DModel":
        return False
    blocks = (*network.transformer_blocks, *network.single_transformer_blocks)
    stock = (getattr(block.attn.processor, "stock", block.attn.processor) for block in blocks)
    return all(type(one).__name__ == "FluxAttnProcessor" for one in stock)


# Select the CUDA-graph implementation of masked calls for a network, if there is one ----------------------------------


def can_bind(prepared: PreparedNetwork) -> bool:
    """Whether masked calls of this network can be captured as CUDA graphs."""
    return can_bind_columns(prepared) or can_bind_tokens(prepared)


def tables_for(
    network: Any, places: Mapping[int, TokenIndices], size: Grid, shared: Mapping[str, torch.Tensor], multiple: int
) -> IndexTables:
    """Token positions of a call; `shared` are the inputs that all its rows share."""
    if "img_ids" in shared:
        return TokenTables(network, places, shared)
    return ColumnTables(places, size, multiple)


def bind(prepared: PreparedNetwork, masked: MaskedBatch) -> GraphBuffers:
    """Buffers and forwards for masked calls of this kind."""
    return (
        FluxGraphCall(prepared, masked) if isinstance(masked.tables, TokenTables) else UnetGraphCall(prepared, masked)
    )
