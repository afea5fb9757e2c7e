"""ControlNets that are not asked in every step: never unless it is wanted, and within the change that is wanted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch
from PIL import Image

from serving.lora_cases import EXACT, images
from serving.stock import ENGINE_MARKS, gap
from takeup.errors import BadInput
from takeup.serving.diffusion.addons.controlnet.addon import Controls, MemoizedResiduals, ResidualReuse
from takeup.serving.diffusion.addons.controlnet.workers import ControlCall, ResidualStream, ThreadWorker
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.engine.tiny import build, tiny
from takeup.serving.diffusion.execution.executors import CudaGraphExecutor
from takeup.serving.diffusion.policies import steps_to_reuse
from takeup.serving.model import ControlUse, Request

pytestmark = ENGINE_MARKS

CONTROLLED = "takeup/tiny-sdxl-controlnet"
DEPTH = ControlUse("depth", Image.radial_gradient("L"), scale=0.8)
EDGES = ControlUse("edges", Image.linear_gradient("L"), scale=0.3)


def request(seed: int, num_steps: int, **others: Any) -> Request:
    return Request("a cat", num_steps=num_steps, seed=seed, height_px=32, width_px=32, **others)


class Counting(ThreadWorker):
    """Counts its calls."""

    num_calls = 0

    def start(self, call: ControlCall) -> ResidualStream:
        self.num_calls += 1
        return super().start(call)


def reused(
    max_change: float, compute: CudaGraphExecutor | None, num_steps: int = 16
) -> tuple[torch.Tensor, int, ResidualReuse]:
    pipeline = build(CONTROLLED)
    family = family_of(pipeline)
    nets = {"depth": pipeline.controlnet.nets[0]}
    worker = Counting(nets["depth"])
    controls = Controls(family, nets, {"depth": worker}, max_change=max_change)
    engine = StepEngine(pipeline, compute=compute, add_ons=[controls])
    (ours,) = images(engine, [request(1, num_steps, controls=(DEPTH,))])
    return ours, worker.num_calls, controls.reuse


def test_what_a_controlnet_said_is_used_again_within_the_change_that_is_wanted() -> None:
    (always, num_all, _), (eager, num_eager, reuse) = reused(0.0, None), reused(0.3, None)
    recorded, num_recorded, _ = reused(0.3, CudaGraphExecutor())
    (plain,) = images(StepEngine(build(CONTROLLED)), [request(1, 16)])

    assert num_all == 16
    assert num_eager == num_recorded == reuse.num_asked < 16
    assert reuse.num_reused == 16 - reuse.num_asked
    assert 0 < reuse.largest_change < 2 * 0.3  # found one step after the last in which it was used, at the latest
    assert gap(recorded, eager) < EXACT
    assert EXACT < gap(eager, always) < gap(plain, always)


def test_it_is_asked_again_when_others_join_or_its_scale_changes() -> None:
    pipeline = build(CONTROLLED)
    family = family_of(pipeline)
    nets = dict(zip(("depth", "edges"), pipeline.controlnet.nets, strict=True))
    worker = Counting(nets["depth"])
    controls = Controls(family, nets, {"depth": worker}, max_change=0.9)
    engine = StepEngine(pipeline, add_ons=[controls])
    engine.submit(request(1, 12, controls=(DEPTH, replace(EDGES, start_share=0.1))))
    asked_in = []
    for step in range(12):
        if step == 5:
            engine.submit(request(2, 4, controls=(DEPTH,)))
        before = worker.num_calls
        engine.advance()
        asked_in += [step] * (worker.num_calls - before)

    assert asked_in[:4] == [0, 1, 2, 3]  # from step 2 on there is one more net, and two steps are compared again
    assert 4 not in asked_in
    assert {5, 6} <= set(asked_in)  # the two together, from step 5 to 8
    assert 9 in asked_in  # alone again: what was said in step 3 is too old
    assert len(asked_in) < 12
    assert not controls.reuse._asked


class Broken:
    """A stream that ends in the middle."""

    def __init__(self, stream: ResidualStream) -> None:
        self._stream = stream

    def take(self, number: int) -> torch.Tensor:
        if number == 3:
            raise RuntimeError("out of memory")
        return self._stream.take(number)


class Breaking(Counting):
    """Fails once, in the middle of the second call."""

    def start(self, call: ControlCall) -> ResidualStream:
        stream = super().start(call)
        return Broken(stream) if self.num_calls == 2 else stream


def test_after_a_shared_call_that_failed_nothing_half_said_is_used() -> None:
    pipeline = build(CONTROLLED)
    family = family_of(pipeline)
    nets = {"depth": pipeline.controlnet.nets[0]}
    worker = Breaking(nets["depth"])
    controls = Controls(family, nets, {"depth": worker}, max_change=0.3)
    engine = StepEngine(pipeline, add_ons=[controls])
    ours = images(engine, [request(seed, 12, controls=(DEPTH,)) for seed in (1, 2)])
    whole = StepEngine(build(CONTROLLED), add_ons=[Controls(family, nets)])
    exact = images(whole, [request(seed, 12, controls=(DEPTH,)) for seed in (1, 2)])

    assert engine.num_calls == 12 + 2  # one by one in the second step
    assert controls.reuse.num_reused > 0
    assert max(gap(one, other) for one, other in zip(ours, exact, strict=True)) < 0.1


@given(st.floats(0, 10, allow_subnormal=False), st.integers(1, 50), st.floats(0, 0.99, allow_subnormal=False))
def test_a_change_that_grows_evenly_stays_within_the_bound(change: float, num_apart: int, bound: float) -> None:
    num_steps = steps_to_reuse(change, num_apart, bound)

    assert 0 <= num_steps <= 2 * num_apart
    assert num_steps * change <= bound * num_apart * (1 + 1e-9)
    assert num_steps == 2 * num_apart or (num_steps + 1) * change > bound * num_apart * (1 - 1e-9)


@pytest.mark.parametrize("change", [math.nan, math.inf])
def test_residuals_that_are_no_numbers_are_not_used_again(change: float) -> None:
    assert steps_to_reuse(change, 1, 0.5) == 0


@pytest.mark.parametrize("max_change", [-0.1, 1.0, math.nan])
def test_a_change_that_is_no_share_is_refused(max_change: float) -> None:
    family = family_of(tiny(CONTROLLED))

    with pytest.raises(BadInput, match="give 0 for never"):
        Controls(family, {}, max_change=max_change)


class Said:
    """Residuals that are known."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._tensors = tensors

    def total(self, number: int, like: torch.Tensor) -> torch.Tensor:
        return self._tensors[number]

    def write(self, into: Sequence[torch.Tensor]) -> None:
        for tensor, source in zip(into, self._tensors, strict=True):
            tensor.copy_(source)


def test_the_change_is_that_of_the_row_and_the_residual_that_moved_most() -> None:
    still, before = torch.ones(2, 3, 4, 4), torch.zeros(2, 1, 2, 2)
    before[0] = 2.0
    after = before.clone()
    after[0, 0, 0, 0] = 4.0  # of a row with the squares 16, 4, 4, 4; nothing is ever added to the other row
    kept = [MemoizedResiduals(Said(still, one)) for one in (before, after)]
    for one in kept:
        one.write([torch.empty_like(still), torch.empty_like(before)])

    assert kept[1].change_since(kept[0]) == pytest.approx(2 / math.sqrt(28))
