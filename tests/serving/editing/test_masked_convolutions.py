"""Edits whose convolutions are masked too: the same pictures, for fewer operations, whatever else acts on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch
from torch.utils.flop_counter import FlopCounterMode

from serving.editing.networks import FAMILY_NAMES, Network
from serving.lora_files import factors, peft_style, save
from serving.stock import ENGINE_MARKS, gap
from takeup.serving.diffusion.addons.lora.addon import Loras
from takeup.serving.diffusion.addons.lora.loading import ThreadLoader
from takeup.serving.diffusion.addons.lora.targets import LoraTargets
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine, Ticket
from takeup.serving.diffusion.engine.tiny import build
from takeup.serving.diffusion.execution.executors import CudaGraphExecutor
from takeup.serving.editing.contract import EditRequest
from takeup.serving.editing.masked.edit_state import ErrorChecks
from takeup.serving.editing.masked.editor import MaskedEditor, report_of
from takeup.serving.editing.masked.masked_convolutions import supports_masked_convolutions
from takeup.serving.editing.templates.store import TemplateStore, TierCapacities
from takeup.serving.model import LoraUse, Request
from takeup.serving.scheduling.adapters import AdapterLRU

pytestmark = ENGINE_MARKS

EXACT = 1e-5
SIDE = 32
UNETS = ("takeup/tiny-sd15", "takeup/tiny-sdxl")
Floats = npt.NDArray[np.float32]
IMAGE = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
REQUEST = Request("a cat", num_steps=2, guidance=4.0, seed=5)


def block(share: float) -> Floats:
    mask = np.zeros((SIDE, SIDE), np.float32)
    side = round(SIDE * share**0.5)
    first = min(6, SIDE - side)
    mask[first : first + side, first : first + side] = 1
    return mask


def scattered(share: float) -> Floats:
    """Single latents here and there."""
    drawn = np.random.default_rng(1).random((SIDE // 2, SIDE // 2)) < share
    return np.kron(drawn, np.ones((2, 2))).astype(np.float32)


class Session:
    """An engine with an editor, on a pipeline of its own."""

    def __init__(self, name: str, compute: Any = None, loras: Any = None, **options: Any) -> None:
        self.pipeline = build(name)
        family = family_of(self.pipeline)
        self.editor = MaskedEditor(family, grow=0, checks=ErrorChecks(0), **options)
        first = [] if loras is None else [loras(family)]
        self.engine = StepEngine(self.pipeline, add_ons=[*first, *self.editor.add_ons], compute=compute)

    def edit(self, mask: Floats, request: Request = REQUEST, noise_seed: int = 0) -> Ticket:
        ticket = self.engine.enter(self.editor.prepare(request, EditRequest(IMAGE, mask, noise_seed=noise_seed)))
        self.engine.run()
        return ticket

    def pixels(self, mask: Floats, ticket: Ticket) -> npt.NDArray[np.uint8]:
        edited = self.editor.finish(EditRequest(IMAGE, mask), self.engine.image(ticket))
        made: npt.NDArray[np.uint8] = (edited[0].permute(1, 2, 0) * 255).round().byte().numpy()
        return made


@pytest.fixture
def start() -> Iterator[Callable[..., Session]]:
    opened: list[Session] = []

    def open_one(name: str = "takeup/tiny-sdxl", *others: Any, **options: Any) -> Session:
        opened.append(Session(name, *others, **options))
        return opened[-1]

    yield open_one
    for session in opened:
        session.editor.close()


Start = Callable[..., Session]


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_networks_whose_blocks_are_all_known_mask_their_convolutions(start: Start, name: str) -> None:
    assert start(name).editor.edits.convolutions == (name in UNETS)


@pytest.mark.parametrize("name", UNETS)
@pytest.mark.parametrize("draw", [block, scattered])
def test_edits_are_those_of_whole_runs_outside_bit_for_bit(
    start: Start, name: str, draw: Callable[..., Floats]
) -> None:
    session = start(name)
    for seed, share in enumerate((0.05, 0.2, 0.5, 1.0)):  # with another noise the template is another
        mask = draw(share)
        whole, masked = session.edit(mask, noise_seed=seed), session.edit(mask, noise_seed=seed)
        pixels = session.pixels(mask, session.edit(mask, replace(REQUEST, prompt="another", seed=9), seed))

        assert gap(masked.result().latents, whole.result().latents) < EXACT
        assert report_of(masked.run).from_template == (share <= 0.5)
        assert np.array_equal(pixels[mask == 0], IMAGE[mask == 0])
        assert not np.array_equal(pixels[mask > 0], IMAGE[mask > 0])


def counted(network: Network, mask: torch.Tensor) -> tuple[float, float]:
    """Operations of convolutions, and of everything, with this mask."""
    network.whole()
    with FlopCounterMode(display=False) as counter:
        network.masked([mask])
    by_kind = counter.get_flop_counts()["Global"]
    return float(by_kind.get(torch.ops.aten.convolution, 0)), float(counter.get_total_flops())


@pytest.mark.parametrize("name", UNETS)
def test_convolutions_cost_their_share_of_the_operations(name: str) -> None:
    mask = torch.zeros(16, 16, dtype=torch.bool)
    mask[4:12, 4:12] = True  # a quarter, on the coarser grid too
    with Network(name) as network:
        convolved, with_tokens = counted(network, mask)
    with Network(name, convolutions=True) as network:
        _, with_pixels = counted(network, mask)

    assert with_pixels == pytest.approx(with_tokens - 0.75 * convolved, rel=1e-6)
    assert with_pixels < 0.6 * with_tokens


def test_a_template_without_maps_is_not_used_with_them(start: Start) -> None:
    store = TemplateStore(AdapterLRU, TierCapacities())
    start(store=store, convolutions=False).edit(block(0.2))
    other = start(store=store, convolutions=True)

    assert not report_of(other.edit(block(0.2)).run).from_template
    assert report_of(other.edit(block(0.2)).run).from_template


def test_a_network_prepared_for_a_device_masks_as_any_other(start: Start) -> None:
    mask = block(0.2)
    plain, prepared = start(), start("takeup/tiny-sdxl", CudaGraphExecutor())
    theirs = [plain.edit(mask), plain.edit(mask)]
    ours = [prepared.edit(mask), prepared.edit(mask)]
    joined = [vars(one).get("forward") for one in prepared.pipeline.unet.modules()]

    assert report_of(ours[1].run).from_template
    for one, other in zip(ours, theirs, strict=True):
        assert gap(one.result().latents, other.result().latents) < EXACT
    assert sum(forward is not None for forward in joined) > 10  # what the device put there is there again


def test_loras_on_convolutions_are_felt_in_masked_steps(start: Start, tmp_path: Path) -> None:
    pipeline = build("takeup/tiny-sdxl")
    layers = [("unet", "down_blocks.0.resnets.0.conv1"), ("unet", "up_blocks.1.resnets.0.conv2")]
    path = save(peft_style(factors(pipeline, layers, seed=1)), tmp_path / "style.safetensors")

    def loras(family: Any) -> Loras:
        return Loras(family, ThreadLoader({"style": path}, LoraTargets.of(family.pipeline)))

    session = start("takeup/tiny-sdxl", None, loras, identity={"style": "1"}.__getitem__)
    styled = replace(REQUEST, loras=(LoraUse("style", 0.9),))
    whole, masked = session.edit(block(0.2), styled), session.edit(block(0.2), styled)
    plain = session.edit(block(0.2))
    session.engine.add_ons[0].close()  # type: ignore[attr-defined]

    assert gap(masked.result().latents, whole.result().latents) < EXACT
    assert gap(plain.result().latents, whole.result().latents) > 1e-3
    assert report_of(masked.run).num_whole_steps == 0


def test_a_failed_call_leaves_the_network_as_it_was(start: Start) -> None:
    session = start()
    session.edit(block(0.2))
    handle = session.pipeline.unet.mid_block.register_forward_pre_hook(lambda *_: 1 / 0)
    ticket = session.edit(block(0.2))
    handle.remove()

    assert ticket.state == "failed"
    assert not any("forward" in vars(one) for one in session.pipeline.unet.modules())
    assert session.edit(block(0.2)).state == "done"


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        ("down_blocks.0.resnets.0", "output_scale_factor", 2.0),
        ("mid_block.resnets.0", "nonlinearity", torch.nn.ReLU()),
        ("down_blocks.0.downsamplers.0.conv", "padding", (0, 0)),
        ("conv_out", "kernel_size", (1, 1)),
        ("up_blocks.0", "s1", 0.9),
    ],
)
def test_networks_with_anything_unknown_keep_whole_convolutions(path: str, name: str, value: Any) -> None:
    network = build("takeup/tiny-sd15").unet
    known = supports_masked_convolutions(network)
    setattr(network.get_submodule(path), name, value)

    assert known
    assert not supports_masked_convolutions(network)
