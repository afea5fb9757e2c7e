"""FP8 matmuls: faster on devices that support them, but the image changes.

The widest matmuls of a network (queries, keys and values, feed-forward layers) are computed in FP8: weights with one
scale for all layers of a stack, inputs unscaled, since after a norm they are near one. The 16-bit weights remain
authoritative: LoRAs are merged into those, and `refresh` rounds them again. This is off by default and must pass the
quality gate.
"""

import re
from contextlib import AbstractContextManager
from types import MethodType
from typing import Any

import torch

from takeup.serving.diffusion.execution.convolutions import ReplacedForwards
from takeup.serving.diffusion.execution.weight_stacks import WeightStacks

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max
FP8_LAYERS = re.compile(
    r"(attn1\.to_[qkv]|attn2\.to_q|ff(_context)?\.net\.(0\.proj|2))$"
    r"|transformer_blocks\.\d+\.(attn\.(to_[qkv]|add_[qkv]_proj|to_out\.0|to_add_out)|proj_mlp|proj_out)$"
)
GRAIN = 16  # FP8 matmuls require multiples of this


class Fp8Layers:
    """A network whose widest matmuls are computed in FP8."""

    def __init__(self, network: Any, stacks: WeightStacks) -> None:
        self._stacks = [stack for stack in stacks.stacks if _fits(stack)]
        self._blocks = [torch.empty_like(stack.block, dtype=FP8) for stack in self._stacks]
        self._scales = [torch.ones((), device=stack.block.device) for stack in self._stacks]
        modules = dict(network.named_modules())
        forwards = {}
        for stack, block, scale in zip(self._stacks, self._blocks, self._scales, strict=True):
            for number, path in enumerate(stack.paths):
                if FP8_LAYERS.search(path):
                    _bind(modules, path, block, number, scale)
                    forwards[modules[path]] = MethodType(_linear, modules[path])
        self.refresh()
        self._forwards = ReplacedForwards(forwards)

    @torch.no_grad()
    def refresh(self) -> None:
        """Quantize the current weights; call it when they changed."""
        for stack, block, scale in zip(self._stacks, self._blocks, self._scales, strict=True):
            scale.copy_(stack.block.abs().amax().float().clamp(min=1e-12) / LARGEST)
            for weight, rounded in zip(stack.block, block, strict=True):
                rounded.copy_((weight.float() / scale).to(FP8))

    def separate(self) -> AbstractContextManager[None]:
        """Inside, layers compute with their 16-bit weights, as hooks on layers require."""
        return self._forwards.separate()


def _bind(modules: Any, path: str, block: torch.Tensor, number: int, scale: torch.Tensor) -> None:
    module, owner = modules[path], modules[path.rpartition(".")[0]]
    module.eight_weight, module.eight_scale = block[number], scale
    module.eight_input_scale = torch.ones_like(scale)
    if path.endswith("attn1.to_q") and hasattr(owner, "packed_qkv"):
        owner.eight_qkv = block[number : number + 3].flatten(0, 1), module.eight_input_scale, scale


def fp8_matmul(
    x: torch.Tensor, weight: torch.Tensor, scales: tuple[torch.Tensor, torch.Tensor], bias: torch.Tensor | None = None
) -> torch.Tensor:
    """`x` rounded to FP8, times an FP8 weight; `scales` are those of both."""
    rounded = x.clamp(-LARGEST, LARGEST).to(FP8).flatten(0, -2)
    if x.is_cuda:
        found = torch._scaled_mm(rounded, weight.t(), *scales, bias=bias, out_dtype=x.dtype, use_fast_accum=True)
    else:
        found = (rounded.float() @ weight.float().t() * scales[1]).to(x.dtype)
        found = found if bias is None else found + bias
    return found.view(*x.shape[:-1], weight.shape[0])


def _linear(self: Any, x: torch.Tensor) -> torch.Tensor:
    return fp8_matmul(x, self.eight_weight, (self.eight_input_scale, self.eight_scale), self.bias)


def _fits(stack: Any) -> bool:
    return any(FP8_LAYERS.search(path) for path in stack.paths) and not any(size % GRAIN for size in stack.shape)
