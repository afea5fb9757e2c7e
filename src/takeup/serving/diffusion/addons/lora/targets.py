"""The layers of a pipeline that a LoRA can change, and all names used for them in files.

Files name a layer by its path in diffusers (`unet.mid_block.attentions.0.proj_in`), by the same with underscores
(`lora_unet_mid_block_attentions_0_proj_in`), or by that of the original Stable Diffusion code
(`lora_unet_middle_block_1_proj_in`). Text encoders are named with and without `text_model`. Rather than translating
names by rules that may guess wrong, all names of all layers are enumerated, so a name is known or it is not.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

LayerId = tuple[str, str]
"""The component, such as `unet`, and the path of the layer in it."""

Layer = torch.nn.Linear | torch.nn.Conv2d

DENOISERS = ("unet", "transformer")
TEXT_ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")
PREFIXES = {
    "unet": ("lora_unet_", "lycoris_", "lora_transformer_"),
    "transformer": ("lora_transformer_", "lora_unet_", "lycoris_"),
    "text_encoder": ("lora_te_", "lora_te1_"),
    "text_encoder_2": ("lora_te2_",),
    "text_encoder_3": ("lora_te3_",),
}
NAMES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("layer_names.toml").read_text("utf-8"))


@dataclass(frozen=True, slots=True)
class LoraTargets:
    """Shapes of the layers of a pipeline, and their names. Small, so it can be sent to another process.

    `fused` names layers of the original code that are several layers in diffusers.
    """

    base: str
    shapes: Mapping[LayerId, tuple[int, ...]]
    names: Mapping[str, LayerId] = field(repr=False)
    fused: Mapping[str, tuple[LayerId, ...]] = field(repr=False, default_factory=dict)

    @classmethod
    def of(cls, pipeline: Any, *, has_text: bool = True) -> LoraTargets:
        """All linear and convolutional layers of the denoiser, and of the text encoders unless they are left out."""
        layers = {layer: module for layer, module in layers_of(pipeline).items() if has_text or layer[0] in DENOISERS}
        shapes = {layer: tuple(module.weight.shape) for layer, module in layers.items()}
        names: dict[str, LayerId] = {}
        for layer in shapes:
            for name in _names(layer, shapes):
                names.setdefault(name, layer)
        fused = {}
        for name, parts in _flux_names(shapes):
            if len(parts) > 1:
                fused[name] = parts
            else:
                names.setdefault(name, parts[0])
        return cls(type(pipeline).__name__, shapes, names, fused)


def _flux_names(shapes: Mapping[LayerId, tuple[int, ...]]) -> Iterator[tuple[str, tuple[LayerId, ...]]]:
    """Names in files for layers of the original Flux code, and the layers of diffusers they consist of."""
    paths = {path for component, path in shapes if component == "transformer"}
    if not any(path.startswith("single_transformer_blocks.") for path in paths):
        return
    for name, parts in _original_flux(paths):
        if all(part in paths for part in parts):
            layers = tuple(("transformer", part) for part in parts)
            yield from ((spelling, layers) for spelling in (name, f"diffusion_model.{name}", _kohya(name)))


def _original_flux(paths: Collection[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield from ((name, (part,)) for name, part in NAMES["flux_outside"].items())
    for number in range(len(paths)):
        double, single = f"transformer_blocks.{number}", f"single_transformer_blocks.{number}"
        if f"{double}.norm1.linear" not in paths and f"{single}.norm.linear" not in paths:
            return
        for name, parts in NAMES["flux_double"].items():
            placed = tuple(f"{double}.{part}" for part in parts)
            yield f"double_blocks.{number}.{name}", placed
            if name in NAMES["xlabs"]:
                yield f"double_blocks.{number}.{NAMES['xlabs'][name]}", placed
        for name, parts in NAMES["flux_single"].items():
            yield f"single_blocks.{number}.{name}", tuple(f"{single}.{part}" for part in parts)
        yield f"single_blocks.{number}.proj", (f"{single}.proj_out",)
        yield f"single_blocks.{number}.qkv", tuple(f"{single}.attn.to_{part}" for part in "qkv")


def _kohya(name: str) -> str:
    return "lora_unet_" + name.replace(".", "_")


def layers_of(pipeline: Any) -> dict[LayerId, Layer]:
    """The layers themselves."""
    components = {name: getattr(pipeline, name, None) for name in (*DENOISERS, *TEXT_ENCODERS)}
    return {
        (component, name): module
        for component, network in components.items()
        if network is not None
        for name, module in network.named_modules()
        if isinstance(module, Layer)
    }


def _names(layer: LayerId, shapes: Mapping[LayerId, tuple[int, ...]]) -> Iterator[str]:
    component, path = layer
    for spelling in _spellings(component, path):
        yield f"{component}.{spelling}"
        if component in DENOISERS:
            yield from (spelling, f"diffusion_model.{spelling}")
        for prefix in PREFIXES[component]:
            yield prefix + spelling.replace(".", "_")
    if component == "unet":
        original = _original_name(path, shapes)
        yield from (prefix + original for prefix in PREFIXES["unet"] if original)


def _spellings(component: str, path: str) -> Iterator[str]:
    """The path; for text encoders with and without `text_model`, and with old names of their projections."""
    if component in DENOISERS:
        yield path
        return
    bare = path.removeprefix("text_model.")
    for spelling in (path, bare, f"text_model.{bare}"):
        yield spelling
        head, _, last = spelling.rpartition(".")
        if last in NAMES["old_text"]:
            yield f"{head}.{NAMES['old_text'][last]}"


def _original_name(path: str, shapes: Mapping[LayerId, tuple[int, ...]]) -> str:
    """The layer's name in the original Stable Diffusion code; empty if it has none.

    There all blocks of a side are numbered consecutively: each resnet starts a new block, and an attention belongs to
    the block of its resnet.
    """
    if path in NAMES["outside_blocks"]:
        return str(NAMES["outside_blocks"][path])
    match = re.fullmatch(r"(down_blocks|up_blocks)\.(\d+)\.(\w+?)\.(\d+)\.(.+)", path)
    if match is None:
        return _original_middle(path)
    side, block, kind, number, rest = match[1], int(match[2]), match[3], int(match[4]), match[5]
    resnets = 1 + max(int(one[2]) for one in _resnets(side, 0, shapes))
    per_block = resnets + (side == "down_blocks")  # a downsampler counts as a separate block
    first = block * per_block
    if kind == "downsamplers":
        return f"input_blocks_{first + per_block}_0_op"
    if kind == "upsamplers":
        has_attention = any(name.startswith(f"{side}.{block}.attentions.") for _, name in shapes)
        return f"output_blocks_{first + resnets - 1}_{1 + has_attention}_conv"
    whole = f"input_blocks_{1 + first + number}" if side == "down_blocks" else f"output_blocks_{first + number}"
    return _inside(whole, kind, rest)


def _original_middle(path: str) -> str:
    match = re.fullmatch(r"mid_block\.(resnets|attentions)\.(\d+)\.(.+)", path)
    if match is None:
        return ""
    number = 1 if match[1] == "attentions" else 2 * int(match[2])
    rest = str(NAMES["resnet"].get(match[3], match[3])) if match[1] == "resnets" else match[3]
    return f"middle_block_{number}_{rest.replace('.', '_')}"


def _inside(block: str, kind: str, rest: str) -> str:
    if kind == "resnets":
        return f"{block}_0_{NAMES['resnet'].get(rest, rest)}"
    return f"{block}_1_{rest.replace('.', '_')}"


def _resnets(side: str, block: int, shapes: Mapping[LayerId, tuple[int, ...]]) -> Iterator[re.Match[str]]:
    pattern = re.compile(rf"({side})\.{block}\.resnets\.(\d+)\.conv1")
    return (found for _, name in shapes if (found := pattern.fullmatch(name)))
