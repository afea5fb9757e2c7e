"""Weights take LoRAs in and give them back; rows of one call may want different ones; late ones delay nobody else."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch

from serving.lora_files import LAYERS, factors, kohya, peft_style, save
from serving.stock import ENGINE_MARKS, gap, stock_latents
from takeup.errors import BadInput, TakeupError, UnknownName
from takeup.serving.engines.diffusers.families import family_of
from takeup.serving.engines.diffusers.lora.addon import SLOT, Form, Loras
from takeup.serving.engines.diffusers.lora.changes import Lora
from takeup.serving.engines.diffusers.lora.files import read_lora
from takeup.serving.engines.diffusers.lora.loaders import Loader, ProcessLoader, ThreadLoader
from takeup.serving.engines.diffusers.lora.similarity import measure_similarities
from takeup.serving.engines.diffusers.lora.targets import Targets, layers_of
from takeup.serving.engines.diffusers.lora.weights import Weights
from takeup.serving.engines.diffusers.steps import StepEngine
from takeup.serving.engines.diffusers.tiny import build, tiny
from takeup.serving.model import LoraUse, Request
from takeup.serving.policies.lateness import measured_bound

pytestmark = ENGINE_MARKS

SDXL = "takeup/tiny-sdxl"
EXACT = 1e-5
UNET = [("unet", path) for path in LAYERS]
TEXT = [
    ("text_encoder", "encoder.layers.0.self_attn.q_proj"),
    ("text_encoder_2", "text_model.encoder.layers.1.self_attn.v_proj"),
]


@pytest.fixture(scope="module")
def pipeline() -> Any:
    return build(SDXL)  # its weights are patched: not to be shared


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, made = tmp_path_factory.mktemp("loras"), tiny(SDXL)
    loha = {f"lora_unet_{LAYERS[0].replace('.', '_')}.hada_w{n}_{s}": torch.randn(64, 64) for n in "12" for s in "ab"}
    tensors = {
        "paper": peft_style(factors(made, UNET[:6], seed=1)),
        "film": kohya(factors(made, UNET[2:], rank=2, seed=2), alpha=1.0),
        "words": peft_style(factors(made, [*UNET[:3], *TEXT], seed=3)),
        "loha": {name: tensor * 0.2 for name, tensor in loha.items()},
        "foreign": {"unet.nowhere.lora_A.weight": torch.ones(4, 4)},
    }
    return {name: save(values, folder / f"{name}.safetensors") for name, values in tensors.items()}


@pytest.fixture(scope="module")
def loras(files: dict[str, Path]) -> dict[str, Lora]:
    targets = Targets.of(tiny(SDXL))
    return {name: read_lora(file, targets) for name, file in files.items() if name != "foreign"}


def request(seed: int = 0, *uses: tuple[str, float], num_steps: int = 3, late_steps: int = 0) -> Request:
    names = tuple(LoraUse(name, scale) for name, scale in uses)
    return Request(
        "a cat", num_steps=num_steps, seed=seed, height_px=32, width_px=32, loras=names, late_steps=late_steps
    )


def stock(files: dict[str, Path], one: Request) -> torch.Tensor:
    """The image of a pipeline of its own, with the LoRAs loaded and fused by diffusers."""
    pipeline = build(SDXL)
    names = [use.name for use in one.loras]
    for name in names:
        pipeline.load_lora_weights(files[name], adapter_name=name)
    if names:
        pipeline.set_adapters(names, [use.scale for use in one.loras])
        pipeline.fuse_lora(components=["unet", "text_encoder", "text_encoder_2"])
        pipeline.unload_lora_weights()
    return stock_latents(pipeline, one)


class SlowLoader:
    """Gives LoRAs when the test says so."""

    def __init__(self) -> None:
        self.asked: dict[str, Future[Lora]] = {}

    def load(self, name: str) -> Future[Lora]:
        return self.asked.setdefault(name, Future())

    def release(self, name: str) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing runs."""


@pytest.fixture
def engine_of(pipeline: Any, files: dict[str, Path]) -> Iterator[Any]:
    opened: list[Loras] = []

    def make(form: Form = "auto", loader: Loader | None = None) -> StepEngine:
        family = family_of(pipeline)
        add_on = Loras(family, loader or ThreadLoader(files, Targets.of(pipeline)), form)
        opened.append(add_on)
        return StepEngine(pipeline, add_ons=[add_on])

    yield make
    for add_on in opened:
        add_on.close()


def images(engine: StepEngine, requests: list[Request]) -> list[torch.Tensor]:
    tickets = [engine.submit(one) for one in requests]
    engine.run()
    return [ticket.result().latents for ticket in tickets]


# Patching -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_thousand_swaps_leave_the_weights_bit_for_bit_as_they_were(
    loras: dict[str, Lora], dtype: torch.dtype
) -> None:
    unet = build(SDXL).unet.to(dtype)
    layers = {("unet", path): unet.get_submodule(path) for path in LAYERS}
    before = {key: tensor.clone() for key, tensor in unet.state_dict().items()}
    weights = Weights(layers)
    sets = [((loras["paper"], 1.0),), ((loras["film"], 0.5), (loras["paper"], 0.3)), ((loras["loha"], 1.0),), ()]
    staged = [weights.stage(one) for one in sets]
    for number in range(1000):
        weights.use(staged[number % 3])
    weights.use()

    assert all(torch.equal(before[key], tensor) for key, tensor in unet.state_dict().items())


def test_patched_weights_do_not_depend_on_what_was_there_before(pipeline: Any, loras: dict[str, Lora]) -> None:
    layers = layers_of(pipeline)
    weights = Weights(layers)
    with weights.using(((loras["paper"], 1.0),)):
        direct = {layer: module.weight.clone() for layer, module in layers.items()}
    with weights.using(((loras["film"], 2.0),)), weights.using(((loras["paper"], 1.0),)):
        detour = {layer: module.weight.clone() for layer, module in layers.items()}

    assert all(torch.equal(direct[layer], detour[layer]) for layer in layers)


def test_patching_writes_into_the_storage_that_graphs_remember(pipeline: Any, loras: dict[str, Lora]) -> None:
    layers = layers_of(pipeline)
    places = {layer: (id(module.weight), module.weight.data_ptr()) for layer, module in layers.items()}
    with Weights(layers).using(((loras["paper"], 1.0),)):
        inside = {layer: (id(module.weight), module.weight.data_ptr()) for layer, module in layers.items()}

    assert inside == places


def test_staging_is_not_felt_by_the_network(pipeline: Any, loras: dict[str, Lora]) -> None:
    before = pipeline.unet.get_submodule(LAYERS[0]).weight.clone()
    weights = Weights(layers_of(pipeline))
    staged = weights.stage(((loras["paper"], 1.0),))

    assert torch.equal(pipeline.unet.get_submodule(LAYERS[0]).weight, before)
    assert not torch.equal(staged.weights["unet", LAYERS[0]], before)


def test_weights_are_given_back_when_something_fails(pipeline: Any, loras: dict[str, Lora]) -> None:
    weights = Weights(layers_of(pipeline))
    before = pipeline.unet.get_submodule(LAYERS[0]).weight.clone()
    with pytest.raises(ZeroDivisionError), weights.using(((loras["paper"], 1.0),)):
        1 / 0  # noqa: B018

    assert torch.equal(pipeline.unet.get_submodule(LAYERS[0]).weight, before)
    assert weights.key == ()


# Images -------------------------------------------------------------------------------------------------------------

MIXED = [
    request(1, ("paper", 1.0)),
    request(2, ("film", 0.7), ("paper", 0.5)),
    request(3),
    request(4, ("paper", 1.0), num_steps=2),
    request(5, ("loha", 1.0)),
]


@pytest.mark.parametrize("form", ["merged", "sidecar", "auto"])
def test_every_request_has_its_own_loras(engine_of: Any, files: dict[str, Path], form: Form) -> None:
    ours = images(engine_of(form), MIXED)
    theirs = [stock(files, one) if one.seed != 5 else stock_with_loha(files, one) for one in MIXED]
    plain = [stock_latents(tiny(SDXL), replace(one, loras=())) for one in MIXED]

    assert max(map(gap, ours, theirs)) < EXACT
    felt = [gap(mine, bare) for mine, bare, one in zip(ours, plain, MIXED, strict=True) if one.loras]
    assert min(felt) > 20 * EXACT


def stock_with_loha(files: dict[str, Path], one: Request) -> torch.Tensor:
    """Diffusers does not read LoHa for U-Nets: the change is made by hand."""
    from safetensors.torch import load_file

    pipeline = build(SDXL)
    parts = {key.rpartition(".")[2]: tensor for key, tensor in load_file(files["loha"]).items()}
    product = (parts["hada_w1_a"] @ parts["hada_w1_b"]) * (parts["hada_w2_a"] @ parts["hada_w2_b"])
    pipeline.unet.get_submodule(LAYERS[0]).weight.data += product
    return stock_latents(pipeline, one)


def test_beside_the_weights_different_loras_share_one_call(engine_of: Any) -> None:
    engine = engine_of("sidecar")
    images(engine, [request(seed, *uses) for seed, uses in enumerate([[("paper", 1.0)], [("film", 1.0)], []])])

    assert engine.num_calls <= 6  # 3 steps together, apart from those that were loaded a little later


def test_a_change_of_the_text_encoders_is_felt(engine_of: Any, files: dict[str, Path]) -> None:
    one = request(7, ("words", 0.8))
    (ours,) = images(engine_of(), [one])
    unet_only = replace(one, loras=())

    assert gap(ours, stock(files, one)) < EXACT
    assert gap(ours, stock(files, unet_only)) > EXACT


def test_text_encoders_are_plain_again_for_the_next_request(engine_of: Any, files: dict[str, Path]) -> None:
    engine = engine_of()
    images(engine, [request(7, ("words", 0.8))])
    (after,) = images(engine, [request(8)])

    assert gap(after, stock_latents(tiny(SDXL), request(8))) < EXACT


TRANSFORMERS = {
    "takeup/tiny-sd3": ("transformer_blocks.0.attn.to_q", "transformer_blocks.1.ff.net.0.proj", "norm_out.linear"),
    "takeup/tiny-flux": ("transformer_blocks.0.attn.to_k", "single_transformer_blocks.0.proj_mlp", "x_embedder"),
}


@pytest.mark.parametrize("form", ["merged", "sidecar"])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_take_loras_too(name: str, form: Form, tmp_path: Path) -> None:
    pipeline, stock_pipeline = build(name), build(name)
    changes = factors(pipeline, [("transformer", path) for path in TRANSFORMERS[name]])
    files = {"film": save(peft_style(changes), tmp_path / "film.safetensors")}
    add_on = Loras(family_of(pipeline), ThreadLoader(files, Targets.of(pipeline)), form)
    plain, film = images(StepEngine(pipeline, add_ons=[add_on]), [request(1), request(1, ("film", 0.5))])
    add_on.close()
    stock_pipeline.load_lora_weights(files["film"], adapter_name="film")
    stock_pipeline.set_adapters(["film"], [0.5])
    stock_pipeline.fuse_lora(components=["transformer"])

    assert gap(film, stock_latents(stock_pipeline, request(1))) < EXACT
    assert gap(plain, stock_latents(tiny(name), request(1))) < EXACT < gap(plain, film)


# Late LoRAs ---------------------------------------------------------------------------------------------------------


def test_a_request_that_wants_to_be_exact_waits_and_others_do_not(engine_of: Any, loras: dict[str, Lora]) -> None:
    loader = SlowLoader()
    engine = engine_of("merged", loader)
    exact, other = engine.submit(request(1, ("paper", 1.0))), engine.submit(request(2))
    for _ in range(5):
        engine.advance()

    assert (exact.run.step, other.state) == (0, "done")
    loader.asked["paper"].set_result(loras["paper"])
    engine.run()
    assert exact.run.is_done


def test_with_k_zero_the_image_is_that_of_loading_first(engine_of: Any, files: dict[str, Path], loras: Any) -> None:
    loader = SlowLoader()
    engine = engine_of("merged", loader)
    one = request(1, ("paper", 1.0))
    ticket = engine.submit(one)
    engine.advance()
    loader.asked["paper"].set_result(loras["paper"])
    engine.run()

    assert gap(ticket.result().latents, stock(files, one)) < EXACT


def test_at_most_k_steps_are_made_without_the_lora(engine_of: Any, files: dict[str, Path], loras: Any) -> None:
    loader = SlowLoader()
    engine = engine_of("merged", loader)
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
    lora = read_lora(files["paper"], Targets.of(pipeline))
    weights = Weights(layers_of(pipeline))

    def patch(_: Any, step: int, __: Any, values: dict[str, Any]) -> dict[str, Any]:
        if step + 1 == num_steps:
            weights.use(weights.stage(((lora, 1.0),)))
        return values

    return stock_latents(pipeline, one, callback_on_step_end=patch)


def test_a_lora_that_comes_early_is_felt_at_once(engine_of: Any, files: dict[str, Path], loras: Any) -> None:
    loader = SlowLoader()
    loader.load("paper").set_result(loras["paper"])
    engine = engine_of("merged", loader)
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
    engine = engine_of("merged")
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
    engine = engine_of("merged")
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
    loader = ProcessLoader(files, Targets.of(tiny(SDXL)))
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

    (ours,) = images(engine_of("auto", Kept()), [one])

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
