"""Rows without a text, and modulations of all steps at once: masked edits on fixed memory with less to compute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch

from serving.masked.networks import Network, block_mask
from serving.stock import ENGINE_MARKS, gap
from takeup.serving.engines.diffusers.masked.fast_flux import BoundFlux
from takeup.serving.engines.diffusers.masked.fast_unet import BoundUnet, _heard
from takeup.serving.engines.diffusers.masked.kept_columns import flatten_columns
from takeup.serving.engines.diffusers.masked.modulations import KINDS, Modulations
from takeup.serving.engines.diffusers.masked.pages import working_copy

pytestmark = ENGINE_MARKS

TEXT = "encoder_hidden_states"


# Rows without a text --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("is_heard", "rows"),
    [
        ([1, 1], (0, 1)),
        ([0, 1], (1, 2)),
        ([0, 1, 0, 1], (1, 2)),
        ([0, 0, 1, 1], (2, 1)),
        ([0, 1, 1, 1], (0, 1)),
        ([1, 0], (0, 1)),
        ([0, 0], (0, 1)),
        ([0], (0, 1)),
    ],
)
def test_rows_with_a_text_are_told_from_those_without(is_heard: list[int], rows: tuple[int, int]) -> None:
    text = torch.ones(len(is_heard), 3, 4) * torch.tensor(is_heard, dtype=torch.float32)[:, None, None]

    assert _heard(text) == rows


@pytest.fixture
def unet() -> Iterator[Network]:
    """Two requests in the middle of an edit, recorded and masked."""
    with Network("takeup/tiny-sdxl", 2, 64, convolutions=True) as network:
        yield network


def silenced(network: Network) -> None:
    for run in network.runs:
        run.inputs[TEXT] = run.inputs[TEXT].clone()
        run.inputs[TEXT][0] = 0


def bound(network: Network) -> BoundUnet:
    masks = [block_mask(network.grid, 0.2), block_mask(network.grid, 0.1)]
    network.whole()
    for run, mask in zip(network.runs, masks, strict=True):
        run.latents[:, :, mask] += 1.0
    network.masked(masks, multiple=4)
    network.hooks.remove()
    made = BoundUnet(network.family.network, network.call.recorded, network.call.places, network.grid)
    made.flats[0].fill(*made.flats[0].cut(flatten_columns(network.call.recorded)))
    return made


def test_a_row_without_a_text_gets_what_attention_to_zeros_gives(
    unet: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    silenced(unet)
    made = bound(unet)
    made.tell(unet.rows.inputs[TEXT])
    ours = unet.family.predict(unet.rows).clone()
    rows = {block.attn2.kept_text.shape[1] for _, block in made._blocks}
    monkeypatch.setattr("takeup.serving.engines.diffusers.masked.fast_unet._heard", lambda text: (0, 1))
    made.tell(unet.rows.inputs[TEXT])
    attending = unet.family.predict(unet.rows)
    all_rows = {block.attn2.kept_text.shape[1] for _, block in made._blocks}
    made.release()

    assert (rows, all_rows) == ({2}, {4})
    assert gap(ours, attending) < 1e-5


def test_a_text_like_the_one_before_lies_in_the_same_memory(unet: Network) -> None:
    made = bound(unet)
    text = unet.rows.inputs[TEXT] + 1
    layer = made._blocks[0][1].attn2
    first = made.tell(text)
    place = layer.kept_text.data_ptr()
    again = made.tell(text * 2)
    moved = layer.kept_text.data_ptr() != place
    silent = text.clone()
    silent[::2] = 0
    other = made.tell(silent)
    made.release()

    assert (first, again, moved, other) == (False, True, False, False)


def test_values_with_a_bias_are_never_silent(unet: Network) -> None:
    silenced(unet)
    made = bound(unet)
    layer = made._blocks[0][1].attn2.to_v
    layer.bias = torch.nn.Parameter(torch.ones(layer.out_features))
    try:
        made.tell(unet.rows.inputs[TEXT])
        rows = made._blocks[0][1].attn2.kept_text.shape[1]
    finally:
        layer.bias = None
        made.release()

    assert rows == 4


# Modulations ----------------------------------------------------------------------------------------------------------


def flux_inputs(network: Network) -> dict[str, Any]:
    rows = network.rows
    return {"hidden_states": rows.sample, "timestep": rows.timestep / 1000, **rows.inputs, **rows.shared}


def predicted(network: Network, inputs: dict[str, Any], timestep: float) -> torch.Tensor:
    names = ("hidden_states", TEXT, "pooled_projections", "guidance", "img_ids", "txt_ids")
    given = {name: inputs[name] for name in names if inputs.get(name) is not None}
    found: torch.Tensor = network.family.network(
        **given, timestep=torch.full_like(inputs["timestep"], timestep), return_dict=False
    )[0]
    return found


@pytest.fixture(params=[1, 2])
def flux(request: pytest.FixtureRequest) -> Iterator[Network]:
    with Network("takeup/tiny-flux", request.param) as network:
        network.call.mode = "off"
        yield network


@torch.no_grad()
def test_steps_with_their_modulations_made_before_are_the_steps(flux: Network) -> None:
    inputs, timesteps = flux_inputs(flux), torch.tensor([1.0, 0.7, 0.2])
    plain = [predicted(flux, inputs, float(one)) for one in timesteps]
    made = Modulations(flux.family.network)
    made.tell(timesteps, inputs)
    ours = []
    for step in (2, 0, 1):
        made.use(step)
        ours.append(predicted(flux, inputs, 0.5))  # what a call says of its time is not looked at
    made.remove()

    assert max(gap(one, plain[step]) for one, step in zip(ours, (2, 0, 1), strict=True)) < 1e-5
    assert gap(plain[0], plain[2]) > 1e-3
    assert torch.equal(predicted(flux, inputs, 0.7), plain[1])


@torch.no_grad()
def test_another_edit_uses_the_same_memory(flux: Network) -> None:
    inputs = flux_inputs(flux)
    made = Modulations(flux.family.network)
    made.tell(torch.tensor([1.0, 0.5]), inputs)
    layer = next(one.linear for one in flux.family.network.modules() if type(one).__name__ in KINDS)
    place, before = layer.kept_numbers.data_ptr(), layer.kept_numbers.clone()
    made.tell(torch.tensor([0.9, 0.6, 0.3]), inputs)
    after = layer.kept_numbers.clone()
    same_place = layer.kept_numbers.data_ptr() == place
    made.remove()

    assert same_place
    assert not torch.equal(before, after)
    assert not hasattr(layer, "kept_numbers")


def test_what_was_never_told_is_removed_without_a_trace() -> None:
    with Network("takeup/tiny-flux") as network:
        Modulations(network.family.network).remove()

        assert not any("forward" in vars(one) for one in network.family.network.modules())


@torch.no_grad()
def test_a_bound_network_is_told_its_timesteps_and_is_as_it_was_when_released() -> None:
    with Network("takeup/tiny-flux") as network:
        network.whole()
        mask = block_mask(network.grid, 0.2)
        hooked = network.masked([mask], multiple=4)
        network.hooks.remove()
        page = working_copy(network.call.recorded, network.hooks.fronted, network.call.num_front)
        fast = BoundFlux(network.family.network, page, network.call.places, network.runs[0].shared)
        for name, kept in page.items():
            fast.flats[0].views[name].copy_(kept)
        inputs = flux_inputs(network)
        now = float(inputs["timestep"][0])
        fast.tell(torch.tensor([0.01, now]), inputs)
        fast.at(1)
        ours = network.family.predict(network.rows).clone()
        fast.at(0)
        elsewhere = network.family.predict(network.rows).clone()
        fast.release()

    assert gap(ours, hooked) < 1e-5
    assert gap(elsewhere, hooked) > 1e-4
    assert not any("forward" in vars(one) for one in network.family.network.modules())
