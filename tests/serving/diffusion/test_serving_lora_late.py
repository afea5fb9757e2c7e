"""LoRAs that come late delay nobody else, are felt from the right step on, and are read by a process that may die."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch

from serving.lora_cases import EXACT, SDXL, SlowLoader, images, request, stock
from serving.lora_files import LAYERS
from serving.stock import ENGINE_MARKS, gap, stock_latents
from support.lora_similarity import measure_similarities
from takeup.errors import BadInput, TakeupError, UnknownName
from takeup.serving.diffusion.addons.lora.addon import SLOT
from takeup.serving.diffusion.addons.lora.file_format import read_lora
from takeup.serving.diffusion.addons.lora.loading import ProcessLoader
from takeup.serving.diffusion.addons.lora.targets import LoraTargets, layers_of
from takeup.serving.diffusion.addons.lora.weights import Lora, PatchedWeights
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.tiny import build, tiny
from takeup.serving.model import LoraUse, Request
from takeup.serving.scheduling.adapters import measured_bound

pytestmark = ENGINE_MARKS


def test_a_request_that_wants_to_be_exact_waits_and_others_do_not(engine_of: Any, loras: dict[str, Lora]) -> None:
    loader = SlowLoader()
    engine = engine_of(loader)
    exact, other = engine.submit(request(1, ("paper", 1.0))), engine.submit(request(2))
    for _ in range(5):
        engine.advance()

    assert (exact.run.step, other.state) == (0, "done")
    loader.asked["paper"].set_result(loras["paper"])
    engine.run()
    assert exact.run.is_done


def test_with_k_zero_the_image_is_that_of_loading_first(engine_of: Any, files: dict[str, Path], loras: Any) -> None:
    loader = SlowLoader()
    engine = engine_of(loader)
    one = request(1, ("paper", 1.0))
    ticket = engine.submit(one)
    engine.advance()
    loader.asked["paper"].set_result(loras["paper"])
    engine.run()

    assert gap(ticket.result().latents, stock(files, one)) < EXACT


def test_at_most_k_steps_are_made_without_the_lora(engine_of: Any, files: dict[str, Path], loras: Any) -> None:
    loader = SlowLoader()
    engine = engine_of(loader)
    ticket = engine.submit(request(1, ("paper", 1.0), num_steps=4, late_steps=2))
    for _ in range(6):
        engine.advance()
    stood_at = ticket.run.step
    loader.asked["paper"].set_result(loras["paper"])
    wanted = ticket.run.extras[SLOT]
    engine.run()

    assert (stood_at, wanted.arrived_at_step) == (2, 2)
    assert torch.equal(ticket.result().latents, patched_after(files, ticket.run.request, 2))


def patched_after(files: dict[str, Path], one: Request, num_steps: int) -> torch.Tensor:
    """Stock diffusers, with the LoRA put in by hand after so many steps."""
    pipeline = build(SDXL)
    lora = read_lora(files["paper"], LoraTargets.of(pipeline))
    weights = PatchedWeights(layers_of(pipeline))

    def patch(_: Any, step: int, __: Any, values: dict[str, Any]) -> dict[str, Any]:
        if step + 1 == num_steps:
            weights.use(weights.stage(((lora, 1.0),)))
        return values

    return stock_latents(pipeline, one, callback_on_step_end=patch)


def test_a_lora_that_comes_early_is_felt_at_once(engine_of: Any, files: dict[str, Path], loras: Any) -> None:
    loader = SlowLoader()
    loader.load("paper").set_result(loras["paper"])
    engine = engine_of(loader)
    one = request(1, ("paper", 1.0), late_steps=0)
    (ours,) = images(engine, [one])

    assert gap(ours, stock(files, one)) < EXACT


def test_a_lora_that_cannot_be_loaded_ends_its_own_request_only(engine_of: Any) -> None:
    engine = engine_of()
    bad, good = engine.submit(request(1, ("foreign", 1.0))), engine.submit(request(2))
    engine.run()

    assert (bad.state, good.state) == ("failed", "done")
    with pytest.raises(BadInput, match="another base model"):
        bad.result()


def test_merged_weights_are_computed_off_the_loop(engine_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of()
    threads = []
    stage = engine.add_ons[0].weights.stage

    def noted(loras: Any) -> Any:
        threads.append((len(loras), threading.current_thread().name.split("_")[0]))
        return stage(loras)

    monkeypatch.setattr(engine.add_ons[0].weights, "stage", noted)
    images(engine, [request(1, ("paper", 1.0)), request(2, ("film", 1.0), ("paper", 1.0))])

    assert sorted(threads) == [(1, "make-ready"), (2, "make-ready")]


def test_an_unknown_lora_is_answered_with_the_nearest(engine_of: Any) -> None:
    engine = engine_of()
    bad = engine.submit(request(1, ("papers", 1.0)))
    engine.run()

    with pytest.raises(UnknownName, match="did you mean 'paper'"):
        bad.result()


def test_a_cancelled_request_leaves_nothing_patched(engine_of: Any, pipeline: Any) -> None:
    engine = engine_of()
    before = pipeline.unet.get_submodule(LAYERS[0]).weight.clone()
    ticket = engine.submit(request(1, ("paper", 1.0), num_steps=50))
    while ticket.run.step < 2:
        engine.advance()
    ticket.cancel()
    (after,) = images(engine, [request(3)])

    assert gap(after, stock_latents(tiny(SDXL), request(3))) < EXACT
    assert torch.equal(pipeline.unet.get_submodule(LAYERS[0]).weight, before)


# How late -----------------------------------------------------------------------------------------------------------


def test_similarities_are_those_of_stock_latents_with_and_without_the_lora(
    pipeline: Any, files: dict[str, Path], loras: dict[str, Lora]
) -> None:
    one = request(4, num_steps=4)
    before = pipeline.unet.get_submodule(LAYERS[0]).weight.clone()
    similarities = measure_similarities(family_of(pipeline), ((loras["words"], 1.0),), [one])
    theirs = [stock(files, replace(one, loras=use)) for use in ((), (LoraUse("words"),))]
    last = torch.nn.functional.cosine_similarity(theirs[0].flatten(), theirs[1].flatten(), dim=0)

    assert len(similarities) == 4
    assert similarities[-1] == pytest.approx(float(last), abs=1e-4)
    assert similarities[-1] < similarities[0] < 1
    assert torch.equal(pipeline.unet.get_submodule(LAYERS[0]).weight, before)


def test_a_lora_that_changes_nothing_may_come_at_the_end(pipeline: Any, loras: dict[str, Lora]) -> None:
    similarities = measure_similarities(family_of(pipeline), ((loras["paper"], 0.0),), [request(1), request(2)])

    assert similarities == pytest.approx([1.0] * 3)
    assert measured_bound(similarities) == 3


@pytest.mark.parametrize("wrong", [[], [request(1), request(2, num_steps=4)]])
def test_runs_of_different_lengths_cannot_be_compared(pipeline: Any, wrong: list[Request]) -> None:
    with pytest.raises(BadInput, match="the same number of steps"):
        measure_similarities(family_of(pipeline), (), wrong)


# The loader process -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def process(files: dict[str, Path]) -> Iterator[ProcessLoader]:
    loader = ProcessLoader(files, LoraTargets.of(tiny(SDXL)))
    yield loader
    loader.close()


def test_a_process_loads_what_this_process_would(process: ProcessLoader, loras: dict[str, Lora]) -> None:
    loaded = process.load("film").result(120)

    assert process.pid not in {None, os.getpid()}
    assert loaded.buffer.is_shared()  # type: ignore[no-untyped-call]
    assert torch.equal(loaded.buffer, loras["film"].buffer)
    assert loaded.changes == loras["film"].changes


def test_a_process_tells_what_is_wrong_with_a_file(process: ProcessLoader) -> None:
    with pytest.raises(BadInput, match="another base model"):
        process.load("foreign").result(120)
    with pytest.raises(UnknownName, match="did you mean 'film'"):
        process.load("fil")


def test_images_with_a_loader_process_are_exact(engine_of: Any, files: dict[str, Path], process: Any) -> None:
    one = request(2, ("film", 0.7), ("paper", 0.5))

    class Kept:
        """The fixture closes the process, not the engine."""

        load, release = process.load, process.release

        def close(self) -> None:
            """Left open."""

    (ours,) = images(engine_of(Kept()), [one])

    assert gap(ours, stock(files, one)) < EXACT


def test_a_loader_that_is_killed_fails_its_loads_and_is_started_again(process: ProcessLoader) -> None:
    assert process.load("paper").result(120)
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)  # so that it cannot answer before it dies
    waiting = process.load("film")
    os.kill(first, signal.SIGKILL)

    with pytest.raises(TakeupError, match="the loader died while it read LoRA 'film'"):
        waiting.result(120)
    assert process.load("film").result(120).name == "film"
    assert process.pid != first
