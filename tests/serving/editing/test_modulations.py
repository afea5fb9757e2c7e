"""What time and prompt do to the norms of Flux, made for all steps at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch

from serving.editing.networks import Network
from serving.stock import ENGINE_MARKS, gap
from takeup.serving.editing.masked.transformer_blocks import KINDS, Modulations

pytestmark = ENGINE_MARKS
TEXT = "encoder_hidden_states"


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
    made = Modulations(flux.family.network, len(inputs["hidden_states"]))
    numbers = made.of(timesteps, inputs)
    made.put()
    ours = []
    for step in (2, 0, 1):
        made.show(numbers[step])
        ours.append(predicted(flux, inputs, 0.5))  # what a call says of its time is not looked at
    made.remove()

    assert max(gap(one, plain[step]) for one, step in zip(ours, (2, 0, 1), strict=True)) < 1e-5
    assert gap(plain[0], plain[2]) > 1e-3
    assert torch.equal(predicted(flux, inputs, 0.7), plain[1])
    assert not any("kept_numbers" in vars(one) for one in flux.family.network.modules())


@torch.no_grad()
def test_requests_at_different_steps_have_numbers_of_their_own() -> None:
    with Network("takeup/tiny-flux", 2) as network:
        network.call.mode = "off"
        inputs, timesteps = flux_inputs(network), torch.tensor([1.0, 0.2])
        made = Modulations(network.family.network, 2)
        for row, step in enumerate((1, 0)):
            own = {name: inputs[name][row : row + 1] for name in ("hidden_states", "pooled_projections", "guidance")}
            made.show(made.of(timesteps, {**own, "timestep": inputs["timestep"]})[step], row)
        made.put()
        ours = predicted(network, inputs, 0.5)
        made.remove()
        plain = [predicted(network, inputs, float(timesteps[step])) for step in (1, 0)]

    assert gap(ours, torch.stack([plain[0][0], plain[1][1]])) < 1e-5


@torch.no_grad()
def test_another_edit_uses_the_same_memory(flux: Network) -> None:
    inputs, num_rows = flux_inputs(flux), len(flux.rows.sample)
    made = Modulations(flux.family.network, num_rows)
    made.put()
    layer = next(one.linear for one in flux.family.network.modules() if type(one).__name__ in KINDS)
    place = layer.kept_numbers.data_ptr()
    made.show(made.of(torch.tensor([0.9, 0.6, 0.3]), inputs)[1])
    same_place, is_shown = layer.kept_numbers.data_ptr() == place, bool(layer.kept_numbers.any())
    made.remove()

    assert same_place
    assert is_shown
    assert not hasattr(layer, "kept_numbers")


def test_what_was_never_put_is_removed_without_a_trace() -> None:
    with Network("takeup/tiny-flux") as network:
        Modulations(network.family.network, 1).remove()

        assert not any("forward" in vars(one) for one in network.family.network.modules())
