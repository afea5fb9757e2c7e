"""LoRA files: every style gives the weights that diffusers and PEFT give, and no key is lost on the way."""

from __future__ import annotations

import json
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")
pytest.importorskip("peft", reason="needs peft: pip install 'takeup[diffusion]'")

import torch

from serving.lora_files import ATTENTION, LAYERS, factors, kohya, original, peft_style, save
from serving.stock import ENGINE_MARKS
from takeup.errors import BadInput
from takeup.serving.diffusion.addons.lora.file_format import read_lora
from takeup.serving.diffusion.addons.lora.targets import LoraTargets, layers_of
from takeup.serving.diffusion.addons.lora.weights import Lora, patched
from takeup.serving.diffusion.engine.tiny import build, tiny

pytestmark = ENGINE_MARKS

SDXL = "takeup/tiny-sdxl"
CLOSE = 1e-6
UNET = [("unet", path) for path in LAYERS]
TEXT = [
    ("text_encoder", "encoder.layers.0.self_attn.q_proj"),
    ("text_encoder", "encoder.layers.1.mlp.fc1"),
    ("text_encoder_2", "text_model.encoder.layers.2.self_attn.out_proj"),
]


@pytest.fixture(scope="module")
def pipeline() -> Any:
    return tiny(SDXL)


@pytest.fixture(scope="module")
def targets(pipeline: Any) -> LoraTargets:
    return LoraTargets.of(pipeline)


def ours(pipeline: Any, *loras: tuple[Lora, float]) -> dict[tuple[str, str], torch.Tensor]:
    """All weights under these LoRAs."""
    modules = layers_of(pipeline)
    return {layer: patched(module.weight.detach(), layer, loras) for layer, module in modules.items()}


def fused(*files: tuple[Path, float]) -> dict[tuple[str, str], torch.Tensor]:
    """All weights as diffusers fuses them, in a pipeline of its own."""
    pipeline = build(SDXL)
    names = [f"adapter_{number}" for number in range(len(files))]
    for name, (file, _) in zip(names, files, strict=True):
        pipeline.load_lora_weights(file, adapter_name=name)
    pipeline.set_adapters(names, [scale for _, scale in files])
    pipeline.fuse_lora(components=["unet", "text_encoder", "text_encoder_2"])
    pipeline.unload_lora_weights()
    return {layer: module.weight.detach() for layer, module in layers_of(pipeline).items()}


def gap_of(mine: dict[Any, torch.Tensor], theirs: dict[Any, torch.Tensor]) -> float:
    assert mine.keys() == theirs.keys()
    return max(float((mine[layer] - theirs[layer]).abs().max()) for layer in mine)


def num_changed(pipeline: Any, weights: dict[Any, torch.Tensor]) -> int:
    return sum(not torch.equal(module.weight, weights[layer]) for layer, module in layers_of(pipeline).items())


def test_files_of_diffusers_give_the_fused_weights(pipeline: Any, targets: LoraTargets, tmp_path: Path) -> None:
    file = save(peft_style(factors(pipeline, UNET)), tmp_path / "a.safetensors")
    theirs = fused((file, 0.7))

    assert num_changed(pipeline, theirs) == len(UNET)
    assert gap_of(ours(pipeline, (read_lora(file, targets), 0.7)), theirs) < CLOSE


def test_two_loras_are_the_sum_of_their_products(pipeline: Any, targets: LoraTargets, tmp_path: Path) -> None:
    first = save(peft_style(factors(pipeline, UNET[:6], seed=1)), tmp_path / "a.safetensors")
    second = save(peft_style(factors(pipeline, UNET[3:], rank=2, seed=2)), tmp_path / "b.safetensors")
    mine = ours(pipeline, (read_lora(first, targets), 1.0), (read_lora(second, targets), 0.7))

    assert gap_of(mine, fused((first, 1.0), (second, 0.7))) < CLOSE


def test_files_of_kohya_give_the_fused_weights_with_their_alphas(
    pipeline: Any, targets: LoraTargets, tmp_path: Path
) -> None:
    file = save(kohya(factors(pipeline, UNET), alpha=1.0), tmp_path / "k.safetensors")
    theirs = fused((file, 1.0))

    assert num_changed(pipeline, theirs) == len(UNET)
    assert gap_of(ours(pipeline, (read_lora(file, targets), 1.0)), theirs) < CLOSE


def test_names_of_the_original_code_mean_the_same_layers(pipeline: Any, targets: LoraTargets, tmp_path: Path) -> None:
    names = {path: original(path) for path in LAYERS}
    changes = factors(pipeline, UNET)
    file = save(kohya(changes, alpha=1.0, names=names), tmp_path / "o.safetensors")
    plain = save(kohya(changes, alpha=1.0), tmp_path / "k.safetensors")
    mine = ours(pipeline, (read_lora(file, targets), 1.0))

    assert gap_of(mine, ours(pipeline, (read_lora(plain, targets), 1.0))) == 0


def test_diffusers_agrees_about_the_names_of_the_original_code(
    pipeline: Any, targets: LoraTargets, tmp_path: Path
) -> None:
    paths = [path for path in LAYERS if "attentions" in path]
    names = {path: original(path) for path in paths}
    changes = factors(pipeline, [("unet", path) for path in paths])
    file = save(kohya(changes, alpha=1.0, names=names), tmp_path / "o.safetensors")
    theirs = fused((file, 1.0))

    assert num_changed(pipeline, theirs) == len(paths)
    assert gap_of(ours(pipeline, (read_lora(file, targets), 1.0)), theirs) < CLOSE


def test_every_layer_has_an_original_name_of_its_own(targets: LoraTargets) -> None:
    names = [name for name in targets.names if name.startswith("lora_unet_")]
    unet = [layer for layer in targets.shapes if layer[0] == "unet"]

    assert len(names) == 2 * len(unet)
    assert {targets.names[name] for name in names} == set(unet)


def test_old_key_styles_of_diffusers_are_understood(pipeline: Any, targets: LoraTargets, tmp_path: Path) -> None:
    layers = [("unet", f"{ATTENTION}.to_q"), ("unet", f"{ATTENTION}.to_out.0")]
    changes = factors(pipeline, layers)
    (down, up), (out_down, out_up) = changes.values()
    old = {
        f"unet.{ATTENTION}.processor.to_q_lora.down.weight": down,
        f"unet.{ATTENTION}.processor.to_q_lora.up.weight": up,
        f"unet.{ATTENTION}.to_out.0.lora.down.weight": out_down,
        f"unet.{ATTENTION}.to_out.0.lora.up.weight": out_up,
    }
    new = save(peft_style(changes), tmp_path / "new.safetensors")
    mine = ours(pipeline, (read_lora(save(old, tmp_path / "old.safetensors"), targets), 1.0))

    assert gap_of(mine, fused((new, 1.0))) < CLOSE


def test_a_file_of_mixed_styles_is_read_as_a_whole(pipeline: Any, targets: LoraTargets, tmp_path: Path) -> None:
    changes = factors(pipeline, UNET)
    halves = dict(list(changes.items())[:4]), dict(list(changes.items())[4:])
    file = save(peft_style(halves[0]) | kohya(halves[1], alpha=4.0), tmp_path / "mixed.safetensors")
    whole = save(peft_style(changes), tmp_path / "whole.safetensors")

    assert gap_of(ours(pipeline, (read_lora(file, targets), 1.0)), fused((whole, 1.0))) < CLOSE


def test_text_encoders_are_changed_too(pipeline: Any, targets: LoraTargets, tmp_path: Path) -> None:
    file = save(peft_style(factors(pipeline, TEXT)), tmp_path / "t.safetensors")
    theirs = fused((file, 1.0))

    assert num_changed(pipeline, theirs) == len(TEXT)
    assert gap_of(ours(pipeline, (read_lora(file, targets), 1.0)), theirs) < CLOSE


@pytest.mark.parametrize("with_text_model", [False, True])
def test_kohya_may_say_text_model_or_not(
    pipeline: Any, targets: LoraTargets, tmp_path: Path, with_text_model: bool
) -> None:
    changes = factors(pipeline, TEXT)
    bare = {path: path.removeprefix("text_model.") for _, path in TEXT}
    names = {path: f"text_model.{name}" if with_text_model else name for path, name in bare.items()}
    file = save(kohya(changes, alpha=4.0, names=names), tmp_path / "t.safetensors")
    plain = save(peft_style(changes), tmp_path / "p.safetensors")

    assert (
        gap_of(ours(pipeline, (read_lora(file, targets), 1.0)), ours(pipeline, (read_lora(plain, targets), 1.0))) == 0
    )


def test_the_alpha_that_diffusers_writes_into_the_file_counts(
    pipeline: Any, targets: LoraTargets, tmp_path: Path
) -> None:
    told = {
        "unet.r": 4,
        "unet.lora_alpha": 6,
        "unet.alpha_pattern": {"attn2.to_k": 2},
        "unet.target_modules": list(LAYERS),
    }
    tensors = peft_style(factors(pipeline, UNET))
    file = save(tensors, tmp_path / "a.safetensors", lora_adapter_metadata=json.dumps(told), format="pt")
    lora = read_lora(file, targets)
    factor_of = {path: change.factor for (_, path), change in lora.changes.items()}

    assert factor_of[f"{ATTENTION}.to_q"] == 1.5
    assert factor_of["down_blocks.1.attentions.1.transformer_blocks.1.attn2.to_k"] == 0.5
    assert gap_of(ours(pipeline, (lora, 1.0)), fused((file, 1.0))) < CLOSE


@pytest.mark.parametrize(
    "told",
    [
        {"unet.r": 4, "unet.alpha_pattern": {r"(a*)*b.*": 2}},  # an expression may take for ever
        {"unet.r": 4, "unet.alpha_pattern": [1]},
        {"unet.r": "four", "unet.lora_alpha": "much"},
        {"unet.r": 4, "unet.lora_alpha": math.nan},
    ],
)
def test_an_alpha_that_cannot_be_used_is_refused(
    targets: LoraTargets, pipeline: Any, tmp_path: Path, told: Any
) -> None:
    tensors = peft_style(factors(pipeline, UNET))
    file = save(tensors, tmp_path / "a.safetensors", lora_adapter_metadata=json.dumps(told), format="pt")

    with pytest.raises(BadInput, match="has an alpha that"):
        read_lora(file, targets)


# PEFT as the witness: it can do all kinds, and merges them itself ----------------------------------------------------


def merged_by_peft(kind: str, folder: Path, **options: Any) -> dict[tuple[str, str], torch.Tensor]:
    """Random changes of this kind, saved by PEFT into `folder`, and the weights when PEFT merges them."""
    peft, unet = import_module("peft"), build(SDXL).unet
    config = getattr(peft, kind)(r=4, target_modules=list(LAYERS), init_weights=False, **options)
    model = peft.get_peft_model(unet, config)
    torch.manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_" in name or "hada_" in name or "lokr_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    merged = model.merge_and_unload()
    modules = {name: module for name, module in merged.named_modules() if name in LAYERS}
    return {("unet", name): module.weight.detach() for name, module in modules.items()}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LoraConfig", {"lora_alpha": 6}),
        ("LoraConfig", {"lora_alpha": 6, "use_rslora": True}),
        ("LoraConfig", {"lora_alpha": 6, "use_dora": True}),
        ("LoHaConfig", {"alpha": 6}),
        ("LoKrConfig", {"alpha": 6}),
        ("LoKrConfig", {"alpha": 6, "decompose_both": True, "decompose_factor": 8}),
    ],
)
def test_folders_of_peft_give_the_weights_that_peft_merges(
    pipeline: Any, targets: LoraTargets, tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    if kind == "LoraConfig":
        options = {**options, "init_lora_weights": False}
        theirs = merged_lora(tmp_path, options)
    else:
        theirs = merged_by_peft(kind, tmp_path, **options)
    lora = read_lora(tmp_path / "adapter_model.safetensors", targets)
    mine = ours(pipeline, (lora, 1.0))

    assert theirs.keys() == set(lora.changes) == set(UNET)
    assert max(float((mine[layer] - theirs[layer]).abs().max()) for layer in theirs) < CLOSE * 10
    assert (
        min(float((pipeline.unet.get_submodule(path).weight - theirs["unet", path]).abs().max()) for path in LAYERS)
        > 0.01
    )


def merged_lora(folder: Path, options: dict[str, Any]) -> dict[tuple[str, str], torch.Tensor]:
    peft, unet = import_module("peft"), build(SDXL).unet
    torch.manual_seed(4)
    model = peft.get_peft_model(unet, peft.LoraConfig(r=4, target_modules=list(LAYERS), **options))
    for name, parameter in model.named_parameters():
        if "magnitude" in name:
            torch.nn.init.uniform_(parameter, 0.5, 2.0)
    model.save_pretrained(folder)
    merged = model.merge_and_unload()
    return {("unet", path): merged.get_submodule(path).weight.detach() for path in LAYERS}


@pytest.mark.parametrize("kind", ["LoHaConfig", "LoKrConfig"])
def test_lycoris_files_are_the_same_changes_with_other_names(
    pipeline: Any, targets: LoraTargets, tmp_path: Path, kind: str
) -> None:
    from safetensors.torch import load_file

    theirs = merged_by_peft(kind, tmp_path, alpha=6)
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    renamed = {}
    for key, tensor in tensors.items():
        path, _, part = key.removeprefix("base_model.model.").rpartition(".")
        name = f"lora_unet_{path.replace('.', '_')}"
        renamed[f"{name}.{part}"] = tensor
        renamed[f"{name}.alpha"] = torch.tensor(6.0)
    lora = read_lora(save(renamed, tmp_path / "lycoris.safetensors"), targets)
    mine = ours(pipeline, (lora, 1.0))

    for layer, weight in theirs.items():
        if lora.changes[layer].rank:  # of a change in whole matrices LyCORIS ignores the alpha, and PEFT does not
            assert (mine[layer] - weight).abs().max() < CLOSE * 10


def test_dora_of_kohya_has_a_magnitude_for_every_output(pipeline: Any, targets: LoraTargets, tmp_path: Path) -> None:
    layer = ("unet", f"{ATTENTION}.to_q")
    changes = factors(pipeline, [layer])
    magnitude = torch.linspace(0.5, 2.0, 64)[:, None]
    file = save(
        kohya(changes) | {f"lora_unet_{layer[1].replace('.', '_')}.dora_scale": magnitude}, tmp_path / "d.safetensors"
    )
    weight = ours(pipeline, (read_lora(file, targets), 1.0))[layer]

    torch.testing.assert_close(torch.linalg.vector_norm(weight, dim=1, keepdim=True), magnitude)


def test_a_magnitude_that_lies_in_a_row_is_one_for_every_input(
    pipeline: Any, targets: LoraTargets, tmp_path: Path
) -> None:
    layer = ("unet", "mid_block.attentions.0.transformer_blocks.0.ff.net.2")
    num_inputs = targets.shapes[layer][1]
    magnitude = torch.linspace(0.5, 2.0, num_inputs)[None, :]
    name = f"lora_unet_{layer[1].replace('.', '_')}.dora_scale"
    file = save(kohya(factors(pipeline, [layer])) | {name: magnitude}, tmp_path / "d.safetensors")
    weight = ours(pipeline, (read_lora(file, targets), 1.0))[layer]

    torch.testing.assert_close(torch.linalg.vector_norm(weight, dim=0, keepdim=True), magnitude)


# What a LoRA becomes ------------------------------------------------------------------------------------------------


def test_all_numbers_lie_in_one_buffer_without_gaps(pipeline: Any, targets: LoraTargets, tmp_path: Path) -> None:
    changes = factors(pipeline, UNET)
    lora = read_lora(save(peft_style(changes), tmp_path / "a.safetensors"), targets)
    pieces = sorted((piece.offset, piece.shape) for change in lora.changes.values() for piece in change.pieces.values())
    ends = [offset + torch.Size(shape).numel() for offset, shape in pieces]

    assert [offset for offset, _ in pieces] == [0, *ends[:-1]]
    assert ends[-1] == len(lora.buffer) == sum(part.numel() for pair in changes.values() for part in pair)
    assert torch.equal(lora.parts(UNET[0])["down"], changes[UNET[0]][0])


def test_half_precision_stays_half_in_the_buffer(pipeline: Any, targets: LoraTargets, tmp_path: Path) -> None:
    tensors = {key: tensor.half() for key, tensor in peft_style(factors(pipeline, UNET)).items()}
    lora = read_lora(save(tensors, tmp_path / "h.safetensors"), targets)

    assert lora.buffer.dtype == torch.float16
    assert lora.delta(UNET[0], 1.0).dtype == torch.float32
    assert lora.size_bytes == 2 * len(lora.buffer)
