"""LoRA files in every style, with random numbers, for the layers of a tiny pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from takeup.serving.diffusion.addons.lora.targets import LayerId, layers_of

__all__ = ["ATTENTION", "LAYERS", "factors", "kohya", "original", "peft_style", "save"]

ATTENTION = "mid_block.attentions.0.transformer_blocks.0.attn1"
LAYERS = (
    f"{ATTENTION}.to_q",
    f"{ATTENTION}.to_out.0",
    "mid_block.attentions.0.proj_in",
    "mid_block.attentions.0.transformer_blocks.0.ff.net.0.proj",
    "down_blocks.0.resnets.0.conv1",
    "down_blocks.1.resnets.0.conv_shortcut",
    "down_blocks.1.attentions.1.transformer_blocks.1.attn2.to_k",
    "up_blocks.0.attentions.0.transformer_blocks.0.attn2.to_v",
    "up_blocks.0.resnets.1.time_emb_proj",
)
"""Linear layers, and convolutions with kernels of one and of nine."""

Tensors = dict[str, torch.Tensor]


def factors(pipeline: Any, layers: Iterable[LayerId], rank: int = 4, seed: int = 0) -> dict[LayerId, tuple[Any, Any]]:
    """Down and up of every layer, large enough to be seen in the image."""
    modules, random = layers_of(pipeline), torch.Generator().manual_seed(seed)
    made = {}
    for layer in layers:
        shape = modules[layer].weight.shape
        down = torch.randn(rank, *shape[1:], generator=random) * 0.2
        up = torch.randn(shape[0], rank, *[1] * (len(shape) - 2), generator=random) * 0.2
        made[layer] = down, up
    return made


def peft_style(changes: Mapping[LayerId, tuple[Any, Any]]) -> Tensors:
    """As diffusers saves them: `unet.PATH.lora_A.weight`."""
    tensors = {}
    for (component, path), (down, up) in changes.items():
        tensors[f"{component}.{path}.lora_A.weight"] = down
        tensors[f"{component}.{path}.lora_B.weight"] = up
    return tensors


def kohya(
    changes: Mapping[LayerId, tuple[Any, Any]], alpha: float = 2.0, names: Mapping[str, str] | None = None
) -> Tensors:
    """As kohya saves them: underscores, and an alpha for every layer; `names` replaces paths."""
    prefixes = {"unet": "lora_unet_", "text_encoder": "lora_te1_", "text_encoder_2": "lora_te2_"}
    tensors: Tensors = {}
    for (component, path), (down, up) in changes.items():
        spelled = (names or {}).get(path, path)
        name = prefixes[component] + spelled.replace(".", "_")
        tensors |= {
            f"{name}.lora_down.weight": down,
            f"{name}.lora_up.weight": up,
            f"{name}.alpha": torch.tensor(alpha),
        }
    return tensors


def original(path: str) -> str:
    """Names of the original Stable Diffusion code for `LAYERS`, written down by hand (two resnets a block)."""
    block, middle = "transformer_blocks", "middle_block_1"
    return {
        f"{ATTENTION}.to_q": f"{middle}_{block}_0_attn1_to_q",
        f"{ATTENTION}.to_out.0": f"{middle}_{block}_0_attn1_to_out_0",
        "mid_block.attentions.0.proj_in": f"{middle}_proj_in",
        "mid_block.attentions.0.transformer_blocks.0.ff.net.0.proj": f"{middle}_{block}_0_ff_net_0_proj",
        "down_blocks.0.resnets.0.conv1": "input_blocks_1_0_in_layers_2",
        "down_blocks.1.resnets.0.conv_shortcut": "input_blocks_4_0_skip_connection",
        "down_blocks.1.attentions.1.transformer_blocks.1.attn2.to_k": f"input_blocks_5_1_{block}_1_attn2_to_k",
        "up_blocks.0.attentions.0.transformer_blocks.0.attn2.to_v": f"output_blocks_0_1_{block}_0_attn2_to_v",
        "up_blocks.0.resnets.1.time_emb_proj": "output_blocks_1_0_emb_layers_1",
    }[path]


def save(tensors: Tensors, path: Path, **metadata: str) -> Path:
    """Write the file."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata or None)
    return path
