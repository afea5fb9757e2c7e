"""LoRA files that cannot be used: one sentence that says what was found, and nothing is applied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch

from serving.lora_files import ATTENTION, LAYERS, factors, kohya, peft_style, save
from serving.stock import ENGINE_MARKS
from takeup.errors import BadInput
from takeup.serving.diffusion.addons.lora.file_format import read_lora
from takeup.serving.diffusion.addons.lora.targets import LoraTargets, layers_of
from takeup.serving.diffusion.engine.tiny import tiny

pytestmark = ENGINE_MARKS

UNET = [("unet", path) for path in LAYERS]


@pytest.fixture(scope="module")
def pipeline() -> Any:
    return tiny("takeup/tiny-sdxl")


@pytest.fixture(scope="module")
def targets(pipeline: Any) -> LoraTargets:
    return LoraTargets.of(pipeline)


def refusal(file: Path, targets: LoraTargets) -> str:
    with pytest.raises(BadInput) as refused:
        read_lora(file, targets)
    sentence = str(refused.value)
    assert "\n" not in sentence
    assert str(file) in sentence
    return sentence


def test_leftover_keys_are_named(pipeline: Any, targets: LoraTargets, tmp_path: Path) -> None:
    extra = {"unet.nowhere.lora_A.weight": torch.ones(4, 4), f"unet.{ATTENTION}.to_q.diff_b": torch.ones(4)}
    sentence = refusal(save(peft_style(factors(pipeline, UNET)) | extra, tmp_path / "x.safetensors"), targets)

    assert "has 2 keys that cannot be used" in sentence
    assert "unet.nowhere.lora_A.weight" in sentence
    assert "to_q.diff_b" in sentence


def test_a_layer_that_is_changed_twice_is_a_leftover(pipeline: Any, targets: LoraTargets, tmp_path: Path) -> None:
    changes = factors(pipeline, UNET[:1])
    sentence = refusal(
        save(peft_style(changes) | kohya(factors(pipeline, UNET[:1])), tmp_path / "x.safetensors"), targets
    )

    assert "has 2 keys that cannot be used" in sentence


def test_a_lora_for_another_kind_of_model_says_so(targets: LoraTargets, tmp_path: Path) -> None:
    flux = tiny("takeup/tiny-flux")
    layers = [layer for layer in layers_of(flux) if layer[0] == "transformer"][:4]
    sentence = refusal(save(peft_style(factors(flux, layers)), tmp_path / "f.safetensors"), targets)

    assert "was made for another base model" in sentence
    assert "StableDiffusionXLPipeline" in sentence


def test_a_lora_for_a_model_of_other_sizes_says_which(targets: LoraTargets, tmp_path: Path) -> None:
    small = tiny("takeup/tiny-sd15")
    layer = ("unet", "down_blocks.1.attentions.1.transformer_blocks.0.attn2.to_k")
    sentence = refusal(save(peft_style(factors(small, [layer])), tmp_path / "s.safetensors"), targets)

    assert "changes weights of shape 64x32, and the layer has 64x64" in sentence


def test_ranks_that_differ_are_refused(pipeline: Any, targets: LoraTargets, tmp_path: Path) -> None:
    tensors = peft_style(factors(pipeline, UNET[:1]))
    tensors[f"unet.{UNET[0][1]}.lora_B.weight"] = torch.ones(64, 8)

    assert "one part has rank 4, the other 8" in refusal(save(tensors, tmp_path / "r.safetensors"), targets)


def test_half_a_change_is_refused(pipeline: Any, targets: LoraTargets, tmp_path: Path) -> None:
    tensors = peft_style(factors(pipeline, UNET[:1]))
    del tensors[f"unet.{UNET[0][1]}.lora_B.weight"]

    assert "has only down, which is no whole change" in refusal(save(tensors, tmp_path / "r.safetensors"), targets)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_refused(pipeline: Any, targets: LoraTargets, tmp_path: Path, bad: float) -> None:
    tensors = peft_style(factors(pipeline, UNET[:2]))
    tensors[f"unet.{UNET[0][1]}.lora_A.weight"][1, 1] = bad

    assert "not finite in unet" in refusal(save(tensors, tmp_path / "n.safetensors"), targets)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.99])
def test_truncated_files_are_refused(pipeline: Any, targets: LoraTargets, tmp_path: Path, share: float) -> None:
    file = save(peft_style(factors(pipeline, UNET)), tmp_path / "t.safetensors")
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])

    assert "damaged or no safetensors file" in refusal(file, targets)


def test_files_that_are_not_there_or_empty_are_refused(targets: LoraTargets, tmp_path: Path) -> None:
    assert "is not a file" in refusal(tmp_path / "none.safetensors", targets)
    assert "holds no tensors" in refusal(save({}, tmp_path / "e.safetensors"), targets)


def test_pickles_are_not_opened(targets: LoraTargets, tmp_path: Path) -> None:
    file = tmp_path / "p.safetensors"
    torch.save({"unet.x.lora_A.weight": torch.ones(1)}, file)

    assert "damaged or no safetensors file" in refusal(file, targets)


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"hada_w1_a": (64, 4), "hada_w1_b": (4, 64)}, "has only hada_w1_a, hada_w1_b"),
        (
            {"hada_w1_a": (64, 4), "hada_w1_b": (3, 64), "hada_w2_a": (64, 4), "hada_w2_b": (4, 64)},
            "the factors of its matrix 1 are 64x4 and 3x64",
        ),
        (
            {"hada_w1_a": (64, 4), "hada_w1_b": (4, 32), "hada_w2_a": (64, 4), "hada_w2_b": (4, 32)},
            "of shape 64x32, and the layer has 64x64",
        ),
        ({"lokr_w1": (8, 8)}, "has lokr_w1, which is no whole change"),
        ({"lokr_w1": (8, 8), "lokr_w2": (8, 4)}, "of shape 64x32, and the layer has 64x64"),
        ({"lokr_w1": (8, 8), "lokr_w2_a": (8, 2), "lokr_w2_b": (3, 8)}, "the halves of lokr_w2 are 8x2 and 3x8"),
        ({"alpha": ()}, "has only an alpha"),
        ({"lora_down.weight": (4, 64), "lora_up.weight": (64, 4), "dora_scale": (7, 1)}, "7 magnitudes for 64 outputs"),
        ({"lora_down.weight": (4, 64, 1), "lora_up.weight": (64, 4)}, "3 and 2 dimensions"),
    ],
)
def test_changes_that_do_not_fit_are_refused(
    targets: LoraTargets, tmp_path: Path, parts: dict[str, tuple[int, ...]], sentence: str
) -> None:
    name = f"lora_unet_{UNET[0][1].replace('.', '_')}"
    file = save({f"{name}.{part}": torch.ones(shape) for part, shape in parts.items()}, tmp_path / "x.safetensors")

    assert sentence in refusal(file, targets)
