"""Attention over packed weights: one matmul for queries, keys and values, and the text projected once for all layers.

The keys and values of cross-attention depend on the prompt and on the weights, not on the step. `project` computes
those of all layers with one batched matmul for each width, whenever one of the two changed. All of this is the same
mathematics with larger matmuls; rounding differs. A negative branch without a prompt is often all zeros (SDXL):
attention to it adds the output bias and nothing else, so that half of the rows need no matmul. Processors read their
tensors from the attention module, so that equal modules share compiled code.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import linear
from torch.utils.weak import WeakTensorKeyDictionary

from takeup.serving.diffusion.execution.fp8 import fp8_matmul
from takeup.serving.diffusion.execution.ops import self_attention, text_attention
from takeup.serving.diffusion.execution.weight_stacks import WeightStacks

TextBlocks = tuple[torch.Tensor, ...]
"""The keys and values of all layers, one tensor for each text stack: layers, rows, tokens, outputs."""


class SelfAttention:
    """Queries, keys and values by one matmul. Reads `module.packed_qkv`."""

    def __call__(self, module: Any, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        attended: torch.Tensor = self_attention(_projected(module, hidden_states), module.heads)
        projected: torch.Tensor = module.to_out[0](attended)
        return projected


def _projected(module: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    if hasattr(module, "eight_qkv"):
        weight, *scales = module.eight_qkv
        return fp8_matmul(hidden_states, weight, (scales[0], scales[1]))
    return linear(hidden_states, module.packed_qkv)


class TextAttention:
    """Cross-attention with precomputed keys and values. Reads `module.packed_text`: those of this layer.

    Where `module.is_silent` is set, these are of every second row, and the rows between attend to zeros.
    """

    def __call__(self, module: Any, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        heard = hidden_states[1::2] if module.is_silent else hidden_states
        attended: torch.Tensor = text_attention(module.to_q(heard), module.packed_text, module.heads)
        projected: torch.Tensor = module.to_out[0](attended)
        if not module.is_silent:
            return projected
        bias = module.to_out[0].bias
        silent = torch.zeros_like(projected) if bias is None else bias.expand_as(projected)
        return torch.stack([silent, projected], 1).flatten(0, 1)


class PackedAttention:
    """A network whose plain attention layers use stacked weights."""

    def __init__(self, network: Any, stacks: WeightStacks) -> None:
        self.stacks = stacks
        modules = dict(network.named_modules())
        self._self = [modules[path] for path in modules if path.endswith(".attn1") and self._fits(modules[path], path)]
        self._text = {
            path: modules[path] for path in modules if path.endswith(".attn2") and self._fits(modules[path], path)
        }
        for path, module in modules.items():
            if module in self._self:
                module.packed_qkv = stacks.rows(f"{path}.to_q", 3)
        self._original = {module: module.processor for module in (*self._self, *self._text.values())}
        self._silent: Any = WeakTensorKeyDictionary()
        self._use_packed()

    def blocks(self, text: torch.Tensor) -> TextBlocks:
        """Allocate buffers for the keys and values of a text of this shape."""
        num_rows, num_tokens, _width = text.shape
        shapes = [(len(stack.paths), num_rows, num_tokens, stack.shape[0]) for stack in self._text_stacks()]
        return tuple(text.new_zeros(shape) for shape in shapes)

    @torch.no_grad()
    def project(self, text: torch.Tensor, blocks: TextBlocks) -> None:
        """Compute the keys and values of all layers into `blocks`."""
        for stack, block in zip(self._text_stacks(), blocks, strict=True):
            every = text.flatten(0, 1).expand(len(stack.paths), -1, -1)
            torch.bmm(every, stack.block.transpose(1, 2), out=block.flatten(1, 2))

    def is_silent(self, text: torch.Tensor) -> bool:
        """Whether the first of every two rows of this text is nothing but zeros."""
        if text not in self._silent:
            self._silent[text] = len(text) % 2 == 0 and not bool(text[::2].any())
        return bool(self._silent[text])

    def attach(self, blocks: TextBlocks, is_silent: bool = False) -> None:
        """Make cross-attention read these blocks; with `is_silent`, rows 0, 2, 4, ... attend to zeros."""
        block_of = {id(stack): block for stack, block in zip(self._text_stacks(), blocks, strict=True)}
        for path, module in self._text.items():
            place = self.stacks.places[f"{path}.to_k"]
            block = block_of[id(self.stacks.stacks[place.stack])]
            module.packed_text = block[place.number : place.number + 2, is_silent :: 1 + is_silent]
            module.is_silent = is_silent

    @contextmanager
    def unpacked(self) -> Iterator[None]:
        """Inside, every layer is called separately, as hooks on layers require."""
        for module, processor in self._original.items():
            module.processor = processor
        try:
            yield
        finally:
            self._use_packed()

    def _use_packed(self) -> None:
        for module in self._self:
            module.processor = SelfAttention()
        for module in self._text.values():
            module.processor = TextAttention()

    def _text_stacks(self) -> list[Any]:
        return [stack for stack in self.stacks.stacks if stack.is_text]

    def _fits(self, module: Any, path: str) -> bool:
        """Whether it computes like the plain processor: no extra norms, masks or residual connections, no biases."""
        plain = type(module.processor).__name__ == "AttnProcessor2_0" and module.rescale_output_factor == 1
        others = ("group_norm", "spatial_norm", "norm_q", "norm_k", "norm_cross")
        plain = plain and not module.residual_connection and all(getattr(module, name) is None for name in others)
        names = ("to_q", "to_k", "to_v") if path.endswith(".attn1") else ("to_k", "to_v")
        plain = plain and all(getattr(module, name).bias is None for name in names)
        return bool(plain and self.stacks.are_neighbours(tuple(f"{path}.{name}" for name in names)))
