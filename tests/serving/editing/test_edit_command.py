"""`takeup serving edit` through the whole program."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

from PIL import Image

from command_line import Run, assert_one_sentence
from serving.stock import ENGINE_MARKS

pytestmark = ENGINE_MARKS

FEW = ("--steps", "2")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    mask = np.zeros((32, 32), np.uint8)
    mask[8:16, 8:16] = 255
    paths = tmp_path / "image.png", tmp_path / "mask.png"
    Image.fromarray(image).save(paths[0])
    Image.fromarray(mask).save(paths[1])
    return paths


def test_only_masked_pixels_change_and_the_second_edit_computes_less(
    run: Run, files: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "edited.png"
    options = (*FEW, "--templates", str(tmp_path / "kept"), "--out", str(out), "--json")
    answers = [run("serving", "edit", *map(str, files), "a cat", *options) for _ in range(2)]
    first, second = (json.loads(answer.out) for answer in answers)
    before, mask, after = (np.asarray(Image.open(path)) for path in (*files, out))

    assert [answer.code for answer in answers] == [0, 0]
    assert (first["from_template"], second["from_template"]) == (False, True)
    assert second["computed_share"] < 0.7 < first["computed_share"]  # one of the two steps is checked
    assert second["error"] < 1e-3  # the same edit again: rounding
    assert np.array_equal(after[mask == 0], before[mask == 0])
    assert not np.array_equal(after[mask > 0], before[mask > 0])


def test_a_template_stands_for_the_image_it_was_told_for(run: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    options = (*FEW, "--templates", str(tmp_path / "kept"), "--out", str(tmp_path / "edited.png"))
    told = run("serving", "edit", *map(str, files), "a cat", *options)
    template = told.err.split()[-1]
    files[0].unlink()
    answer = run("serving", "edit", template, str(files[1]), "a dog", *options, "--json")
    elsewhere = run("serving", "edit", template, str(files[1]), "a dog", *FEW, "--templates", str(tmp_path / "other"))
    done = json.loads(answer.out)

    assert template.startswith("tpl_")
    assert (done["template"], done["from_template"]) == (template, True)
    assert done["error"] > 0
    assert_one_sentence(elsewhere, template, "cannot be read")


def test_a_mask_of_another_size_is_one_sentence_and_exit_code_2(run: Run, files: tuple[Path, Path]) -> None:
    Image.new("L", (16, 32), 255).save(files[1])
    answer = run("serving", "edit", *map(str, files), "a cat", *FEW)

    assert_one_sentence(answer, "the mask is 16x32 pixels, the image 32x32")


def test_a_file_that_is_no_image_is_refused(run: Run, files: tuple[Path, Path]) -> None:
    files[0].write_text("no image")
    answer = run("serving", "edit", *map(str, files), "a cat", *FEW)

    assert_one_sentence(answer, "cannot be read as an image")
