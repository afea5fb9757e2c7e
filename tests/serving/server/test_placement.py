"""Where a pipeline lies decides how it is computed; a device that is not there is pretended."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch

from serving.lora_cases import EXACT, images
from serving.stock import ENGINE_MARKS, gap, stock_latents
from takeup.serving.diffusion.addons.controlnet.addon import Controls
from takeup.serving.diffusion.addons.controlnet.workers import StreamWorker, ThreadWorker
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.engine.tiny import build, tiny
from takeup.serving.diffusion.execution.executors import CudaGraphExecutor, EagerExecutor
from takeup.serving.model import Request
from takeup.serving.server.backends.local import compute_for, stacks_for, workers_for

pytestmark = ENGINE_MARKS


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), torch.device("meta")])
def test_what_is_no_cuda_device_calls_networks_as_they_are(device: Any) -> None:
    assert isinstance(compute_for(device), EagerExecutor)


@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda", 0)])
def test_cuda_devices_get_recorded_calls(device: Any) -> None:
    assert isinstance(compute_for(device), CudaGraphExecutor)


def test_calls_are_compiled_unless_that_is_not_wanted() -> None:
    compiling, plain = compute_for("cuda"), compute_for("cuda", compiles=False)

    assert isinstance(compiling, CudaGraphExecutor)
    assert isinstance(plain, CudaGraphExecutor)
    assert compiling._compile_options is not None
    assert plain._compile_options is None


def test_where_networks_are_called_as_they_are_layers_are_patched_one_by_one_and_threads_compute_controlnets() -> None:
    pipeline = tiny("takeup/tiny-sdxl-controlnet")
    compute = compute_for("cpu")
    workers = workers_for(compute, {"depth": pipeline.controlnet.nets[0]})
    kinds = {name: type(worker) for name, worker in workers.items()}
    for worker in workers.values():
        worker.close()

    assert kinds == {"depth": ThreadWorker}
    assert stacks_for(compute, family_of(pipeline)) is None


def test_recorded_calls_come_with_stacks_and_streams_and_the_images_of_diffusers() -> None:
    pipeline = build("takeup/tiny-sdxl-controlnet")
    family, compute = family_of(pipeline), compute_for("cuda", compiles=False)  # the weights lie on the CPU
    nets = dict(zip(("depth", "edges"), pipeline.controlnet.nets, strict=True))
    workers, stacks = workers_for(compute, nets), stacks_for(compute, family)
    engine = StepEngine(pipeline, compute=compute, add_ons=[Controls(family, nets, workers)])
    one = Request("a cat", num_steps=3, seed=4, height_px=32, width_px=32)
    (ours,) = images(engine, [one])

    assert {type(worker) for worker in workers.values()} == {StreamWorker}
    assert stacks is not None
    assert "mid_block.attentions.0.transformer_blocks.0.attn1.to_q" in stacks.places
    assert gap(ours, stock_latents(tiny("takeup/tiny-sdxl"), one)) < EXACT
