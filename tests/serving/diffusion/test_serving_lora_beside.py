"""LoRAs beside the weights: what is read again in every call, and what is kept."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch

from serving.stock import ENGINE_MARKS
from takeup.serving.diffusion.addons.lora.weights import BufferSlice, LayerChange, Lora, Sidecar

pytestmark = ENGINE_MARKS

LAYER = ("unet", "layer")
RANK, WIDTH = 2, 4


def lora(seed: int) -> Lora:
    """Changes the one layer by factor 3."""
    buffer = torch.randn(2 * RANK * WIDTH, generator=torch.Generator().manual_seed(seed))
    pieces = {"down": BufferSlice(0, (RANK, WIDTH)), "up": BufferSlice(RANK * WIDTH, (WIDTH, RANK))}
    return Lora(f"lora{seed}", buffer, {LAYER: LayerChange(pieces, 3.0, (WIDTH, WIDTH), RANK)})


@pytest.fixture
def layer() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(WIDTH, WIDTH).requires_grad_(False)


@pytest.fixture
def num_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of LoRAs, once for each time their parts are read."""
    names: list[str] = []
    usual = Lora.parts

    def parts(self: Lora, layer: Any) -> dict[str, torch.Tensor]:
        names.append(self.name)
        return usual(self, layer)

    monkeypatch.setattr(Lora, "parts", parts)
    return names


def merged(layer: torch.nn.Linear, x: torch.Tensor, *loras: tuple[Lora, float]) -> torch.Tensor:
    weight = layer.weight.clone()
    for one, scale in loras:
        weight += one.delta(LAYER, scale)
    return torch.nn.functional.linear(x, weight, layer.bias)


def test_every_row_is_computed_with_its_own_loras(layer: torch.nn.Linear) -> None:
    first, second = lora(1), lora(2)
    sets = [((first, 0.5),), (), ((second, 1.0), (first, -1.0)), ((first, 0.5),)]
    x = torch.randn(4, 3, WIDTH, generator=torch.Generator().manual_seed(3))
    with Sidecar({LAYER: layer}).applied(sets):
        ours = layer(x)

    for row, loras in enumerate(sets):
        torch.testing.assert_close(ours[row], merged(layer, x[row], *loras))
    assert torch.equal(layer(x), merged(layer, x))


def test_parts_are_read_when_they_are_first_needed_and_then_kept(layer: torch.nn.Linear, num_read: list[str]) -> None:
    sidecar, one = Sidecar({LAYER: layer}), lora(1)
    x = torch.ones(2, WIDTH)
    answers = []
    for scale in (1.0, 1.0, 0.25):
        with sidecar.applied([((one, scale),)] * 2):
            answers.append(layer(x))

    assert num_read == ["lora1"]
    assert torch.equal(answers[0], answers[1])
    torch.testing.assert_close(answers[2] - layer(x), (answers[0] - layer(x)) / 4)


def test_no_more_loras_are_kept_than_there_is_room_for(layer: torch.nn.Linear, num_read: list[str]) -> None:
    sidecar, loras = Sidecar({LAYER: layer}, max_kept=2), [lora(seed) for seed in range(3)]
    for number in (0, 1, 2, 2, 0):
        with sidecar.applied([((loras[number], 1.0),)]):
            layer(torch.ones(1, WIDTH))

    assert num_read == ["lora0", "lora1", "lora2", "lora0"]
    assert len(sidecar._kept) == 2


def test_a_call_may_need_more_loras_than_are_kept(layer: torch.nn.Linear) -> None:
    sidecar, loras = Sidecar({LAYER: layer}, max_kept=1), [lora(seed) for seed in range(3)]
    x = torch.ones(3, WIDTH)
    with sidecar.applied([((one, 1.0),) for one in loras]):
        ours = layer(x)

    for row, one in enumerate(loras):
        torch.testing.assert_close(ours[row], merged(layer, x[row], (one, 1.0)))


def test_a_network_that_changes_its_type_gets_parts_of_that_type(layer: torch.nn.Linear) -> None:
    sidecar, one = Sidecar({LAYER: layer}), lora(1)
    with sidecar.applied([((one, 1.0),)]):
        single = layer(torch.ones(1, WIDTH))
    layer.to(torch.float64)
    with sidecar.applied([((one, 1.0),)]):
        double = layer(torch.ones(1, WIDTH, dtype=torch.float64))

    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), single)
