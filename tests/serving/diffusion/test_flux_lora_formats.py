"""LoRAs of Flux in the key formats of kohya, XLabs, BFL and ComfyUI make the changes that they make in diffusers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch
from safetensors.torch import save_file

from serving.stock import ENGINE_MARKS
from takeup.errors import BadInput
from takeup.serving.diffusion.addons.lora.file_format import read_lora
from takeup.serving.diffusion.addons.lora.targets import LoraTargets
from takeup.serving.diffusion.addons.lora.weights import patched
from takeup.serving.diffusion.engine.tiny import build

pytestmark = ENGINE_MARKS

RANK = 4
DOUBLE = {
    "img_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "txt_attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    "img_attn.proj": ("attn.to_out.0",),
    "txt_attn.proj": ("attn.to_add_out",),
    "img_mlp.0": ("ff.net.0.proj",),
    "img_mlp.2": ("ff.net.2",),
    "txt_mlp.0": ("ff_context.net.0.proj",),
    "txt_mlp.2": ("ff_context.net.2",),
    "img_mod.lin": ("norm1.linear",),
    "txt_mod.lin": ("norm1_context.linear",),
}
SINGLE = {
    "linear1": ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"),
    "linear2": ("proj_out",),
    "modulation.lin": ("norm.linear",),
}
Changes = dict[str, tuple[torch.Tensor, torch.Tensor, tuple[str, ...]]]


@pytest.fixture(scope="module")
def targets() -> LoraTargets:
    return LoraTargets.of(build("takeup/tiny-flux"))


@pytest.fixture
def changes(targets: LoraTargets) -> Changes:
    """Down, up and layers of diffusers for each layer of the original code, written down by hand."""
    random = torch.Generator().manual_seed(3)
    named = {
        f"double_blocks.0.{name}": tuple(f"transformer_blocks.0.{one}" for one in parts)
        for name, parts in DOUBLE.items()
    }
    named |= {
        f"single_blocks.0.{name}": tuple(f"single_transformer_blocks.0.{one}" for one in parts)
        for name, parts in SINGLE.items()
    }
    made = {}
    for name, parts in named.items():
        shapes = [targets.shapes["transformer", part] for part in parts]
        down = torch.randn(RANK, shapes[0][1], generator=random)
        up = torch.randn(sum(shape[0] for shape in shapes), RANK, generator=random)
        made[name] = down, up, parts
    return made


def deltas(tensors: Mapping[str, torch.Tensor], targets: LoraTargets, path: Path) -> dict[str, torch.Tensor]:
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, path)
    lora = read_lora(path, targets)
    return {layer[1]: patched(torch.zeros(targets.shapes[layer]), layer, ((lora, 1.0),)) for layer in lora.changes}


def assert_alike(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-5) for name in ours)


def expected(changes: Changes, targets: LoraTargets, factor: float = 1.0) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for down, up, parts in changes.values():
        sizes = [targets.shapes["transformer", part][0] for part in parts]
        found |= dict(zip(parts, torch.split(factor * up @ down, sizes), strict=True))
    return found


@pytest.mark.parametrize("style", ["kohya", "bfl", "comfyui", "peft"])
def test_every_layer_gets_its_rows_of_the_fused_product(
    style: str, changes: Changes, targets: LoraTargets, tmp_path: Path
) -> None:
    tensors: dict[str, torch.Tensor] = {}
    for name, (down, up, _) in changes.items():
        if style == "kohya":
            key = "lora_unet_" + name.replace(".", "_")
            tensors |= {f"{key}.lora_down.weight": down, f"{key}.lora_up.weight": up, f"{key}.alpha": torch.tensor(2.0)}
        else:
            key = {"bfl": "", "comfyui": "diffusion_model.", "peft": "base_model.model."}[style] + name
            tensors |= {f"{key}.lora_A.weight": down, f"{key}.lora_B.weight": up}
    factor = 2.0 / RANK if style == "kohya" else 1.0

    assert_alike(deltas(tensors, targets, tmp_path / "lora.safetensors"), expected(changes, targets, factor))


def converted(name: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What diffusers' own converter makes of the keys: the product of every layer."""
    convert: Any = getattr(import_module("diffusers.loaders.lora_conversion_utils"), name)
    made = convert(dict(tensors))
    downs = {key.removesuffix(".lora_A.weight"): one for key, one in made.items() if key.endswith(".lora_A.weight")}
    return {key.removeprefix("transformer."): made[f"{key}.lora_B.weight"] @ down for key, down in downs.items()}


def test_kohya_is_read_as_by_the_converter_of_diffusers(changes: Changes, targets: LoraTargets, tmp_path: Path) -> None:
    tensors: dict[str, torch.Tensor] = {}
    for name, (down, up, _) in changes.items():
        if name != "single_blocks.0.linear1":  # the converter knows only the widths of the full model there
            key = "lora_unet_" + name.replace(".", "_")
            tensors |= {f"{key}.lora_down.weight": down, f"{key}.lora_up.weight": up, f"{key}.alpha": torch.tensor(2.0)}
    ours = deltas(tensors, targets, tmp_path / "lora.safetensors")

    assert_alike(ours, converted("_convert_kohya_flux_lora_to_diffusers", tensors))


def test_xlabs_is_read_as_by_the_converter_of_diffusers(changes: Changes, targets: LoraTargets, tmp_path: Path) -> None:
    names = {
        "img_attn.qkv": "qkv_lora1",
        "txt_attn.qkv": "qkv_lora2",
        "img_attn.proj": "proj_lora1",
        "txt_attn.proj": "proj_lora2",
    }
    tensors: dict[str, torch.Tensor] = {}
    for name, spelled in names.items():
        down, up, _ = changes[f"double_blocks.0.{name}"]
        key = f"double_blocks.0.processor.{spelled}"
        tensors |= {f"{key}.down.weight": down, f"{key}.up.weight": up}
    down, up, _ = changes["single_blocks.0.linear2"]
    tensors |= {
        "single_blocks.0.processor.proj_lora.down.weight": down,
        "single_blocks.0.processor.proj_lora.up.weight": up,
    }
    ours = deltas(tensors, targets, tmp_path / "lora.safetensors")

    assert_alike(ours, converted("_convert_xlabs_flux_lora_to_diffusers", tensors))


def test_a_fused_layer_with_other_rows_or_a_second_change_is_refused(
    changes: Changes, targets: LoraTargets, tmp_path: Path
) -> None:
    down, up, _ = changes["double_blocks.0.img_attn.qkv"]
    key = "double_blocks.0.img_attn.qkv"
    other = {f"{key}.lora_A.weight": down, f"{key}.lora_B.weight": up[:-1]}
    twice = {
        f"{key}.lora_A.weight": down,
        f"{key}.lora_B.weight": up,
        "transformer.transformer_blocks.0.attn.to_q.lora_A.weight": down,
        "transformer.transformer_blocks.0.attn.to_q.lora_B.weight": up[: len(up) // 3],
    }

    for tensors in (other, twice):
        with pytest.raises(BadInput, match=r"img_attn\.qkv"):
            deltas(tensors, targets, tmp_path / "lora.safetensors")
