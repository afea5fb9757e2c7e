"""Weights in stacks: the same numbers in another place, patched a whole stack at a time, and given back bit for bit."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch

from serving.lora_cases import SDXL
from serving.stock import ENGINE_MARKS
from takeup.serving.diffusion.addons.lora.addon import LoraPacker, StackedWeights, StagedFactors
from takeup.serving.diffusion.addons.lora.targets import DENOISERS, layers_of
from takeup.serving.diffusion.addons.lora.weights import Lora, PatchedWeights
from takeup.serving.diffusion.engine.tiny import build
from takeup.serving.diffusion.execution.packed_attention import PackedAttention
from takeup.serving.diffusion.execution.weight_stacks import stack_layers

pytestmark = ENGINE_MARKS


def denoiser(pipeline: Any) -> dict[Any, Any]:
    return {layer: module for layer, module in layers_of(pipeline).items() if layer[0] in DENOISERS}


def values(layers: dict[Any, Any]) -> dict[Any, torch.Tensor]:
    return {layer: module.weight.detach().clone() for layer, module in layers.items()}


@pytest.fixture
def stacked() -> tuple[dict[Any, Any], StackedWeights]:
    pipeline = build(SDXL)
    stacks = stack_layers(pipeline.unet)
    layers = denoiser(pipeline)
    return layers, StackedWeights(layers, stacks, "unet")


def test_stacking_changes_no_number_and_every_layer_has_a_place() -> None:
    unet = build(SDXL).unet
    before = {name: tensor.clone() for name, tensor in unet.state_dict().items()}
    stacks = stack_layers(unet)
    linear = {name for name, module in unet.named_modules() if isinstance(module, torch.nn.Linear)}

    assert all(torch.equal(before[name], tensor) for name, tensor in unet.state_dict().items())
    assert set(stacks.places) == linear


def test_a_layer_and_its_slice_of_the_stack_are_the_same_memory() -> None:
    unet = build(SDXL).unet
    stacks = stack_layers(unet)
    path = "mid_block.attentions.0.proj_in"
    place = stacks.places[path]
    stacks.stacks[place.stack].block[place.number].fill_(3)

    assert (unet.get_submodule(path).weight == 3).all()


def test_neighbours_are_one_weight_with_all_outputs() -> None:
    unet = build(SDXL).unet
    stacks = stack_layers(unet)
    path = "mid_block.attentions.0.transformer_blocks.0.attn1"
    attention = unet.get_submodule(path)
    together = torch.cat([attention.to_q.weight, attention.to_k.weight, attention.to_v.weight])

    assert stacks.are_neighbours((f"{path}.to_q", f"{path}.to_k", f"{path}.to_v"))
    assert not stacks.are_neighbours((f"{path}.to_k", f"{path}.to_q"))
    assert torch.equal(stacks.rows(f"{path}.to_q", 3), together)


def test_texts_are_projected_for_all_layers_as_each_layer_would() -> None:
    unet = build(SDXL).unet
    packed = PackedAttention(unet, stack_layers(unet))
    text = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(0))
    blocks = packed.blocks(text)
    packed.project(text, blocks)
    packed.attach(blocks)
    attention = unet.get_submodule("mid_block.attentions.0.transformer_blocks.1.attn2")
    with torch.no_grad():
        expected = torch.stack([attention.to_k(text), attention.to_v(text)])

    assert torch.allclose(attention.packed_text, expected, atol=1e-6)


def test_unpacked_layers_are_called_one_by_one() -> None:
    unet = build(SDXL).unet
    attention = unet.get_submodule("mid_block.attentions.0.transformer_blocks.0.attn1")
    original = attention.processor
    packed = PackedAttention(unet, stack_layers(unet))
    while_packed = attention.processor
    with packed.unpacked():
        while_unpacked = attention.processor

    assert while_unpacked is original
    assert type(attention.processor) is type(while_packed) is not type(original)
    assert len(packed._original) == sum(name.endswith((".attn1", ".attn2")) for name, _ in unet.named_modules())


@pytest.mark.parametrize(
    "names", [("paper",), ("film",), ("paper", "film"), ("loha",), ("loha", "paper"), ("words", "film")]
)
def test_stacks_are_patched_to_what_layers_are_patched_to_one_by_one(
    stacked: tuple[dict[Any, Any], StackedWeights], loras: dict[str, Lora], names: tuple[str, ...]
) -> None:
    layers, grouped = stacked
    plain_layers = denoiser(build(SDXL))
    chosen = tuple((loras[name], 0.7 + number) for number, name in enumerate(names))
    plain = PatchedWeights(plain_layers)
    plain.use(plain.stage(chosen))
    grouped.use(grouped.stage(chosen))
    ours, theirs = values(layers), values(plain_layers)

    assert max(float((ours[layer] - theirs[layer]).abs().max()) for layer in layers) < 1e-6


def test_sets_can_follow_each_other_in_any_order(
    stacked: tuple[dict[Any, Any], StackedWeights], loras: dict[str, Lora]
) -> None:
    layers, grouped = stacked
    before = values(layers)
    sets = [((loras["paper"], 1.0),), ((loras["loha"], 1.0),), ((loras["film"], 0.5), (loras["paper"], 0.3)), ()]
    staged = [grouped.stage(one) for one in sets]
    direct = []
    for one in staged:
        grouped.use(one)
        direct.append(values(layers))
        grouped.use()
        assert all(torch.equal(before[layer], now) for layer, now in values(layers).items())
    for number in (1, 2, 0, 3, 2, 1, 0):
        grouped.use(staged[number])
        now = values(layers)
        assert all(torch.equal(direct[number][layer], now[layer]) for layer in layers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_thousand_swaps_of_stacks_leave_the_weights_bit_for_bit_as_they_were(
    loras: dict[str, Lora], dtype: torch.dtype
) -> None:
    pipeline = build(SDXL)
    pipeline.unet.to(dtype)
    grouped = StackedWeights(denoiser(pipeline), stack_layers(pipeline.unet), "unet")
    before = {name: tensor.clone() for name, tensor in pipeline.unet.state_dict().items()}
    sets = [((loras["paper"], 1.0),), ((loras["film"], 0.5), (loras["paper"], 0.3)), ((loras["loha"], 1.0),)]
    staged = [grouped.stage(one) for one in sets]
    for number in range(1000):
        grouped.use(staged[number % 3])
    grouped.use()

    assert all(torch.equal(before[name], tensor) for name, tensor in pipeline.unet.state_dict().items())


def test_a_pack_lies_one_block_behind_the_other_and_is_made_once(loras: dict[str, Lora]) -> None:
    stacks = stack_layers(build(SDXL).unet)
    packer = LoraPacker(stacks, "unet", max_kept=1)
    pack = packer.pack(loras["paper"])
    starts, ends = zip(*((span.start, span.stop) for span in pack.spans().values()), strict=True)
    sizes = [up.numel() + down.numel() for up, down in pack.pieces(pack.host).values()]

    assert packer.pack(loras["paper"]) is pack
    assert starts == (0, *ends[:-1])
    assert ends[-1] == pack.host.numel() == sum(sizes)
    assert packer.pack(loras["film"]) is not pack
    assert packer.pack(loras["paper"]) is not pack


def test_a_layer_that_one_lora_changes_otherwise_is_patched_alone(
    stacked: tuple[dict[Any, Any], StackedWeights], loras: dict[str, Lora]
) -> None:
    both = stacked[1].stage(((loras["loha"], 1.0), (loras["paper"], 1.0)))
    paper = stacked[1].stage(((loras["paper"], 1.0),))
    assert isinstance(both, StagedFactors)

    assert set(both.weights) >= set(loras["loha"].changes)
    assert not set(paper.weights) & {layer for layer in loras["paper"].changes if stacked[0][layer].weight.ndim == 2}
