"""Blocks of Flux in masked calls: rotary attention of a subset of tokens, and AdaLN modulations."""

from collections.abc import Mapping
from importlib import import_module
from types import MethodType
from typing import Any

import torch
from torch.nn.functional import linear, silu

from takeup.serving.editing.masked.tokens import HookState

# Flux attention for a subset of image tokens: queries of these and of the text, keys and values of all tokens ---------

RotaryTable = tuple[torch.Tensor, torch.Tensor]


class RotaryProcessor:
    """Attention processor that wraps `stock`, and delegates to it when nothing is masked or recorded.

    Double-stream blocks receive text and image separately, single-stream blocks one sequence, text first. The latter
    use the text length seen in the former.
    """

    _attention_backend = None
    _parallel_config = None

    def __init__(self, name: str, call: HookState, stock: Any) -> None:
        self.name, self.call, self.stock = name, call, stock

    def __call__(
        self,
        attn: Any,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        image_rotary_emb: RotaryTable | None = None,
    ) -> Any:
        if self.call.mode == "off":
            return self.stock(attn, hidden_states, encoder_hidden_states, attention_mask, image_rotary_emb)
        query, key, value = _projected(attn, hidden_states, encoder_hidden_states)
        num_text = self._num_text(encoder_hidden_states)
        if image_rotary_emb is not None:
            table = self._table(image_rotary_emb, num_text)
            query, key = rotate(query, table), rotate(key, table)
        key = self.call.fill(f"{self.name}.k", key, num_text).view(len(key), -1, *key.shape[2:])
        value = self.call.fill(f"{self.name}.v", value, num_text).view(len(key), -1, *key.shape[2:])
        attended = self._attend(query, key, value)
        if encoder_hidden_states is None:
            return attended
        text, image = attended[:, :num_text], attended[:, num_text:]
        return attn.to_out[1](attn.to_out[0](image.contiguous())), attn.to_add_out(text.contiguous())

    def _num_text(self, text: torch.Tensor | None) -> int:
        if text is not None:
            self.call.num_front = text.shape[1]
        return self.call.num_front

    def _table(self, table: RotaryTable, num_text: int) -> RotaryTable:
        """Rotary embeddings of the computed tokens."""
        if self.call.mode != "masked":
            return table[0][None], table[1][None]
        return self.call.turns(table, num_text)

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        attend = import_module("diffusers.models.attention_dispatch").dispatch_attention_fn
        backend = getattr(self.stock, "_attention_backend", None)
        attended: torch.Tensor = attend(query, key, value, backend=backend)
        return attended.flatten(2, 3).to(query.dtype)


def _projected(attn: Any, image: torch.Tensor, text: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    heads = (-1, attn.head_dim)
    query, key, value = (layer(image).unflatten(-1, heads) for layer in (attn.to_q, attn.to_k, attn.to_v))
    query, key = attn.norm_q(query), attn.norm_k(key)
    if text is None:
        return query, key, value
    others = (layer(text).unflatten(-1, heads) for layer in (attn.add_q_proj, attn.add_k_proj, attn.add_v_proj))
    text_query, text_key, text_value = others
    pairs = (attn.norm_added_q(text_query), query), (attn.norm_added_k(text_key), key), (text_value, value)
    return tuple(torch.cat(pair, dim=1) for pair in pairs)


def rotate(tokens: torch.Tensor, table: RotaryTable) -> torch.Tensor:
    """Apply rotary position embedding to adjacent pairs, as diffusers does, but with a table per batch row."""
    cosine, sine = (part[:, :, None, :] for part in table)
    real, imaginary = tokens.reshape(*tokens.shape[:-1], -1, 2).unbind(-1)
    crossed = torch.stack([-imaginary, real], dim=-1).flatten(3)
    return (tokens.float() * cosine + crossed.float() * sine).to(tokens.dtype)


# AdaLN modulations (scales and shifts) of Flux, precomputed for all steps of an edit at once --------------------------
#
# They depend on the step and the prompt, not on the image. Computing them for one step reads more than a quarter of all
# weights for one row each. The steps of an edit are known when it begins: one matmul per norm computes the rows of all
# steps, and every step reads its own from fixed memory. The results equal those of single steps up to rounding.

KINDS = frozenset({"AdaLayerNormZero", "AdaLayerNormZeroSingle", "AdaLayerNormContinuous"})


class Modulations:
    """Installed on a network from `put` to `remove`. Calls read the modulations set by the last `show`."""

    def __init__(self, network: Any, num_rows: int) -> None:
        self.network = network
        self._layers = [one.linear for one in network.modules() if type(one).__name__ in KINDS]
        weight = self._layers[0].weight
        sizes = [one.out_features for one in self._layers]
        self._now = torch.zeros(num_rows, sum(sizes), dtype=weight.dtype, device=weight.device)
        self._parts = torch.split(self._now, sizes, dim=1)

    @torch.no_grad()
    def of(self, timesteps: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Modulations of all steps, shape (steps, rows, numbers), from timesteps and inputs as passed to calls."""
        active = silu(embedded(self.network, timesteps, inputs))
        made = [linear(active, one.weight, one.bias) for one in self._layers]
        return torch.cat(made, dim=1).view(len(timesteps), len(active) // len(timesteps), -1)

    def show(self, numbers: torch.Tensor, first_row: int = 0) -> None:
        """Copy modulations to the buffer that calls read, from row `first_row` on."""
        self._now[first_row : first_row + len(numbers)].copy_(numbers)

    def put(self) -> None:
        """Replace the linear layers of the norms by reads of the buffer."""
        for one, part in zip(self._layers, self._parts, strict=True):
            one.kept_numbers = part
            one.__dict__["forward"] = MethodType(_kept, one)

    def remove(self) -> None:
        """Restore the linear layers of the norms."""
        for one in self._layers:
            if "forward" in vars(one):
                del one.forward, one.kept_numbers


def embedded(network: Any, timesteps: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Time and prompt embedding that norms receive, ordered by step, then row; as the network computes it."""
    pooled, dtype = inputs["pooled_projections"], inputs["hidden_states"].dtype
    each = timesteps.to(inputs["timestep"].dtype).repeat_interleave(len(pooled)).to(dtype) * 1000
    strengths = () if inputs.get("guidance") is None else (inputs["guidance"].repeat(len(timesteps)).to(dtype) * 1000,)
    found: torch.Tensor = network.time_text_embed(each, *strengths, pooled.repeat(len(timesteps), 1))
    return found


def _kept(self: Any, _embedding: torch.Tensor) -> torch.Tensor:
    """Replacement forward: return `kept_numbers` of the layer."""
    found: torch.Tensor = self.kept_numbers
    return found
