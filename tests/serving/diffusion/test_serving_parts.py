"""The small parts of the diffusers engine: guidance, rows, schedulers, names of layers, keys, and where tensors lie."""

from __future__ import annotations

import copy
from importlib import import_module
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch
from hypothesis import given
from hypothesis import strategies as st

from serving.lora_cases import UNET
from serving.lora_files import factors
from serving.stock import ENGINE_MARKS
from takeup.serving.diffusion.addons.lora.file_format import sort_keys
from takeup.serving.diffusion.addons.lora.targets import LoraTargets, layers_of
from takeup.serving.diffusion.addons.lora.weights import BufferSlice, LayerChange, Lora
from takeup.serving.diffusion.contract import gather
from takeup.serving.diffusion.engine.families import FAMILIES, family_of
from takeup.serving.diffusion.engine.sampling import SCHEDULERS, guided, new_scheduler, set_steps, size_of, step_options
from takeup.serving.diffusion.engine.steps import Ticket
from takeup.serving.diffusion.engine.tiny import tiny
from takeup.serving.model import Cancelled, Request

pytestmark = ENGINE_MARKS
SMALL = Request("a cat", num_steps=3, height_px=32, width_px=32)


@pytest.fixture(scope="module")
def targets() -> LoraTargets:
    return LoraTargets.of(tiny("takeup/tiny-sdxl"))


# Guidance and rows --------------------------------------------------------------------------------------------------


def test_guidance_goes_away_from_the_negative_branch() -> None:
    both = torch.tensor([[1.0, 2.0], [3.0, 2.0]])

    assert guided(both, 4.0).tolist() == [[9.0, 2.0]]
    assert guided(both[:1], 4.0).tolist() == [[1.0, 2.0]]


def test_rescaled_guidance_is_that_of_diffusers() -> None:
    both = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    module = import_module("diffusers.pipelines.stable_diffusion.pipeline_stable_diffusion")
    plain = guided(both, 5.0)

    assert torch.equal(guided(both, 5.0, 0.7), module.rescale_noise_cfg(plain, both[1:], guidance_rescale=0.7))


def test_every_row_has_the_timestep_of_its_request() -> None:
    family = family_of(tiny("takeup/tiny-sdxl"))
    first, second = (
        family.prepare(SMALL),
        family.prepare(Request("x", num_steps=5, guidance=1.0, height_px=32, width_px=32)),
    )
    second.step = 2
    rows = gather((first, second))

    assert rows.sizes == [2, 1]
    assert rows.timestep.tolist() == [float(first.timesteps[0])] * 2 + [float(second.timesteps[2])]
    assert {len(tensor) for tensor in (rows.sample, *rows.inputs.values())} == {3}


@pytest.mark.parametrize(
    ("other", "is_equal"),
    [
        ({"seed": 5, "num_steps": 9, "scheduler": "ddim", "guidance": 1.0}, True),
        ({"height_px": 48}, False),
    ],
)
def test_only_shapes_tell_buckets_apart(other: dict[str, Any], is_equal: bool) -> None:
    family = family_of(tiny("takeup/tiny-sdxl"))
    one = family.prepare(SMALL)
    changed = family.prepare(Request("a dog", **({"height_px": 32, "width_px": 32} | other)))

    assert (one.bucket() == changed.bucket()) is is_equal


@pytest.mark.parametrize("name", ["takeup/tiny-sd15", "takeup/tiny-sdxl", "takeup/tiny-sd3", "takeup/tiny-flux"])
def test_without_a_size_the_image_is_as_large_as_the_model_was_made_for(name: str) -> None:
    pipeline = tiny(name)
    height, width = size_of(pipeline, Request("a cat"))

    assert height == width
    assert height % pipeline.vae_scale_factor == 0
    assert type(pipeline).__name__ in FAMILIES


# Schedulers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_request_has_a_scheduler_of_its_own(name: str) -> None:
    pipeline = tiny("takeup/tiny-sdxl")
    first, second = (new_scheduler(pipeline, name) for _ in range(2))
    timesteps = set_steps(first, 4, torch.device("cpu"))
    untouched = copy.deepcopy(second.config)

    assert type(first).__name__ == SCHEDULERS[name]
    assert len(timesteps) >= 4
    assert second.config == untouched
    assert second.num_inference_steps != 4


def test_only_options_that_a_scheduler_knows_are_given_to_it() -> None:
    pipeline, generator = tiny("takeup/tiny-sdxl"), torch.Generator()
    known = {
        name: set(step_options(new_scheduler(pipeline, name), SMALL, generator)) for name in ("ddim", "euler", "lms")
    }

    assert known == {"ddim": {"eta", "generator"}, "euler": {"generator"}, "lms": set()}


# Tickets ------------------------------------------------------------------------------------------------------------


def test_a_ticket_ends_once() -> None:
    ticket = Ticket(0, family_of(tiny("takeup/tiny-sd15")).prepare(SMALL))
    ticket.cancel()

    assert ticket.leaves(0.0)
    assert ticket.is_over
    with pytest.raises(Cancelled, match="after 0 of 3 steps"):
        ticket.result(0)


# Keys ---------------------------------------------------------------------------------------------------------------

SUFFIXES = (".lora_A.weight", ".lora_B.weight", ".alpha", ".dora_scale", ".lokr_w1", ".diff", ".bias")


@given(st.sets(st.tuples(st.integers(0, 10**6), st.sampled_from(SUFFIXES)), max_size=20))
def test_every_key_ends_up_in_exactly_one_place(targets: LoraTargets, picks: set[tuple[int, str]]) -> None:
    names = [*targets.names, "unet.nowhere", "lora_te9_x", ""]
    keys = {names[number % len(names)] + suffix for number, suffix in picks}
    found = sort_keys(keys, targets)
    used = [key for parts in found.layers.values() for key in parts.values()]

    assert sorted([*used, *found.no_part, *found.no_layer, *found.twice]) == sorted(keys)


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("unet.conv_in.lora_A.weight", "down"),
        ("unet.conv_in.lora_B.default.weight", "up"),
        ("base_model.model.conv_in.lora_A.weight", "down"),
        ("conv_in.lora.up.weight", "up"),
        ("lora_unet_conv_in.lora_down.weight", "down"),
        ("lora_unet_input_blocks_0_0.lora_up.weight", "up"),
        ("lora_unet_conv_in.alpha", "alpha"),
        ("unet.conv_in.lora_magnitude_vector", "magnitude"),
        ("lora_unet_conv_in.dora_scale", "dora_scale"),
        ("lora_unet_conv_in.hada_w1_a", "hada_w1_a"),
        ("lora_unet_conv_in.lokr_w2_b", "lokr_w2_b"),
        ("lycoris_conv_in.lokr_w1", "lokr_w1"),
    ],
)
def test_all_spellings_of_a_part_mean_the_same_layer(targets: LoraTargets, key: str, part: str) -> None:
    assert sort_keys([key], targets).layers == {("unet", "conv_in"): {part: key}}


def test_no_name_means_two_layers(targets: LoraTargets) -> None:
    by_underscores: dict[str, set[tuple[str, str]]] = {}
    for component, path in targets.shapes:
        by_underscores.setdefault(f"{component}_{path.replace('.', '_')}", set()).add((component, path))

    assert all(len(layers) == 1 for layers in by_underscores.values())


# Changes ------------------------------------------------------------------------------------------------------------


def flat(layer: tuple[str, str], down: torch.Tensor, up: torch.Tensor, shape: tuple[int, ...]) -> Lora:
    pieces = {"down": BufferSlice(0, tuple(down.shape)), "up": BufferSlice(down.numel(), tuple(up.shape))}
    return Lora("x", torch.cat([down.flatten(), up.flatten()]), {layer: LayerChange(pieces, 0.5, shape, len(down))})


def test_the_change_of_a_linear_layer_worked_by_hand() -> None:
    layer = ("unet", "x")
    lora = flat(layer, torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]]), (2, 2))

    assert lora.delta(layer, 2.0).tolist() == [[3.0, 6.0], [4.0, 8.0]]
    assert lora.components == {"unet"}


@pytest.mark.parametrize("layer", UNET, ids=[path for _, path in UNET])
def test_merged_weights_add_the_low_rank_product_to_the_output(layer: tuple[str, str]) -> None:
    pipeline = tiny("takeup/tiny-sdxl")
    module = layers_of(pipeline)[layer]
    down, up = factors(pipeline, [layer])[layer]
    lora = flat(layer, down, up, tuple(module.weight.shape))
    size = (module.weight.shape[1], 8, 8) if module.weight.ndim == 4 else (5, module.weight.shape[1])
    x = torch.randn(3, *size, generator=torch.Generator().manual_seed(2))
    merged = copy.deepcopy(module)
    merged.weight.data += lora.delta(layer, 0.7)
    with torch.no_grad():
        if isinstance(module, torch.nn.Conv2d):
            inner = torch.conv2d(x, down, None, module.stride, module.padding)
            product = torch.einsum("or,brhw->bohw", up.flatten(1), inner)
        else:
            product = x @ down.T @ up.T
        expected = module(x) + 0.35 * product

    torch.testing.assert_close(merged(x), expected, rtol=1e-5, atol=1e-5)
