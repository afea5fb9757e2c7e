"""Operations with CUDA kernels, autotuned where there are several; on other devices the reference implementation.

Attention is exact, by libraries, a Triton kernel of this package, or split keys.
"""

# mypy: disable-error-code="untyped-decorator"

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch.nn.functional import gelu, group_norm, linear, scaled_dot_product_attention, silu
from torch.nn.functional import layer_norm as plain_layer_norm

from takeup.serving.diffusion.execution.autotune import AUTOTUNER, Implementation, shape_key

# Weighted sums of tensors in one pass over memory on CUDA; plain torch elsewhere --------------------------------------

SUM_KERNELS = "takeup.serving.diffusion.execution.kernels.feature_maps"


def weighted_sum(into: torch.Tensor, sources: Sequence[torch.Tensor], scales: Sequence[float]) -> None:
    """Overwrite `into` with the sum of `sources`, each times its scale; zeros if there are none."""
    if into.is_cuda and _can_sum(into, sources):
        import_module(SUM_KERNELS).add_up(into, sources, scales)
        return
    into.zero_()
    for source, scale in zip(sources, scales, strict=True):
        into.add_(source, alpha=scale)


def _can_sum(into: torch.Tensor, sources: Sequence[torch.Tensor]) -> bool:
    """Whether the Triton kernel applies: equal strides, no gaps, at most `MOST_SOURCES` tensors."""
    has_no_gaps = into.is_contiguous() or (into.ndim == 4 and into.is_contiguous(memory_format=torch.channels_last))
    alike = all(one.shape == into.shape and one.stride() == into.stride() for one in sources)
    return has_no_gaps and alike and 0 < len(sources) <= import_module(SUM_KERNELS).MOST_SOURCES


# Norms and matmuls of a transformer block, each autotuned on CUDA; plain torch elsewhere ------------------------------
#
# A separate gate reads back what the matmul has just written; fused, it is not written at all. Whether that is faster
# is measured, not assumed. Matmuls without a gate are left to libraries: custom tiles were no faster.

KERNELS = "takeup.serving.diffusion.execution.kernels"
TILES = ((128, 128, 64, 8, 3, 1), (128, 64, 64, 4, 3, 2), (64, 64, 64, 4, 4, 3))
"""Rows, outputs and inputs of a tile, warps, stages, concurrent programs: see `Tile`."""

NORMED = ((2, 1), (2, 2), (4, 2), (4, 4))
"""How many tokens a program norms, with how many warps: with few, hardly any of them waits for another."""


def shifted_layer_norm(
    x: torch.Tensor, shift: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """The layer norm of `x` (rows, tokens, width) with `shift` added to every token."""
    given = x, shift, weight, bias, eps
    if not x.is_cuda:
        return _plain_norm(*given)
    ways: dict[str, Implementation] = {"as torch does": _plain_norm}
    ways |= {f"own, {tokens} at a time, {warps} warps": partial(_own_norm, tokens, warps) for tokens, warps in NORMED}
    return AUTOTUNER.way("norm", shape_key(x), ways, lambda: given)(*given)


def add_matmul(into: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
    """Add `x` times the weights to `into` (rows, tokens, outputs), whose rows need not be contiguous."""
    if into.is_contiguous():
        into.view(-1, into.shape[-1]).addmm_(x.reshape(-1, x.shape[-1]), weight.t())
    else:
        into.baddbmm_(x, weight.t().expand(len(into), -1, -1))


def geglu_matmul(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Half of the outputs, times the GELU of the other half."""
    given = x, weight, bias
    if not x.is_cuda:
        return _plain_gate(*given)
    ways: dict[str, Implementation] = {"as torch does": _plain_gate, "own gate": _gate_behind}
    ways |= {_tile_name(tile): partial(_tiled, tile) for tile in TILES if _tile_fits(tile, x, weight)}
    return AUTOTUNER.way("gate", shape_key(x, weight), ways, lambda: given)(*given)


# Reference implementations --------------------------------------------------------------------------------------------


def _plain_norm(
    x: torch.Tensor, shift: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    return plain_layer_norm((x + shift).to(x.dtype), x.shape[-1:], weight, bias, eps).contiguous()


def _plain_gate(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    value, gate = linear(x, weight, bias).chunk(2, dim=-1)
    return value * gelu(gate)


# Triton implementations -----------------------------------------------------------------------------------------------


def _own_norm(tokens: int, num_warps: int, *given: object) -> torch.Tensor:
    return _by_kernel("transformer", "layer_norm", *given, tokens, num_warps)


def _gate_behind(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return _by_kernel("transformer", "gated", linear(x, weight, bias))


def _tiled(tile: tuple[int, ...], *given: object) -> torch.Tensor:
    make = import_module(f"{KERNELS}.transformer").Tile
    return _by_kernel("transformer", "gated_product", *given, make(*tile))


def _by_kernel(module: str, name: str, *given: object) -> torch.Tensor:
    found: torch.Tensor = getattr(import_module(f"{KERNELS}.{module}"), name)(*given)
    return found


def _tile_fits(tile: tuple[int, ...], x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether the tile divides outputs and inputs; `x` and the weights must be contiguous."""
    num_out, num_in = len(weight) // 2, weight.shape[1]
    return x.is_contiguous() and weight.is_contiguous() and num_out % tile[1] == 0 and num_in % tile[2] == 0


def _tile_name(tile: tuple[int, ...]) -> str:
    return "own {}x{}x{}, {} warps, {} stages, {} concurrent".format(*tile)


# Exact attention in several implementations: libraries, a Triton kernel of this package, split keys -------------------
#
# How it works. A device computes a block of queries of one head on each multiprocessor (SM). Few tokens are few blocks,
# often just more than there are SMs, so that a second wave runs with most of them idle. Splitting the keys gives more,
# smaller blocks: each part is attended separately, with its log-sum-exp, and the partial results are combined by these.
# That is the same sum in another order.

ATTENTION_KERNELS = "takeup.serving.diffusion.execution.kernels.attention"
FLASH_3 = "flash_attn_interface"
LIBRARIES: dict[str, tuple[Any, ...]] = {"cudnn": (None, False), "flash": (), "efficient": (None, False)}
"""Their arguments after queries, keys and values: no bias, no logarithms."""
HEAD_WIDTHS, FEW_TOKENS, GRAIN = (16, 32, 64, 128), 1024, 128
PARTS = (2, 3, 4)
LEAST_PART = 256
"""Keys of a part, at least: below it joining costs more than it saves."""
TritonBlocks = tuple[int, int, int, int, int | None]
TRITON_BLOCKS: tuple[TritonBlocks, ...] = (
    (64, 128, 4, 2, None),
    (64, 64, 4, 2, None),
    (64, 64, 4, 2, 96),
    (64, 64, 4, 3, None),
)
"""Queries and keys of a block, warps, stages, registers of a thread at most. With few of these, five blocks share a
processor, and 640 of them (SDXL, 1024 tokens, two rows) run in one round on 132. So far the first was the fastest."""


def tuned_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Inputs: rows, tokens, heads, width. In the output, heads and width are flattened into one dimension."""
    if not query.is_cuda:
        return torch_attention(query, key, value)
    given = query, key, value
    return AUTOTUNER.way("attention", shape_key(*given), attention_implementations(query, key, value), lambda: given)(
        *given
    )


def attention_implementations(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> dict[str, Implementation]:
    """All implementations for such tensors by name, the default one first."""
    own = {
        _blocks_name(blocks): partial(_triton_attention, blocks)
        for blocks in TRITON_BLOCKS
        if fits_triton(query, key, value)
    }
    is_few = query.shape[1] == key.shape[1] <= FEW_TOKENS
    ways: dict[str, Implementation] = (
        {**own, "as torch does": torch_attention} if own and is_few else {"as torch does": torch_attention, **own}
    )
    ways |= {name: partial(_library_attention, name) for name in LIBRARIES}
    if find_spec(FLASH_3) is not None:
        ways[FLASH_3] = _by_flash_3
    return ways | {f"{parts} parts": partial(split_key_attention, parts) for parts in PARTS if _has_parts(key, parts)}


def torch_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The implementation that torch chooses."""
    asked, seen, said = (one.transpose(1, 2) for one in (query, key, value))
    return scaled_dot_product_attention(asked, seen, said).transpose(1, 2).flatten(2).contiguous()


def split_key_attention(num_parts: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Split the keys into `num_parts` parts, attend to each in parallel, and combine the partial results."""
    asked = query[:, None].expand(-1, num_parts, -1, -1, -1).flatten(0, 1)
    parts = (one.reshape(len(asked), -1, *one.shape[2:]) for one in (key, value))
    answers, logs = _with_logs(asked, *parts)
    if not query.is_cuda:
        return _joined(answers, logs, num_parts)
    joined: torch.Tensor = import_module(ATTENTION_KERNELS).joined(answers, logs, num_parts)
    return joined


def fits_triton(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether the Triton kernel supports these tensors: contiguous heads, a multiple of `GRAIN` keys."""
    width = query.shape[3]
    are_beside = all(one.stride(2) == width and one.stride(3) == 1 for one in (query, key, value))
    return are_beside and width in HEAD_WIDTHS and key.shape[1] % GRAIN == 0 and key.stride() == value.stride()


def _blocks_name(blocks: TritonBlocks) -> str:
    queries, keys, _, num_stages, most_registers = blocks
    return f"own {queries}x{keys}, {num_stages} stages" + (f", {most_registers} registers" if most_registers else "")


def _has_parts(key: torch.Tensor, num_parts: int) -> bool:
    return key.shape[1] % num_parts == 0 and key.shape[1] // num_parts >= LEAST_PART


def _triton_attention(
    blocks: TritonBlocks, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    found: torch.Tensor = import_module(ATTENTION_KERNELS).attention(query, key, value, blocks)
    return found


def _library_attention(library: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Calls the aten op directly: `sdpa_kernel` would affect all threads, some of which decode images."""
    heads = [one.transpose(1, 2) for one in (query, key, value)]
    attend: Any = getattr(torch.ops.aten, f"_scaled_dot_product_{library}_attention")
    answer: torch.Tensor = attend(*heads, *LIBRARIES[library])[0]
    return answer.transpose(1, 2).flatten(2).contiguous()


def _by_flash_3(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    found = import_module(FLASH_3).flash_attn_func(query, key, value)
    answer: torch.Tensor = found[0] if isinstance(found, tuple) else found
    return answer.flatten(2)


def _with_logs(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs (rows, tokens, heads, width), and the log-sum-exp of their weights (rows, heads, tokens)."""
    heads = [one.transpose(1, 2) for one in (query, key, value)]
    aten: Any = torch.ops.aten
    if query.is_cuda:
        answer, logs = aten._scaled_dot_product_cudnn_attention(*heads, None, True)[:2]
    else:
        answer, logs = aten._scaled_dot_product_flash_attention_for_cpu(*heads)[:2]
    return answer.transpose(1, 2), logs.reshape(answer.shape[:3])


def _joined(answers: torch.Tensor, logs: torch.Tensor, num_parts: int) -> torch.Tensor:
    """Reference implementation of `joined` in torch."""
    weights = logs.view(-1, num_parts, *logs.shape[1:]).softmax(1).transpose(2, 3)[..., None]
    weighted: torch.Tensor = answers.reshape(-1, num_parts, *answers.shape[1:]) * weights
    return weighted.sum(1).flatten(2).to(answers.dtype)


# Custom ops with CUDA kernels; on other devices the reference implementation is used ----------------------------------

TEXT_HEAD_WIDTHS, MOST_TEXT = (16, 32, 64, 128), 128

custom_op: Any = torch.library.custom_op  # whose decorators are not annotated


@custom_op("takeup::joined_norm", mutates_args=())
def joined_norm(
    image: torch.Tensor,
    skip: torch.Tensor | None,
    added: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor,
    num_groups: int,
    eps: float,
    has_silu: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Group norm of two concatenated images with `added` per channel, and their concatenation: empty without `skip`."""
    last = torch.channels_last
    joined = image.new_empty(0) if skip is None else torch.cat([image, skip], 1).contiguous(memory_format=last)
    whole = image if skip is None else joined
    shifted = whole if added is None else whole + added[:, :, None, None]
    normed = group_norm(shifted, num_groups, weight, bias, eps)
    return (silu(normed) if has_silu else normed).contiguous(memory_format=last), joined


@joined_norm.register_fake
def _(image: Any, skip: Any, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    num_channels = image.shape[1] + (0 if skip is None else skip.shape[1])
    shape = (image.shape[0], num_channels, *image.shape[2:])
    normed = torch.empty(shape, dtype=image.dtype, device=image.device).contiguous(memory_format=torch.channels_last)
    return normed, image.new_empty(0) if skip is None else torch.empty_like(normed)


@joined_norm.register_kernel("cuda")
def _(image: Any, skip: Any, *others: Any) -> tuple[torch.Tensor, torch.Tensor]:
    last = torch.channels_last
    second = None if skip is None else skip.contiguous(memory_format=last)
    found: tuple[torch.Tensor, torch.Tensor] = import_module(f"{KERNELS}.feature_maps").group_norm(
        image.contiguous(memory_format=last), second, *others
    )
    return found


@custom_op("takeup::text_attention", mutates_args=())
def text_attention(query: torch.Tensor, text: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Attention of `query` (rows, tokens, width) to `text`, the stacked keys and values."""
    num_rows, num_tokens, _width = query.shape
    heads = query.view(num_rows, num_tokens, num_heads, -1).transpose(1, 2)
    keys, values = text.view(2, num_rows, text.shape[2], num_heads, -1).transpose(2, 3)
    return scaled_dot_product_attention(heads, keys, values).transpose(1, 2).flatten(2).contiguous()


@text_attention.register_fake
def _(query: Any, text: Any, num_heads: int) -> torch.Tensor:
    shape: torch.Tensor = query.new_empty(query.shape)
    return shape


@text_attention.register_kernel("cuda")
def _(query: Any, text: Any, num_heads: int) -> torch.Tensor:
    width = query.shape[2] // num_heads
    if width not in TEXT_HEAD_WIDTHS or text.shape[2] > MOST_TEXT:
        plain: torch.Tensor = text_attention._init_fn(query, text, num_heads)
        return plain
    found: torch.Tensor = import_module(f"{KERNELS}.attention").text_attention(query.contiguous(), text, num_heads)
    return found


@custom_op("takeup::self_attention", mutates_args=())
def self_attention(packed: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Self-attention; queries, keys and values of all heads are concatenated in the last dimension."""
    return tuned_attention(*_unpacked(packed, num_heads))


@self_attention.register_fake
def _(packed: Any, num_heads: int) -> torch.Tensor:
    shape: torch.Tensor = packed.new_empty((*packed.shape[:2], packed.shape[2] // 3))
    return shape


@custom_op("takeup::token_attention", mutates_args=())
def token_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Attention over tensors of shape (rows, tokens, heads, width); the output flattens heads and width.

    A custom op, because compilers would otherwise fix the choice of a library when they first trace it.
    """
    return tuned_attention(query, key, value)


@token_attention.register_fake
def _(query: Any, key: Any, value: Any) -> torch.Tensor:
    shape: torch.Tensor = query.new_empty((*query.shape[:2], query.shape[2] * query.shape[3]))
    return shape


def _unpacked(packed: torch.Tensor, num_heads: int) -> tuple[torch.Tensor, ...]:
    num_rows, num_tokens, _width = packed.shape
    return packed.contiguous().view(num_rows, num_tokens, 3, num_heads, -1).unbind(2)
