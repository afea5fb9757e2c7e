"""Weights take LoRAs in and give them back without a trace, and rows of one call may want different ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch

from serving.lora_cases import EXACT, SDXL, images, request, stock
from serving.lora_files import LAYERS, factors, peft_style, save
from serving.stock import ENGINE_MARKS, gap, stock_latents
from takeup.serving.diffusion.addons.lora.addon import Loras
from takeup.serving.diffusion.addons.lora.loading import ThreadLoader
from takeup.serving.diffusion.addons.lora.targets import LoraTargets, layers_of
from takeup.serving.diffusion.addons.lora.weights import Lora, PatchedWeights
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.engine.tiny import build, tiny
from takeup.serving.model import Request

pytestmark = ENGINE_MARKS


# Patching -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_thousand_swaps_leave_the_weights_bit_for_bit_as_they_were(
    loras: dict[str, Lora], dtype: torch.dtype
) -> None:
    unet = build(SDXL).unet.to(dtype)
    layers = {("unet", path): unet.get_submodule(path) for path in LAYERS}
    before = {key: tensor.clone() for key, tensor in unet.state_dict().items()}
    weights = PatchedWeights(layers)
    sets = [((loras["paper"], 1.0),), ((loras["film"], 0.5), (loras["paper"], 0.3)), ((loras["loha"], 1.0),), ()]
    staged = [weights.stage(one) for one in sets]
    for number in range(1000):
        weights.use(staged[number % 3])
    weights.use()

    assert all(torch.equal(before[key], tensor) for key, tensor in unet.state_dict().items())


def test_patched_weights_do_not_depend_on_what_was_there_before(pipeline: Any, loras: dict[str, Lora]) -> None:
    layers = layers_of(pipeline)
    weights = PatchedWeights(layers)
    with weights.using(((loras["paper"], 1.0),)):
        direct = {layer: module.weight.clone() for layer, module in layers.items()}
    with weights.using(((loras["film"], 2.0),)), weights.using(((loras["paper"], 1.0),)):
        detour = {layer: module.weight.clone() for layer, module in layers.items()}

    assert all(torch.equal(direct[layer], detour[layer]) for layer in layers)


def test_patching_writes_into_the_storage_that_graphs_remember(pipeline: Any, loras: dict[str, Lora]) -> None:
    layers = layers_of(pipeline)
    places = {layer: (id(module.weight), module.weight.data_ptr()) for layer, module in layers.items()}
    with PatchedWeights(layers).using(((loras["paper"], 1.0),)):
        inside = {layer: (id(module.weight), module.weight.data_ptr()) for layer, module in layers.items()}

    assert inside == places


def test_staging_is_not_felt_by_the_network(pipeline: Any, loras: dict[str, Lora]) -> None:
    before = pipeline.unet.get_submodule(LAYERS[0]).weight.clone()
    weights = PatchedWeights(layers_of(pipeline))
    staged = weights.stage(((loras["paper"], 1.0),))

    assert torch.equal(pipeline.unet.get_submodule(LAYERS[0]).weight, before)
    assert not torch.equal(staged.weights["unet", LAYERS[0]], before)


def test_weights_are_given_back_when_something_fails(pipeline: Any, loras: dict[str, Lora]) -> None:
    weights = PatchedWeights(layers_of(pipeline))
    before = pipeline.unet.get_submodule(LAYERS[0]).weight.clone()
    with pytest.raises(ZeroDivisionError), weights.using(((loras["paper"], 1.0),)):
        1 / 0  # noqa: B018

    assert torch.equal(pipeline.unet.get_submodule(LAYERS[0]).weight, before)
    assert weights.key == ()


# Images -------------------------------------------------------------------------------------------------------------

MIXED = [
    request(1, ("paper", 1.0)),
    request(2, ("film", 0.7), ("paper", 0.5)),
    request(3),
    request(4, ("paper", 1.0), num_steps=2),
    request(5, ("loha", 1.0)),
]


def test_every_request_has_its_own_loras(engine_of: Any, files: dict[str, Path]) -> None:
    ours = images(engine_of(), MIXED)
    theirs = [stock(files, one) if one.seed != 5 else stock_with_loha(files, one) for one in MIXED]
    plain = [stock_latents(tiny(SDXL), replace(one, loras=())) for one in MIXED]

    assert max(map(gap, ours, theirs)) < EXACT
    felt = [gap(mine, bare) for mine, bare, one in zip(ours, plain, MIXED, strict=True) if one.loras]
    assert min(felt) > 20 * EXACT


def stock_with_loha(files: dict[str, Path], one: Request) -> torch.Tensor:
    """Diffusers does not read LoHa for U-Nets: the change is made by hand."""
    from safetensors.torch import load_file

    pipeline = build(SDXL)
    parts = {key.rpartition(".")[2]: tensor for key, tensor in load_file(files["loha"]).items()}
    product = (parts["hada_w1_a"] @ parts["hada_w1_b"]) * (parts["hada_w2_a"] @ parts["hada_w2_b"])
    pipeline.unet.get_submodule(LAYERS[0]).weight.data += product
    return stock_latents(pipeline, one)


def test_a_change_of_the_text_encoders_is_felt(engine_of: Any, files: dict[str, Path]) -> None:
    one = request(7, ("words", 0.8))
    (ours,) = images(engine_of(), [one])
    unet_only = replace(one, loras=())

    assert gap(ours, stock(files, one)) < EXACT
    assert gap(ours, stock(files, unet_only)) > EXACT


def test_text_encoders_are_plain_again_for_the_next_request(engine_of: Any, files: dict[str, Path]) -> None:
    engine = engine_of()
    images(engine, [request(7, ("words", 0.8))])
    (after,) = images(engine, [request(8)])

    assert gap(after, stock_latents(tiny(SDXL), request(8))) < EXACT


TRANSFORMERS = {
    "takeup/tiny-sd3": ("transformer_blocks.0.attn.to_q", "transformer_blocks.1.ff.net.0.proj", "norm_out.linear"),
    "takeup/tiny-flux": ("transformer_blocks.0.attn.to_k", "single_transformer_blocks.0.proj_mlp", "x_embedder"),
}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_take_loras_too(name: str, tmp_path: Path) -> None:
    pipeline, stock_pipeline = build(name), build(name)
    changes = factors(pipeline, [("transformer", path) for path in TRANSFORMERS[name]])
    files = {"film": save(peft_style(changes), tmp_path / "film.safetensors")}
    add_on = Loras(family_of(pipeline), ThreadLoader(files, LoraTargets.of(pipeline)))
    plain, film = images(StepEngine(pipeline, add_ons=[add_on]), [request(1), request(1, ("film", 0.5))])
    add_on.close()
    stock_pipeline.load_lora_weights(files["film"], adapter_name="film")
    stock_pipeline.set_adapters(["film"], [0.5])
    stock_pipeline.fuse_lora(components=["transformer"])

    assert gap(film, stock_latents(stock_pipeline, request(1))) < EXACT
    assert gap(plain, stock_latents(tiny(name), request(1))) < EXACT < gap(plain, film)
