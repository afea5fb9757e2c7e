"""`takeup serving quality`, as a person calls it, on tiny models."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

from command_line import Run, assert_one_sentence, rows_of
from serving.stock import ENGINE_MARKS
from takeup.scenes.quality import ModelPainter, late_pair, reused_pair
from takeup.serving.diffusion.engine.tiny import build
from takeup.serving.model import Request

pytestmark = ENGINE_MARKS

SMALL = ("--steps", 3, "--size", 32, "--pictures", 1, "--prompt", "a cat", "--quiet")


def painter(name: str, num_steps: int, lora: Path | None = None) -> ModelPainter:
    asked = [Request("a cat", num_steps=num_steps, height_px=32, width_px=32)]
    return ModelPainter(partial(build, name), asked, lora)


def nearness_db(row: Sequence[Any]) -> float:
    return float(row[-2])


def test_recorded_and_eight_bit_pictures_are_near_the_exact_ones(run: Run, files: dict[str, Path]) -> None:
    lora = ("--lora", files["paper"])
    outcome = run(
        "serving", "quality", "takeup/tiny-sdxl", "--only", "recorded", "--only", "eight", "--json", *lora, *SMALL
    )
    recorded, eight = rows_of(outcome)

    assert outcome.code == 0
    assert (recorded["acceleration"], eight["acceleration"]) == ("recorded", "eight")
    assert recorded["score"] is None
    assert float(str(recorded["SSIM to exact"])) > 0.999
    assert 100 >= float(str(recorded["PSNR to exact"])) > float(str(eight["PSNR to exact"])) > 20


def test_a_bar_that_is_missed_is_told_by_the_exit_code(run: Run) -> None:
    outcome = run("serving", "quality", "takeup/tiny-sdxl", "--only", "bfloat16", "--least-ssim", "1.1", *SMALL)

    assert outcome.code == 1
    assert "bfloat16" in outcome.out
    assert "not measured" in outcome.out


def test_a_lora_that_comes_late_changes_the_image_and_one_step_less_than_two(files: dict[str, Path]) -> None:
    own = painter("takeup/tiny-sdxl", 4, files["paper"])
    one, three = (nearness_db(late_pair(own, own.plain(), steps).row("late")) for steps in (1, 3))

    assert 100 > one > three


def test_residuals_that_are_used_again_change_the_image_the_more_the_more_they_may_change() -> None:
    own = painter("takeup/tiny-sdxl-controlnet", 16)
    none, some, more = (
        nearness_db(reused_pair(own, own.steered(), change).row("reused")) for change in (0.0, 0.3, 0.9)
    )

    assert none == 100
    assert none > some > more


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("takeup/tiny-sdxl", "--only", "late"), "choose from recorded, eight, bfloat16"),
        (("takeup/tiny-sdxxl",), "did you mean"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_one_sentence(run: Run, arguments: tuple[str, ...], said: str) -> None:
    outcome = run("serving", "quality", *arguments, *SMALL)

    assert outcome.code == 2
    assert_one_sentence(outcome, said)
