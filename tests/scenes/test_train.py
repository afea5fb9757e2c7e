"""A very small training run on the CPU: losses fall, the judge's scores rise, files are what diffusers reads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.support import scene_networks as networks
from benchmarks.support import scene_scores
from takeup.scenes import models, world
from takeup.scenes.judge import judge
from takeup.scenes.render import render, tensors

pytest.importorskip("diffusers")
torch = pytest.importorskip("torch")
train = pytest.importorskip("benchmarks.support.scene_training")
pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 6


def settings(folder: Path, **seconds: float) -> Any:
    return train.Settings(folder, size="tiny", batch=4, pool=8, steps=1, judged=1, seconds=seconds)


def descend(parameters: list[Any], loss: Callable[[], Any], steps: int = STEPS, rate: float = 3e-3) -> list[float]:
    optimizer, losses = torch.optim.AdamW(parameters, lr=rate), []
    for _ in range(steps):
        torch.manual_seed(0)  # the same noise in every step
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a VAE that was trained for a second."""
    path: Path = tmp_path_factory.mktemp("scenes")
    train.train_vae(settings(path, vae=1.0))
    return path


def test_the_loss_of_the_vae_falls() -> None:
    torch.manual_seed(0)
    vae = networks.build_vae("tiny")
    images = render(tensors(world.sample(0, 2), "cpu"), torch) * 2 - 1
    losses = descend(list(vae.parameters()), lambda: train._vae_loss(vae, images))

    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("family", models.FAMILIES)
def test_the_loss_of_a_denoiser_falls(folder: Path, family: str) -> None:
    trainee = train.Trainee(settings(folder), family)
    pool = train.make_pool(trainee.settings, trainee.vae, 8, seed=0)
    losses = descend(trainee.parameters(), lambda: trainee.loss(pool, 4))

    assert losses[-1] < 0.95 * losses[0]


def test_the_judge_sees_colours_that_a_small_decoder_has_learnt() -> None:
    """Pictures drawn by fitting a few parameters: the judge's score follows the fit."""
    scenes = world.sample(0, 4, held_out=True)
    exact = torch.tensor(render(scenes))
    picture = torch.full_like(exact, 0.5, requires_grad=True)
    before = judge(picture.detach().numpy(), scenes).scores.mean()
    descend([picture], lambda: (picture - exact).abs().mean(), steps=40, rate=2e-2)
    after = judge(np.clip(picture.detach().numpy(), 0, 1), scenes).scores.mean()

    assert (before, after) == (0, 1)


def test_a_part_trains_for_its_seconds_and_logs_its_loss(folder: Path) -> None:
    lines = (folder / "train.jsonl").read_text().splitlines()

    assert any('"part": "vae"' in line and '"score"' in line for line in lines)
    assert (folder / train.VAE_FILE).exists()


@pytest.mark.filterwarnings("ignore:`FluxPosEmbed` is deprecated:FutureWarning")  # diffusers uses its own old name
@pytest.mark.parametrize("family", models.FAMILIES)
def test_a_family_is_trained_exported_and_loaded_by_diffusers(folder: Path, tmp_path: Path, family: str) -> None:
    limits = {f"{family}-{part}": 0.1 for part in ("base", "control", "shadow")}
    run = settings(folder, **limits)
    train.train_family(run, family)
    train.export(run, family, tmp_path)

    pipeline = models.load(family, tmp_path)
    plain = scene_scores.paint(pipeline, ["a red circle at the top left"], steps=1)
    pipeline.load_lora_weights(str(models.lora_path(family, "shadow", tmp_path)))
    assert plain.shape == (1, 3, 128, 128)
    assert np.isfinite(plain).all()
    assert models.load_controlnet(family, tmp_path).config is not None


def test_training_that_gives_no_number_stops_with_the_step(folder: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(1))

    with pytest.raises(ArithmeticError, match="part-x"):
        train.fit(settings(folder, **{"part-x": 5.0}), "part-x", [weight], (weight * float("nan")).sum)
