"""The judge gives exact pictures the score 1 and says what is wrong with the others."""

from dataclasses import replace

import numpy as np
import pytest

from takeup.errors import BadInput
from takeup.scenes import judge as judging
from takeup.scenes import tasks, world
from takeup.scenes.render import STYLES, edge_map, render

NUMBER = 32
SCENES = world.sample(11, NUMBER, held_out=True)
PICTURES = render(SCENES)
OTHERS = {"colour": world.COLOURS, "shape": world.SHAPES, "place": world.PLACES}


def changed(name: str) -> world.Scenes:
    return replace(SCENES, **{name: (getattr(SCENES, name) + 1) % len(OTHERS[name])})


def test_an_exact_picture_scores_one() -> None:
    verdict = judging.judge(PICTURES, SCENES)

    assert (verdict.scores == 1).all()
    assert set(verdict.shares().values()) == {1.0}


def test_a_caption_judges_as_its_scene_does() -> None:
    verdict = judging.judge(render(SCENES.centred()), world.captions(SCENES))

    assert (verdict.scores == 1).all()


@pytest.mark.parametrize("name", OTHERS)
def test_an_object_of_another_colour_shape_or_place_is_not_right(name: str) -> None:
    verdict = judging.judge(render(changed(name)), SCENES)

    assert verdict.right[verdict.present].mean() < 0.05
    assert verdict.scores.mean() < 0.05


def test_another_shape_keeps_its_colour() -> None:
    shares = judging.judge(render(changed("shape")), SCENES).shares()

    assert shares["colour"] == 1
    assert shares["shape"] < 0.05


def test_another_size_or_texture_is_told_apart() -> None:
    other_size = judging.judge(render(replace(SCENES, size=(SCENES.size + 1) % 3)), SCENES).shares()
    other_texture = judging.judge(render(replace(SCENES, texture=(SCENES.texture + 1) % 3)), SCENES).shares()

    assert (other_size["right"], other_size["size"]) == (1, 0)
    assert (other_texture["right"], other_texture["texture"]) == (1, 0)


def test_another_background_is_told_apart() -> None:
    turned = replace(SCENES, ground=(SCENES.ground + np.array([0, 1, 1])) % 4)

    assert judging.judge(render(turned), SCENES).shares()["background"] == 0


def test_an_object_that_was_not_asked_for_lowers_the_score() -> None:
    one = world.parse(["a large red circle at the top left"])
    two = world.parse(["a large red circle at the top left and a large blue star at the bottom right"])
    verdict = judging.judge(render(two), one)

    assert verdict.strays.tolist() == [1]
    assert verdict.scores.tolist() == [0.5]


def test_noise_that_keeps_the_objects_visible_is_forgiven() -> None:
    noisy = np.clip(PICTURES + np.random.default_rng(0).normal(0, 0.03, PICTURES.shape), 0, 1)

    assert judging.judge(noisy, SCENES).shares()["right"] > 0.99


def test_grey_pictures_score_zero() -> None:
    assert judging.judge(np.full_like(PICTURES, 0.5), SCENES).scores.max() == 0


def test_pictures_of_another_size_or_number_are_refused() -> None:
    with pytest.raises(BadInput, match="128"):
        judging.judge(PICTURES[:, :, :64], SCENES)
    with pytest.raises(BadInput, match="one caption"):
        judging.judge(PICTURES[:3], SCENES)


# Edits


def exact_edit() -> tuple[np.ndarray, np.ndarray, np.ndarray, world.Scenes]:
    old, new, mask = tasks.edits(16, 5)
    return render(old), render(new), mask, new


def test_an_exact_edit_scores_one() -> None:
    before, after, mask, new = exact_edit()

    assert judging.judge_edit(before, after, mask, new).scores == pytest.approx(np.ones(16), abs=0.02)


def test_an_edit_that_did_not_happen_scores_zero() -> None:
    before, _, mask, new = exact_edit()

    assert judging.judge_edit(before, before, mask, new).scores.max() == 0


def test_pixels_changed_outside_the_mask_lower_the_score() -> None:
    before, after, mask, new = exact_edit()
    touched = np.where(mask[:, None], after, np.clip(after + 0.1, 0, 1))
    verdict = judging.judge_edit(before, touched, mask, new)

    assert verdict.untouched.mean() < 0.2
    assert verdict.scores.mean() < 0.3


def test_a_seam_along_the_mask_lowers_the_score() -> None:
    before, after, mask, new = exact_edit()
    lighter = np.where(mask[:, None], np.clip(after + 0.15, 0, 1), after)
    verdict = judging.judge_edit(before, lighter, mask, new)

    assert verdict.seam.mean() > 0.05
    assert verdict.scores.mean() < 0.8


# Styles, edges, distances


@pytest.mark.parametrize("style", STYLES)
def test_style_share_is_zero_for_plain_and_one_for_styled_pictures(style: str) -> None:
    assert judging.style_share(PICTURES, SCENES, style) == pytest.approx(0, abs=0.05)
    assert judging.style_share(render(SCENES, style=style), SCENES, style) == pytest.approx(1, abs=0.05)


def test_edges_agree_with_their_own_pictures_only() -> None:
    edges = edge_map(SCENES)

    assert judging.edge_agreement(PICTURES, edges).mean() > 0.97
    assert judging.edge_agreement(PICTURES[::-1], edges).mean() < 0.4


def test_equal_pictures_are_at_no_distance() -> None:
    pair = PICTURES[:2]

    assert judging.psnr(pair, pair).tolist() == [100, 100]
    assert judging.ssim(pair, pair) == pytest.approx([1, 1])
    assert judging.psnr(pair, pair[::-1]).max() < 40
    assert judging.ssim(pair, pair[::-1]).max() < 0.95


def test_the_interval_contains_the_mean() -> None:
    mean, low, high = judging.interval([0, 1] * 50)

    assert mean == 0.5
    assert 0.35 < low < mean < high < 0.65
