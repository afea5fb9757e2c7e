"""Lean transformer blocks compute what those of diffusers compute, and step aside where they cannot."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch
from PIL import Image
from torch.nn.functional import gelu, layer_norm, linear

from serving.lora_cases import EXACT, images, stock
from serving.stock import ENGINE_MARKS, gap, stock_latents
from takeup.serving.diffusion.addons.controlnet.addon import Controls
from takeup.serving.diffusion.addons.controlnet.workers import StreamWorker
from takeup.serving.diffusion.addons.lora.addon import Loras
from takeup.serving.diffusion.addons.lora.loading import ThreadLoader
from takeup.serving.diffusion.addons.lora.targets import LoraTargets
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.engine.tiny import build, tiny
from takeup.serving.diffusion.execution import executors as compute_module
from takeup.serving.diffusion.execution import unet_blocks as lean_module
from takeup.serving.diffusion.execution.executors import (
    CudaGraphExecutor,
    PreparedNetwork,
    compile_regions,
    prepare_network,
)
from takeup.serving.diffusion.execution.ops import add_matmul, geglu_matmul, shifted_layer_norm, text_attention
from takeup.serving.diffusion.execution.unet_blocks import FusedResidualBlocks, InPlaceTransformers
from takeup.serving.diffusion.execution.weight_stacks import stack_layers
from takeup.serving.model import ControlUse, LoraUse, Request

pytestmark = ENGINE_MARKS

SDXL, SD15, CONTROLLED = "takeup/tiny-sdxl", "takeup/tiny-sd15", "takeup/tiny-sdxl-controlnet"


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs(unet: Any, num_rows: int = 2, *, is_silent: bool = False) -> dict[str, Any]:
    text = drawn(num_rows, 7, unet.config.cross_attention_dim, seed=2)
    if is_silent:
        text[::2] = 0
    return {
        "sample": drawn(num_rows, 4, 16, 16, seed=1),
        "timestep": torch.arange(num_rows) * 100.0,
        "encoder_hidden_states": text,
        "added_cond_kwargs": {"text_embeds": drawn(num_rows, 32, seed=3), "time_ids": drawn(num_rows, 6, seed=4)},
        "return_dict": False,
    }


@torch.no_grad()
def predicted(unet: Any, given: dict[str, Any], prepared: PreparedNetwork | None = None) -> torch.Tensor:
    if prepared is not None:
        text = given["encoder_hidden_states"]
        blocks = prepared.packed.blocks(text)
        prepared.packed.project(text, blocks)
        prepared.packed.attach(blocks, prepared.packed.is_silent(text))
    found: torch.Tensor = unet(**given)[0]
    return found


def with_biases(unet: Any) -> Any:
    """Those of tiny networks are zero where diffusers draws none; here all of them count."""
    for number, (name, parameter) in enumerate(unet.named_parameters()):
        if name.endswith("bias"):
            parameter.data = drawn(*parameter.shape, seed=number) * 0.3
    return unet


# Blocks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_rows", [2, 4])
@pytest.mark.parametrize("is_silent", [False, True])
@pytest.mark.parametrize("name", [SD15, SDXL])
def test_lean_blocks_predict_what_diffusers_predicts(name: str, is_silent: bool, num_rows: int) -> None:
    unet = with_biases(build(name).unet)
    given = inputs(unet, num_rows, is_silent=is_silent)
    plain = predicted(unet, given)
    prepared = prepare_network(unet)

    assert prepared.lean is not None
    assert len(prepared.lean.modules) == sum(type(one).__name__ == "Transformer2DModel" for one in unet.modules())
    assert gap(predicted(unet, given, prepared), plain) < EXACT
    assert all(one.is_lean for one in prepared.lean.modules)


@torch.no_grad()
@pytest.mark.parametrize("seed", [0, 1])
def test_in_sixteen_bits_lean_blocks_are_as_near_to_the_truth_as_those_of_diffusers(seed: int) -> None:
    unet = with_biases(build(SDXL).unet)
    given = inputs(unet, is_silent=True) | {"sample": drawn(2, 4, 16, 16, seed=seed)}
    truth = predicted(unet, given)
    unet.bfloat16()
    halves = {name: one.bfloat16() if isinstance(one, torch.Tensor) else one for name, one in given.items()}
    halves["added_cond_kwargs"] = {name: one.bfloat16() for name, one in given["added_cond_kwargs"].items()}
    halves["timestep"] = given["timestep"]
    theirs = predicted(unet, halves).float()
    ours = predicted(unet, halves, prepare_network(unet)).float()

    assert (ours - truth).norm() < 1.1 * (theirs - truth).norm()
    assert (theirs - truth).norm() > 0.001 * truth.norm()  # there is something to round


def images_around(unet: Any) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """What comes into the transformer in the middle, how it was then, and what leaves it."""
    prepared = prepare_network(unet)
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    around: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    one = unet.mid_block.attentions[0]
    one.register_forward_pre_hook(lambda _module, args: seen.append((args[0], args[0].clone())))
    one.register_forward_hook(lambda _module, _args, answer: around.append((*seen.pop(), answer[0])))
    predicted(unet, inputs(unet), prepared)
    return around


def test_the_last_product_adds_to_the_image_that_came_in() -> None:
    ((image, before, answer),) = images_around(build(SDXL).unet)

    assert answer.data_ptr() == image.data_ptr()
    assert not torch.equal(answer, before)


def test_an_image_of_a_block_that_cannot_bring_the_bias_is_not_written_to() -> None:
    unet = with_biases(build(SDXL).unet)
    unet.mid_block.resnets[0].output_scale_factor = 2.0
    given = inputs(unet)
    plain = predicted(unet, given)
    ((image, before, answer),) = images_around(unet)

    assert torch.equal(image, before)
    assert answer.data_ptr() != image.data_ptr()
    assert gap(predicted(unet, given), plain) < EXACT


def test_a_residual_block_brings_the_bias_of_the_transformer_behind_it() -> None:
    unet = with_biases(build(SDXL).unet)
    prepare_network(unet)
    for block in (unet.mid_block, unet.down_blocks[1], unet.up_blocks[0]):
        resnet, transformer = block.resnets[0], block.attentions[0]
        torch.testing.assert_close(resnet.raised_bias, resnet.conv2.bias + transformer.proj_out.bias)
        torch.testing.assert_close(transformer.lacking, -transformer.proj_out.bias)

    assert not hasattr(unet.mid_block.resnets[1], "raised_bias")


def test_silent_rows_are_neither_normed_nor_projected_for_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    num_rows: list[int] = []

    def noting(query: torch.Tensor, text: torch.Tensor, num_heads: int) -> torch.Tensor:
        num_rows.append(len(query))
        attended: torch.Tensor = text_attention(query, text, num_heads)
        return attended

    monkeypatch.setattr(lean_module, "text_attention", noting)
    unet = build(SDXL).unet
    prepared = prepare_network(unet)
    predicted(unet, inputs(unet, 4, is_silent=True), prepared)
    heard = set(num_rows)
    num_rows.clear()
    predicted(unet, inputs(unet, 4), prepared)

    assert heard == {2}
    assert set(num_rows) == {4}


def test_blocks_that_are_not_lean_do_not_project_silent_rows_either() -> None:
    unet = with_biases(build(SDXL).unet)
    given = inputs(unet, 4, is_silent=True)
    plain = predicted(unet, given)
    prepared = prepare_network(unet, is_lean=False)
    seen: list[int] = []
    layer = unet.mid_block.attentions[0].transformer_blocks[0].attn2.to_q
    layer.register_forward_hook(lambda _module, given, _answer: seen.append(len(given[0])))

    assert gap(predicted(unet, given, prepared), plain) < EXACT
    assert seen == [2]


def test_blocks_are_told_the_sums_of_the_biases_that_their_tokens_have_too_early() -> None:
    unet = with_biases(build(SDXL).unet)
    prepare_network(unet)
    transformer = next(one for one in unet.modules() if len(getattr(one, "transformer_blocks", ())) > 1)
    blocks = transformer.transformer_blocks
    biases = [[one.attn1.to_out[0].bias, one.attn2.to_out[0].bias, one.ff.net[2].bias] for one in blocks]
    total = sum(map(sum, biases))

    torch.testing.assert_close(transformer.raised_bias, transformer.proj_in.bias + total)
    torch.testing.assert_close(-blocks[0].shifts[0], total)
    torch.testing.assert_close(-blocks[0].shifts[2], total - biases[0][0] - biases[0][1])
    torch.testing.assert_close(-blocks[1].shifts[0], total - sum(biases[0]))


def test_layers_are_called_for_themselves_while_hooks_need_them() -> None:
    unet = build(SDXL).unet
    given = inputs(unet)
    plain = predicted(unet, given)
    prepared = prepare_network(unet)
    calls: list[int] = []
    layer = unet.mid_block.attentions[0].transformer_blocks[0].ff.net[2]
    layer.register_forward_hook(lambda *_: calls.append(1))
    with prepared.plain():
        inside = predicted(unet, given)
    num_inside = len(calls)
    outside = predicted(unet, given, prepared)

    assert num_inside == 1
    assert len(calls) == 1  # its weight is read, the module is not called
    assert max(gap(inside, plain), gap(outside, plain)) < EXACT


def test_a_transformer_that_fails_computes_as_usual_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    unet = with_biases(build(SDXL).unet)
    given = inputs(unet)
    plain = predicted(unet, given)
    prepared = prepare_network(unet)
    monkeypatch.setattr(lean_module, "geglu_matmul", fail)
    with caplog.at_level(logging.WARNING):
        ours = [predicted(unet, given, prepared) for _ in range(2)]

    assert prepared.lean is not None
    assert max(gap(one, plain) for one in ours) < EXACT
    assert len(caplog.records) == len(prepared.lean.modules)
    assert "no such kernel" in caplog.text


def test_blocks_that_compute_otherwise_are_left_alone() -> None:
    unet = build(SDXL).unet
    odd = unet.mid_block.attentions[0]
    odd.transformer_blocks[0].norm_type = "ada_norm"
    prepared = prepare_network(unet)

    assert prepared.lean is not None
    assert odd not in prepared.lean.modules
    assert unet.up_blocks[0].attentions[0] in prepared.lean.modules


def test_without_packed_attention_nothing_is_lean() -> None:
    assert not InPlaceTransformers(build(SDXL).unet).modules


def test_products_in_eight_bits_stay_as_they_are() -> None:
    assert prepare_network(build(SDXL).unet, eight_bits=True).lean is None


def test_lean_transformers_are_not_compiled_and_all_else_is() -> None:
    unet = build(SDXL).unet
    apart = frozenset(one for one in unet.modules() if type(one).__name__ == "Transformer2DModel")
    compile_regions(unet, {}, apart)
    compiled = {type(one).__name__ for one in unet.modules() if one._compiled_call_impl is not None}

    assert compiled == {"Downsample2D", "ResnetBlock2D", "Upsample2D"}


# Layers ---------------------------------------------------------------------------------------------------------------


def test_a_norm_shifts_tokens_first() -> None:
    x, weight, bias, shift = drawn(4, 5, 8, seed=1)[1::2], drawn(8, seed=2), drawn(8, seed=3), drawn(8, seed=4)
    answer = shifted_layer_norm(x, shift, weight, bias, 1e-5)

    torch.testing.assert_close(answer, layer_norm(x + shift, (8,), weight, bias, 1e-5))
    assert answer.is_contiguous()


def test_a_norm_in_half_precision_answers_in_half_precision() -> None:
    x = drawn(1, 5, 8).bfloat16()
    ones, zeros = torch.ones(8).bfloat16(), torch.zeros(8).bfloat16()

    assert shifted_layer_norm(x, drawn(8), ones, zeros, 1e-5).dtype == torch.bfloat16


@pytest.mark.parametrize("rows", [slice(None), slice(1, None, 2), slice(1, 2)])
def test_a_product_is_added_where_the_tokens_lie(rows: slice) -> None:
    tokens, weight = drawn(4, 5, 8, seed=1), drawn(8, 6, seed=2)
    before = tokens.clone()
    x = drawn(len(tokens[rows]), 5, 6, seed=3)
    add_matmul(tokens[rows], x, weight)

    expected = before.clone()
    expected[rows] += linear(x, weight)
    torch.testing.assert_close(tokens, expected)


def test_a_gated_product_is_a_product_times_the_gelu_of_another() -> None:
    x, weight, bias = drawn(2, 3, 4, seed=1), drawn(10, 4, seed=2), drawn(10, seed=3)
    expected = linear(x, weight[:5], bias[:5]) * gelu(linear(x, weight[5:], bias[5:]))

    torch.testing.assert_close(geglu_matmul(x, weight, bias), expected)


# Whole images ---------------------------------------------------------------------------------------------------------


def request(seed: int = 0, num_steps: int = 3, **others: Any) -> Request:
    return Request("a cat", num_steps=num_steps, seed=seed, height_px=32, width_px=32, **others)


@pytest.fixture(scope="module")
def lean_engine(files: dict[str, Path]) -> Iterator[StepEngine]:
    pipeline, compute = build(CONTROLLED), CudaGraphExecutor()
    family = family_of(pipeline)
    nets = dict(zip(("depth", "edges"), pipeline.controlnet.nets, strict=True))
    workers = {name: StreamWorker(net, compute) for name, net in nets.items()}
    loras = Loras(family, ThreadLoader(files, LoraTargets.of(pipeline)), stacks=compute.prepared(family.network).stacks)
    controls = Controls(family, nets, workers)
    yield StepEngine(pipeline, compute=compute, add_ons=[loras, controls])
    loras.close()
    controls.close()


def test_images_of_requests_together_are_those_of_diffusers(lean_engine: StepEngine) -> None:
    requests = [request(1), request(2, 2, negative_prompt="blurry"), request(3, guidance=1.0)]
    ours = images(lean_engine, requests)

    assert max(gap(one, stock_latents(tiny(SDXL), two)) for one, two in zip(ours, requests, strict=True)) < EXACT


def test_merged_loras_are_felt_and_taken_out_again(lean_engine: StepEngine, files: dict[str, Path]) -> None:
    requests = [request(6, loras=uses) for uses in ((), (LoraUse("paper", 0.8), LoraUse("film", 0.5)), ())]
    ours = [images(lean_engine, [one])[0] for one in requests]

    assert max(gap(one, stock(files, two)) for one, two in zip(ours, requests, strict=True)) < EXACT
    assert torch.equal(ours[0], ours[2])


def test_controlnets_are_lean_too_and_give_the_same_images(lean_engine: StepEngine) -> None:
    picture = Image.effect_noise((32, 32), 64).convert("RGB")
    uses = (ControlUse("depth", picture, scale=0.8), ControlUse("edges", picture, scale=0.3))
    one = request(4, controls=uses)
    (ours,) = images(lean_engine, [one])
    theirs = stock_latents(
        tiny(CONTROLLED),
        replace(one, controls=()),
        image=[use.image for use in uses],
        controlnet_conditioning_scale=[use.scale for use in uses],
    )

    assert gap(ours, theirs) < EXACT


@pytest.mark.parametrize(("device", "tries"), [("cpu", False), ("cuda", True)])
def test_convolutions_are_tried_out_where_calls_are_recorded(
    monkeypatch: pytest.MonkeyPatch, device: str, tries: bool
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    compute_module._autotune_convolutions(torch.device(device))

    assert torch.backends.cudnn.benchmark is tries


# Times ----------------------------------------------------------------------------------------------------------------


def test_what_time_adds_is_computed_once_for_all_blocks_and_forgotten_after_the_call() -> None:
    unet = with_biases(build(SDXL).unet)
    given = inputs(unet)
    plain = predicted(unet, given)
    FusedResidualBlocks(unet, stack_layers(unet))
    blocks = [one for one in unet.modules() if type(one).__name__ == "ResnetBlock2D"]
    calls: list[int] = []
    seen: list[bool] = []
    for one in blocks:
        one.time_emb_proj.register_forward_hook(lambda *_: calls.append(1))
    blocks[-1].register_forward_pre_hook(lambda module, _args: seen.append(hasattr(module, "time_numbers")))
    ours = predicted(unet, given)

    assert gap(ours, plain) < EXACT
    assert (calls, seen) == ([], [True])
    assert not any(hasattr(one, "time_numbers") for one in blocks)


def test_patched_weights_of_the_time_are_felt_in_the_next_call() -> None:
    unet = build(SDXL).unet
    given = inputs(unet)
    FusedResidualBlocks(unet, stack_layers(unet))
    before = predicted(unet, given)
    unet.mid_block.resnets[0].time_emb_proj.weight.data.mul_(2)
    after = predicted(unet, given)
    with FusedResidualBlocks(unet).separate():
        plain = predicted(unet, given)

    assert gap(after, plain) < EXACT
    assert gap(after, before) > EXACT


def test_times_are_forgotten_when_a_call_fails() -> None:
    unet = build(SDXL).unet
    FusedResidualBlocks(unet, stack_layers(unet))
    given = inputs(unet) | {"encoder_hidden_states": torch.zeros(2, 7, 3)}
    with pytest.raises(RuntimeError):
        predicted(unet, given)

    assert not any(hasattr(one, "time_numbers") for one in unet.modules())


def test_blocks_beside_one_that_computes_otherwise_project_the_time_for_themselves() -> None:
    unet = with_biases(build(SDXL).unet)
    odd = unet.mid_block.resnets[0]
    odd.nonlinearity = torch.nn.ReLU()
    given = inputs(unet)
    plain = predicted(unet, given)
    FusedResidualBlocks(unet, stack_layers(unet))
    seen: dict[Any, bool] = {}
    blocks = [one for one in unet.modules() if type(one).__name__ == "ResnetBlock2D"]
    for one in blocks:
        one.register_forward_pre_hook(lambda module, _args: seen.update({module: hasattr(module, "time_numbers")}))

    assert gap(predicted(unet, given), plain) < EXACT
    assert {one for one in blocks if not seen[one]} == {one for one in blocks if one.out_channels == odd.out_channels}
    assert any(seen.values())
