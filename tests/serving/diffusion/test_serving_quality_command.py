"""`takeup serving quality`, as a person calls it, on tiny models."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

from command_line import Run, assert_one_sentence, rows_of
from serving.stock import ENGINE_MARKS
from takeup.serving.diffusion.engine.tiny import build
from takeup.serving.model import Request
from takeup.serving.quality import compare_images, cosine, makers_of

pytestmark = ENGINE_MARKS

SMALL = ("--steps", 3, "--size", 32, "--images", 1, "--prompt", "a cat", "--quiet")


def test_a_recorded_run_is_as_good_as_a_lossless_one(run: Run) -> None:
    outcome = run("serving", "quality", "takeup/tiny-sdxl", "--json", *SMALL)
    (row,) = rows_of(outcome)

    assert outcome.code == 0
    assert row["prompt"] == "a cat"
    assert float(str(row["cosine"])) > 0.99999
    assert float(str(row["SSIM"])) > 0.999


def test_eight_bits_pass_the_gate_and_are_told_from_rounding(run: Run) -> None:
    outcome = run("serving", "quality", "--accelerate", "eight", "--json", *SMALL)
    (row,) = rows_of(outcome)

    assert outcome.code == 0
    assert 0.99 < float(str(row["cosine"])) < 0.999999


def test_a_lora_is_felt_in_eight_bits(files: dict[str, Path]) -> None:
    requests = [Request("a cat", num_steps=2, height_px=32, width_px=32)]
    with_it, without = (
        makers_of("eight", lambda: build("takeup/tiny-sdxl"), lora)[1](requests[0]) for lora in (files["paper"], None)
    )
    lossless = makers_of("recorded", lambda: build("takeup/tiny-sdxl"), files["paper"])[0](requests[0])

    assert cosine(with_it.latents, lossless.latents) > 0.999
    assert cosine(with_it.latents, lossless.latents) > cosine(without.latents, lossless.latents)


def test_a_bar_that_is_missed_is_told_by_the_exit_code(run: Run) -> None:
    outcome = run("serving", "quality", "--accelerate", "bfloat16", "--least-cosine", "1.1", *SMALL)

    assert outcome.code == 1
    assert "bfloat16" in outcome.out
    assert "not measured" in outcome.out


def test_a_lora_that_comes_late_changes_the_image_and_one_step_less_than_two(files: dict[str, Path]) -> None:
    requests = [Request("a cat", num_steps=4, height_px=32, width_px=32)]

    def alike(late_steps: int) -> float:
        makers = makers_of("late", lambda: build("takeup/tiny-sdxl"), files["paper"], late_steps)
        return compare_images(*makers, requests)[0].psnr_db

    assert alike(1) > alike(3)
    assert alike(1) < 200


def test_residuals_that_are_used_again_change_the_image_the_more_the_more_they_may_change() -> None:
    requests = [Request("a cat", num_steps=16, height_px=32, width_px=32)]

    def alike(max_change: float) -> float:
        makers = makers_of("reused", lambda: build("takeup/tiny-sdxl-controlnet"), max_change=max_change)
        return compare_images(*makers, requests)[0].psnr_db

    assert alike(0.0) == inf
    assert inf > alike(0.3) > alike(0.9)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--accelerate", "recordd"), "did you mean 'recorded'"),
        (("--accelerate", "late"), "give a LoRA"),
        (("--accelerate", "reused"), "has no ControlNets"),
        (("takeup/tiny-sdxxl",), "did you mean"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_one_sentence(run: Run, arguments: tuple[str, ...], said: str) -> None:
    outcome = run("serving", "quality", *arguments, *SMALL)

    assert outcome.code == 2
    assert_one_sentence(outcome, said)
