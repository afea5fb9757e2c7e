"""Exact attention in several implementations: libraries, a Triton kernel of this package, split keys.

How it works. A device computes a block of queries of one head on each multiprocessor (SM). Few tokens are few blocks,
often just more than there are SMs, so that a second wave runs with most of them idle. Splitting the keys gives more,
smaller blocks: each part is attended separately, with its log-sum-exp, and the partial results are combined by these.
That is the same sum in another order.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from takeup.serving.engines.diffusers.device.choices import AUTOTUNER, Implementation, shape_key

ATTENTION_KERNELS = "takeup.serving.engines.diffusers.device.fast.attention"
FLASH_3 = "flash_attn_interface"
LIBRARIES: dict[str, tuple[Any, ...]] = {"cudnn": (None, False), "flash": (), "efficient": (None, False)}
"""What they are asked beside queries, keys and values: no bias, no logarithms."""
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
