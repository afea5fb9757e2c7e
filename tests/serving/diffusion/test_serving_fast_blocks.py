"""Joined norms, attention to a text, eight bits and recorded encoders: what they compute, and when they step aside."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import group_norm, linear, silu

from serving.stock import ENGINE_MARKS, gap
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.engine.tiny import build, tiny
from takeup.serving.diffusion.execution.convolutions import channels_last
from takeup.serving.diffusion.execution.cuda_graph import capture_encoders
from takeup.serving.diffusion.execution.executors import CudaGraphExecutor, prepare_network
from takeup.serving.diffusion.execution.fp8 import FP8, Fp8Layers, fp8_matmul
from takeup.serving.diffusion.execution.ops import joined_norm, self_attention, text_attention
from takeup.serving.diffusion.execution.unet_blocks import FusedResidualBlocks
from takeup.serving.diffusion.execution.weight_stacks import stack_layers
from takeup.serving.model import Request

pytestmark = ENGINE_MARKS


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs() -> dict[str, Any]:
    return {
        "sample": drawn(2, 4, 16, 16, seed=1),
        "timestep": torch.tensor([3.0, 500.0]),
        "encoder_hidden_states": drawn(2, 7, 64, seed=2),
        "added_cond_kwargs": {"text_embeds": drawn(2, 32, seed=3), "time_ids": drawn(2, 6, seed=4)},
        "return_dict": False,
    }


@torch.no_grad()
def predicted(unet: Any) -> torch.Tensor:
    (prediction,) = unet(**inputs())
    found: torch.Tensor = prediction
    return found


# Operations -----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(
    num_first=st.sampled_from([8, 16, 24]),
    num_second=st.sampled_from([0, 8, 16]),
    side=st.integers(1, 6),
    has_added=st.booleans(),
    has_silu=st.booleans(),
)
def test_a_joined_norm_is_joining_adding_and_norming(
    num_first: int, num_second: int, side: int, has_added: bool, has_silu: bool
) -> None:
    num_channels = num_first + num_second
    image = drawn(2, num_first, side, side + 1, seed=1)
    skip = drawn(2, num_second, side, side + 1, seed=2) if num_second else None
    added = drawn(2, num_channels, seed=3) if has_added else None
    weight, bias = drawn(num_channels, seed=4), drawn(num_channels, seed=5)
    normed, joined = joined_norm(image, skip, added, weight, bias, 4, 1e-5, has_silu)

    whole = image if skip is None else torch.cat([image, skip], 1)
    shifted = whole if added is None else whole + added[:, :, None, None]
    expected = group_norm(shifted, 4, weight, bias, 1e-5)
    torch.testing.assert_close(normed, silu(expected) if has_silu else expected)
    assert normed.is_contiguous(memory_format=torch.channels_last)
    assert joined.numel() == 0 if skip is None else torch.equal(joined, whole)


def test_attention_to_a_text_is_a_mean_of_its_values_with_weights_that_add_up_to_one() -> None:
    query, keys = drawn(2, 5, 12, seed=1), drawn(2, 3, 12, seed=2)
    same = torch.ones(2, 3, 12) * 7
    answer = text_attention(query, torch.stack([keys, same]), 3)

    assert torch.allclose(answer, torch.full_like(query, 7.0))


def test_attention_to_a_text_is_computed_head_by_head() -> None:
    query, keys, values = drawn(1, 4, 6, seed=1), drawn(1, 5, 6, seed=2), drawn(1, 5, 6, seed=3)
    answer = text_attention(query, torch.stack([keys, values]), 2)

    for head in (slice(0, 3), slice(3, 6)):
        weights = (query[0, :, head] @ keys[0, :, head].T / 3**0.5).softmax(-1)
        torch.testing.assert_close(answer[0, :, head], weights @ values[0, :, head])


@pytest.mark.parametrize("with_skip", [False, True])
def test_compilers_are_told_the_shapes_that_come_out(with_skip: bool) -> None:
    skip = drawn(2, 4, 3, 3) if with_skip else None
    num_channels = 12 if with_skip else 8
    given_tensors = (drawn(2, 8, 3, 3), skip, None, torch.ones(num_channels), torch.zeros(num_channels))
    checks = ("test_schema", "test_faketensor")

    torch.library.opcheck(joined_norm, (*given_tensors, 2, 1e-5, True), test_utils=checks)
    torch.library.opcheck(text_attention, (drawn(2, 5, 8), drawn(2, 2, 3, 8), 2), test_utils=checks)
    torch.library.opcheck(self_attention, (drawn(2, 5, 24), 2), test_utils=checks)


def test_attention_of_tokens_to_each_other_is_computed_head_by_head() -> None:
    packed = drawn(1, 5, 18, seed=1)
    answer = self_attention(packed, 2)

    for head in (0, 1):
        query, key, value = (packed[0, :, 6 * part + 3 * head : 6 * part + 3 * head + 3] for part in range(3))
        weights = (query @ key.T / 3**0.5).softmax(-1)
        torch.testing.assert_close(answer[0, :, 3 * head : 3 * head + 3], weights @ value)


# Blocks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["takeup/tiny-sd15", "takeup/tiny-sdxl"])
def test_joined_blocks_predict_what_diffusers_predicts(name: str) -> None:
    unet = channels_last(build(name).unet)
    width = unet.config.cross_attention_dim
    given_inputs = {**inputs(), "encoder_hidden_states": inputs()["encoder_hidden_states"][..., :width]}
    with torch.no_grad():
        (plain,) = unet(**given_inputs)
        joined = FusedResidualBlocks(unet)
        (ours,) = unet(**given_inputs)

    assert len(joined._forwards) > len(unet.up_blocks)
    assert gap(ours, plain) < 1e-5


def test_every_residual_block_of_the_way_up_takes_its_skip_as_it_is() -> None:
    unet = build("takeup/tiny-sdxl").unet
    FusedResidualBlocks(unet)
    seen: list[int] = []
    for block in unet.up_blocks:
        for resnet in block.resnets:
            resnet.register_forward_pre_hook(lambda _module, args: seen.append(len(args)))
    predicted(unet)

    assert seen == [3] * sum(len(block.resnets) for block in unet.up_blocks)


def test_blocks_step_aside_for_hooks_and_come_back() -> None:
    unet = build("takeup/tiny-sdxl").unet
    joined = FusedResidualBlocks(unet)
    calls: list[str] = []
    for name, module in unet.named_modules():
        if name.endswith("resnets.0.conv1"):
            module.register_forward_hook(lambda *_: calls.append("conv"))
    with joined.separate():
        inside = predicted(unet)
    num_inside = len(calls)
    outside = predicted(unet)

    assert num_inside > 0
    assert len(calls) == num_inside  # their weights are read, the modules are not called
    assert gap(outside, inside) < 1e-5


def test_blocks_that_compute_otherwise_are_left_alone() -> None:
    unet = build("takeup/tiny-sdxl").unet
    odd = unet.up_blocks[0].resnets[0]
    odd.time_embedding_norm = "scale_shift"
    FusedResidualBlocks(unet)

    assert "forward" not in odd.__dict__
    assert "forward" not in unet.up_blocks[0].__dict__
    assert "forward" in unet.up_blocks[1].__dict__


# Eight bits -----------------------------------------------------------------------------------------------------------


def eight(unet: Any) -> Fp8Layers:
    return Fp8Layers(unet, stack_layers(unet))


def test_a_product_in_eight_bits_is_exact_for_numbers_that_have_eight() -> None:
    x = torch.tensor([[1.0, -2.0, 0.5, 4.0]])
    weight = torch.tensor([[1.0, 0.25, 2.0, -1.0], [0.0, 8.0, 1.0, 0.5]])
    scales = torch.ones(()), torch.tensor(0.5)
    answer = fp8_matmul(x, weight.to(FP8), scales, torch.tensor([10.0, 20.0]))

    assert torch.equal(answer, 0.5 * linear(x, weight) + torch.tensor([10.0, 20.0]))


def test_what_is_too_large_for_eight_bits_is_cut_and_not_lost() -> None:
    answer = fp8_matmul(torch.tensor([[1e6, -1e6]]), torch.eye(2).to(FP8), (torch.ones(()), torch.ones(())))

    assert answer.tolist() == [[448.0, -448.0]]


def test_eight_bits_change_a_prediction_a_little() -> None:
    unet = build("takeup/tiny-sdxl").unet
    plain = predicted(unet)
    rounding = eight(unet)
    ours = predicted(unet)

    assert len(rounding._forwards) > 0
    assert 1e-4 < gap(ours, plain) < 0.2


def test_layers_compute_with_their_own_weights_again_while_hooks_need_them() -> None:
    unet = build("takeup/tiny-sdxl").unet
    plain = predicted(unet)
    rounding = eight(unet)
    with rounding.separate():
        inside = predicted(unet)

    assert torch.equal(inside, plain)
    assert not torch.equal(predicted(unet), plain)


def test_new_weights_are_felt_when_they_are_followed_and_only_then() -> None:
    unet = build("takeup/tiny-sdxl").unet
    prepared = prepare_network(unet, eight_bits=True)
    layer = unet.up_blocks[0].attentions[0].transformer_blocks[0].ff.net[2]
    x = drawn(3, layer.in_features)
    before = layer(x)
    layer.weight.data.mul_(-1)
    prepared.follow(())
    unfollowed = layer(x)
    prepared.follow(("other", 1.0))
    bias = layer.bias

    assert torch.equal(unfollowed, before)
    torch.testing.assert_close(layer(x) - bias, -(before - bias), atol=1e-5, rtol=1e-4)


def test_images_in_eight_bits_are_like_those_without() -> None:
    one = Request("a cat", num_steps=3, seed=1, height_px=32, width_px=32)
    latents = []
    for compute in (None, CudaGraphExecutor(eight_bits=True)):
        engine = StepEngine(build("takeup/tiny-sdxl"), compute=compute)
        ticket = engine.submit(one)
        engine.run()
        latents.append(ticket.result().latents)

    assert 1e-4 < gap(latents[1], latents[0]) < 0.1


# Encoders -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded_pipeline() -> Any:
    pipeline = build("takeup/tiny-sdxl")
    assert capture_encoders(pipeline) == 2
    return pipeline


def request(prompt: str) -> Request:
    return Request(prompt, num_steps=2, height_px=32, width_px=32)


def test_recorded_encoders_say_what_encoders_say(recorded_pipeline: Any) -> None:
    for prompt in ("a cat", "a dog in the rain", "a cat"):
        ours = family_of(recorded_pipeline).encode(request(prompt))
        theirs = family_of(tiny("takeup/tiny-sdxl")).encode(request(prompt))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_parts_of_recorded_encoders_are_not_looked_through(
    recorded_pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    family_of(recorded_pipeline).encode(request("a cat"))  # the first time it is recorded
    seen: list[torch.nn.Module] = []
    usual = torch.nn.Module.modules

    def modules(module: torch.nn.Module) -> list[torch.nn.Module]:
        seen.extend(usual(module))
        return list(usual(module))

    monkeypatch.setattr(torch.nn.Module, "modules", modules)
    family_of(recorded_pipeline).encode(request("a cat"))
    num_light = len(seen)
    family_of(tiny("takeup/tiny-sdxl")).encode(request("a cat"))

    assert num_light == 4  # each of two encoders, twice
    assert len(seen) - num_light > 40


def test_an_answer_is_not_overwritten_by_the_next_one(recorded_pipeline: Any) -> None:
    family = family_of(recorded_pipeline)
    first = family.encode(request("a cat"))["encoder_hidden_states"]
    kept = first.clone()
    family.encode(request("something else"))

    assert torch.equal(first, kept)


def test_encoders_that_are_patched_in_place_say_something_else(recorded_pipeline: Any) -> None:
    pipeline = copy.deepcopy(recorded_pipeline.text_encoder_2)  # recordings do not travel: the copy has its own weights
    weight = recorded_pipeline.text_encoder_2.text_projection.weight
    family = family_of(recorded_pipeline)
    before = family.encode(request("a cat"))["text_embeds"]
    weight.data.mul_(2)
    after = family.encode(request("a cat"))["text_embeds"]
    weight.data.mul_(0.5)

    assert pipeline.text_projection.weight is not weight
    torch.testing.assert_close(after, 2 * before)


def test_encoders_are_recorded_once(recorded_pipeline: Any) -> None:
    assert capture_encoders(recorded_pipeline) == 0
    assert capture_encoders(object()) == 0


def test_a_call_with_other_tensors_is_made_as_usual(recorded_pipeline: Any) -> None:
    encoder = recorded_pipeline.text_encoder
    tokens = torch.tensor([[1, 2, 3]])
    masked = encoder(tokens, attention_mask=torch.tensor([[1, 1, 0]]))
    alone = tiny("takeup/tiny-sdxl").text_encoder(tokens, attention_mask=torch.tensor([[1, 1, 0]]))

    assert torch.equal(masked.last_hidden_state, alone.last_hidden_state)
