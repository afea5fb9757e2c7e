"""The step engine makes the images of stock diffusers, whoever joins and leaves meanwhile."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch

from serving.stock import ENGINE_MARKS, gap, stock_latents
from takeup.errors import BadInput, UnknownName
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.engine.tiny import build, tiny
from takeup.serving.model import Cancelled, Expired, Request

pytestmark = ENGINE_MARKS

EXACT = 1e-5
SMALL: dict[str, Any] = {"height_px": 32, "width_px": 32}
NOISE_FAMILIES = ("takeup/tiny-sd15", "takeup/tiny-sdxl")
FLOW_FAMILIES = ("takeup/tiny-sd3", "takeup/tiny-flux")


def mixed(name: str) -> list[Request]:
    """Requests that differ in all they may differ in."""
    requests = [
        Request("a cat", num_steps=4, guidance=5.0, seed=1, **SMALL),
        Request("a red dog", "ugly", num_steps=3, guidance=7.5, true_guidance=2.0, seed=2, **SMALL),
        Request("x", num_steps=5, guidance=1.0, seed=3, **SMALL),
        Request("tall", num_steps=2, guidance=4.0, seed=4, height_px=48, width_px=32),
    ]
    if name in FLOW_FAMILIES:
        return requests
    schedulers = ["euler", "ddim", "dpm++", "euler_ancestral"]
    rescaled = [replace(one, scheduler=kind) for one, kind in zip(requests, schedulers, strict=True)]
    return [*rescaled, replace(requests[0], seed=9, guidance_rescale=0.7, scheduler="unipc")]


def staggered(engine: StepEngine, requests: list[Request]) -> list[torch.Tensor]:
    """Each request joins one step after the one before it."""
    tickets = []
    for request in requests:
        tickets.append(engine.submit(request))
        engine.advance()
    engine.run()
    return [ticket.result().latents for ticket in tickets]


def request(num_steps: int = 3, **others: Any) -> Request:
    return Request("a cat", num_steps=num_steps, **SMALL, **others)


@pytest.fixture
def sdxl() -> Any:
    return tiny("takeup/tiny-sdxl")


@pytest.mark.parametrize("name", [*NOISE_FAMILIES, *FLOW_FAMILIES])
def test_images_are_those_of_stock_diffusers(name: str) -> None:
    pipeline, requests = tiny(name), mixed(name)
    theirs = [stock_latents(pipeline, one) for one in requests]
    ours = staggered(StepEngine(pipeline), requests)

    assert max(map(gap, ours, theirs)) < EXACT


@pytest.mark.parametrize("name", NOISE_FAMILIES)
def test_in_the_deterministic_mode_they_are_so_bit_for_bit(name: str) -> None:
    pipeline, requests = tiny(name), mixed(name)
    theirs = [stock_latents(pipeline, one) for one in requests]
    ours = staggered(StepEngine(pipeline, deterministic=True), requests)

    assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("scheduler", ["heun", "lms", "ddpm", "pndm", "lcm"])
def test_other_schedulers_are_exact_too(sdxl: Any, scheduler: str) -> None:
    one = request(4, scheduler=scheduler, seed=5)
    engine = StepEngine(sdxl)
    ticket = engine.submit(one)
    engine.submit(request(2))
    engine.run()

    assert gap(ticket.result().latents, stock_latents(sdxl, one)) < EXACT


@pytest.mark.parametrize("name", [*NOISE_FAMILIES, *FLOW_FAMILIES])
def test_decoded_images_are_those_of_stock_diffusers(name: str) -> None:
    pipeline, one = tiny(name), request(2, seed=6)
    engine = StepEngine(pipeline)
    ticket = engine.submit(one)
    engine.run()
    generator = torch.Generator("cpu").manual_seed(6)
    options = {"num_inference_steps": 2, "guidance_scale": one.guidance, "height": 32, "width": 32}
    theirs = pipeline(one.prompt, generator=generator, output_type="pt", **options).images

    assert (engine.image(ticket) - theirs).abs().max() < EXACT


def test_compatible_requests_share_one_call_a_step(sdxl: Any) -> None:
    engine = StepEngine(sdxl)
    for seed in range(3):
        engine.submit(request(2, seed=seed))
    engine.run()

    assert engine.num_calls == 2


def test_a_tenant_with_many_images_does_not_slow_down_another_one(sdxl: Any) -> None:
    engine = StepEngine(sdxl)
    flood = [engine.submit(request(4, seed=seed, tenant="flood")) for seed in range(6)]
    engine.advance()
    single = engine.submit(request(3, seed=9, tenant="single"))
    before = engine.num_calls
    while not single.is_over:
        engine.advance()

    assert engine.num_calls - before == 3
    assert [ticket.run.step for ticket in flood] == [1] * 6
    engine.run()
    assert gap(flood[0].result().latents, stock_latents(sdxl, request(4, seed=0))) < EXACT
    assert gap(single.result().latents, stock_latents(sdxl, request(3, seed=9))) < EXACT


def test_other_sizes_and_full_calls_need_calls_of_their_own(sdxl: Any) -> None:
    engine = StepEngine(sdxl, max_rows=4)
    for seed in range(3):
        engine.submit(request(1, seed=seed))
    engine.submit(replace(request(1), height_px=48))

    assert engine.advance() == 3


def test_a_request_that_leaves_does_not_change_the_others(sdxl: Any) -> None:
    engine = StepEngine(sdxl)
    stays, goes = engine.submit(request(4, seed=1)), engine.submit(request(4, seed=2))
    engine.advance()
    goes.cancel()
    engine.run()

    assert gap(stays.result().latents, stock_latents(sdxl, request(4, seed=1))) < EXACT
    assert goes.state == "cancelled"
    with pytest.raises(Cancelled, match="after 1 of 4 steps"):
        goes.result()


def test_a_request_may_be_cancelled_before_it_joins(sdxl: Any) -> None:
    engine = StepEngine(sdxl)
    ticket = engine.submit(request())
    ticket.cancel()

    assert engine.advance() == 0
    assert ticket.state == "cancelled"
    assert engine.num_running == 0


def test_a_late_request_ends_at_its_deadline(sdxl: Any) -> None:
    now = [0.0]
    engine = StepEngine(sdxl, clock=lambda: now[0])
    late, patient = engine.submit(request(deadline_s=5.0)), engine.submit(request(deadline_s=50.0))
    engine.advance()
    now[0] = 6.0
    engine.run()

    assert (late.state, patient.state) == ("expired", "done")
    with pytest.raises(Expired, match="allow more time"):
        late.result()


def test_every_step_is_reported(sdxl: Any) -> None:
    heard: list[tuple[int, int]] = []
    engine = StepEngine(sdxl)
    engine.submit(request(3), on_step=lambda step, steps: heard.append((step, steps)))
    engine.run()

    assert heard == [(1, 3), (2, 3), (3, 3)]


def test_a_listener_that_fails_harms_its_own_request_only(sdxl: Any) -> None:
    def fail(step: int, steps: int) -> None:
        raise ConnectionResetError("gone")

    engine = StepEngine(sdxl)
    bad, good = engine.submit(request(seed=1), on_step=fail), engine.submit(request(seed=2))
    engine.run()

    assert (bad.state, good.state) == ("failed", "done")
    with pytest.raises(ConnectionResetError):
        bad.result()


def test_in_a_call_that_fails_only_the_guilty_one_ends(sdxl: Any) -> None:
    engine = StepEngine(sdxl)
    good, bad = engine.submit(request(seed=1)), engine.submit(request(seed=2))
    bad.run.scheduler.scale_model_input = None  # calling it fails
    engine.run()

    assert (good.state, bad.state) == ("done", "failed")
    assert gap(good.result().latents, stock_latents(sdxl, request(seed=1))) < EXACT


def test_the_decoder_of_sdxl_is_not_used_in_half_precision() -> None:
    pipeline = build("takeup/tiny-sdxl")
    pipeline.vae.to(torch.float16)
    pipeline.vae.register_to_config(force_upcast=True)
    engine = StepEngine(pipeline)
    ticket = engine.submit(request(1))
    engine.run()

    assert engine.image(ticket).dtype == torch.float32


def test_requests_may_be_submitted_from_other_threads(sdxl: Any) -> None:
    engine, tickets = StepEngine(sdxl), []
    threads = [threading.Thread(target=lambda s=s: tickets.append(engine.submit(request(2, seed=s)))) for s in range(4)]
    for thread in threads:
        thread.start()
    engine.run(until=lambda: len(tickets) == 4 and all(ticket.is_over for ticket in tickets))
    by_seed = {ticket.run.request.seed: ticket.result().latents for ticket in tickets}

    assert max(gap(by_seed[seed], stock_latents(sdxl, request(2, seed=seed))) for seed in range(4)) < EXACT


def test_the_pipeline_is_left_as_it_was(sdxl: Any) -> None:
    before = repr(sdxl.scheduler.config), getattr(sdxl.scheduler, "_step_index", None), sdxl.scheduler
    staggered(StepEngine(sdxl), mixed("takeup/tiny-sdxl")[:2])

    assert (repr(sdxl.scheduler.config), getattr(sdxl.scheduler, "_step_index", None), sdxl.scheduler) == before


@pytest.mark.parametrize("size", [{"height_px": 33}, {"width_px": 4}])
def test_sizes_that_do_not_fit_are_refused(sdxl: Any, size: dict[str, int]) -> None:
    with pytest.raises(BadInput, match="give sizes that divide by 8"):
        StepEngine(sdxl).submit(replace(request(), **size))  # type: ignore[arg-type]


def test_unknown_schedulers_are_refused(sdxl: Any) -> None:
    with pytest.raises(UnknownName, match="did you mean 'euler'"):
        StepEngine(sdxl).submit(request(scheduler="eular"))


def test_schedulers_of_noise_are_refused_for_flows() -> None:
    with pytest.raises(BadInput, match="trained on flows"):
        StepEngine(tiny("takeup/tiny-flux")).submit(request(scheduler="ddim"))


def test_what_is_no_pipeline_is_refused() -> None:
    with pytest.raises(BadInput, match="a str is no pipeline of diffusers"):
        family_of("no pipeline")
