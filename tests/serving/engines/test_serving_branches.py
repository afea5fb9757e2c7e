"""Two ranks, one branch of guidance each: the images of one process, whatever requests bring and whenever they go."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch
import torch.distributed as dist
from PIL import Image
from takeup.serving.engines.diffusers.branches.family import OneBranch
from takeup.serving.engines.diffusers.branches.pair import Leader, SharedClock

from serving.branch_rank import NAME, follow, joined, rank_engine
from serving.lora_cases import EXACT, SlowLoader, images, stock
from serving.stock import ENGINE_MARKS, gap, stock_latents
from takeup.errors import BadInput, TakeupError
from takeup.serving.engines.diffusers.controls.addon import Controls
from takeup.serving.engines.diffusers.families import family_of
from takeup.serving.engines.diffusers.steps import StepEngine
from takeup.serving.engines.diffusers.tiny import tiny
from takeup.serving.model import Cancelled, ControlUse, Expired, LoraUse, Request

pytestmark = ENGINE_MARKS

PICTURE = Image.effect_noise((32, 32), 64).convert("RGB")


def request(seed: int = 0, num_steps: int = 3, **others: Any) -> Request:
    return Request("a cat", num_steps=num_steps, seed=seed, height_px=32, width_px=32, **others)


@dataclass
class Pair:
    """Rank 0, with the clock it tells."""

    leader: Leader
    engine: StepEngine
    loader: SlowLoader
    now_s: float = 0.0

    def images(self, requests: list[Request]) -> list[torch.Tensor]:
        tickets = [self.leader.submit(one) for one in requests]
        self.leader.run()
        return [ticket.result().latents for ticket in tickets]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, files: dict[str, Path], loras: dict[str, Any]) -> Iterator[Pair]:
    """Both ranks: one here, whose LoRAs come when the test says so, and one in a process, where they are read."""
    store = tmp_path_factory.mktemp("ranks") / "store"
    other = multiprocessing.get_context("spawn").Process(target=follow, args=(store, files), daemon=True)
    other.start()
    exchange, loader = joined(0, store), SlowLoader()
    engine, clock = rank_engine(exchange, files, loader)
    made = Pair(Leader(engine, exchange, clock, lambda: made.now_s), engine, loader)
    yield made
    made.leader.stop()
    other.join(200)
    dist.destroy_process_group()
    assert other.exitcode == 0


@pytest.fixture
def all_loras(pair: Pair, loras: dict[str, Any]) -> None:
    """LoRAs are there as soon as they are asked for."""
    for name, lora in loras.items():
        pair.loader.asked[name] = Future()
        pair.loader.asked[name].set_result(lora)


def test_two_ranks_make_the_images_of_diffusers(pair: Pair) -> None:
    plain = tiny("takeup/tiny-sdxl")
    requests = [
        request(1),
        request(2, 4, guidance=9.0, guidance_rescale=0.7, negative_prompt="dog"),
        request(3, guidance=1.0),
        request(4, scheduler="euler_ancestral"),
        request(5, scheduler="dpm++", guidance_rescale=0.3),
    ]
    ours = pair.images(requests)

    assert max(gap(one, stock_latents(plain, other)) for one, other in zip(ours, requests, strict=True)) < EXACT


def test_each_rank_computes_one_row_of_a_request(pair: Pair) -> None:
    run = pair.engine.family.prepare(request())

    assert run.num_rows == 1
    assert torch.equal(run.inputs["text_embeds"], family_of(tiny(NAME)).prepare(request()).inputs["text_embeds"][:1])


def test_controlnets_act_on_both_branches(pair: Pair) -> None:
    family = family_of(tiny(NAME))
    nets = dict(zip(("depth", "edges"), family.pipeline.controlnet.nets, strict=True))
    requests = [request(6, controls=(ControlUse("depth", PICTURE, 0.8), ControlUse("edges", PICTURE, 0.3)))]
    alone = images(StepEngine(family.pipeline, add_ons=[Controls(family, nets)]), requests)

    assert gap(pair.images(requests)[0], alone[0]) < EXACT


def test_loras_are_merged_on_both_ranks(pair: Pair, all_loras: None, files: dict[str, Path]) -> None:
    requests = [request(7, loras=(LoraUse("paper", 0.8), LoraUse("words", 0.5))), request(8)]
    ours = pair.images(requests)

    assert max(gap(one, stock(files, other)) for one, other in zip(ours, requests, strict=True)) < EXACT


def test_a_lora_is_felt_from_the_step_at_which_both_ranks_have_it(pair: Pair, loras: dict[str, Any]) -> None:
    pair.loader.asked["film"] = Future()
    ticket = pair.leader.submit(request(9, 5, loras=(LoraUse("film"),), late_steps=3))
    pair.leader.advance()
    pair.leader.advance()
    steps_before = ticket.run.step
    pair.loader.asked["film"].set_result(loras["film"])
    pair.leader.run()
    arrived = ticket.result().latents
    plain = stock_latents(tiny("takeup/tiny-sdxl"), request(9, 5))

    assert steps_before == 2
    assert gap(arrived, plain) > 100 * EXACT  # it was felt, on both ranks, or the images would be torn apart
    assert torch.isfinite(arrived).all()


def test_a_lora_that_one_rank_cannot_load_ends_its_request_on_both(pair: Pair) -> None:
    pair.loader.asked["paper"] = Future()
    pair.loader.asked["paper"].set_exception(TakeupError("the disk is gone"))
    ticket = pair.leader.submit(request(10, loras=(LoraUse("paper"),)))
    pair.leader.run()

    with pytest.raises(TakeupError, match="the disk is gone"):
        ticket.result()
    assert gap(pair.images([request(1)])[0], stock_latents(tiny("takeup/tiny-sdxl"), request(1))) < EXACT


def test_requests_leave_both_ranks_when_they_are_withdrawn_or_late(pair: Pair) -> None:
    withdrawn, late = pair.leader.submit(request(11, 5)), pair.leader.submit(request(12, 5, deadline_s=1.0))
    pair.leader.advance()
    pair.leader.cancel(withdrawn)
    pair.now_s = 2.0
    pair.leader.advance()

    with pytest.raises(Cancelled):
        withdrawn.result()
    with pytest.raises(Expired):
        late.result()
    assert pair.engine.num_running == 0


def test_guess_mode_is_refused_for_it_has_one_branch_only() -> None:
    class Alone:
        rank = 0

    with pytest.raises(BadInput, match="one branch"):
        OneBranch(family_of(tiny(NAME)), Alone()).prepare(request(guess_mode=True))  # type: ignore[arg-type]


def test_the_shared_clock_says_what_it_was_told() -> None:
    clock = SharedClock()
    clock.now_s = 3.5

    assert clock() == 3.5
