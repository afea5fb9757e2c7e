"""Pictures, edge maps and segmentation maps agree with each other and with their seed."""

import hashlib

import numpy as np
import pytest

from takeup.errors import UnknownName
from takeup.scenes import render as rendering
from takeup.scenes import world

ONE_RED_CIRCLE = ["a large red circle in the center on a grey background"]


def digest(images: np.ndarray) -> str:
    return hashlib.sha256(np.round(images * 255).astype(np.uint8).tobytes()).hexdigest()[:16]


def test_pictures_of_a_seed_are_known() -> None:
    scenes = world.sample(0, 4)

    assert digest(rendering.render(scenes)) == "2c35922b5d8a9ee3"
    assert digest(rendering.edge_map(scenes)) == "8d02000de9c63102"
    assert digest(rendering.render(scenes, style="shadow")) == "cf0fa9dc2b79b0e8"
    assert digest(rendering.render(scenes, style="night")) == "84748da397d8ebcf"


def test_a_circle_has_its_colour_inside_and_the_background_outside() -> None:
    image = rendering.render(world.parse(ONE_RED_CIRCLE))[0]

    assert image[:, 64, 64] * 255 == pytest.approx([215, 30, 35])
    assert image[:, 0, 0] * 255 == pytest.approx([128, 128, 128])


def test_the_area_of_a_circle_is_that_of_its_radius() -> None:
    covered = rendering.segments(world.parse(ONE_RED_CIRCLE)) > 0

    assert covered.sum() == pytest.approx(np.pi * rendering.RADII[2] ** 2, rel=0.02)


def test_edges_lie_where_segments_change() -> None:
    scenes = world.sample(1, 16)
    segments, edges = rendering.segments(scenes), rendering.edge_map(scenes)[:, 0]
    change = np.zeros_like(segments, bool)
    change[:, 1:] |= segments[:, 1:] != segments[:, :-1]

    assert edges[change].min() > 0.1
    assert edges[segments == 0].mean() < 0.05


def test_torch_draws_the_same_pictures_as_numpy() -> None:
    torch = pytest.importorskip("torch")
    scenes = world.sample(7, 8)
    moved = rendering.tensors(scenes, "cpu")

    assert np.allclose(rendering.render(moved, torch).numpy(), rendering.render(scenes), atol=1e-4)
    assert np.allclose(rendering.edge_map(moved, torch).numpy(), rendering.edge_map(scenes), atol=1e-4)
    assert (rendering.segments(moved, torch).numpy() == rendering.segments(scenes)).mean() > 0.9999


def test_a_larger_picture_shows_the_same_scene() -> None:
    scenes = world.sample(3, 4)
    large = rendering.render(scenes, side=256).reshape(4, 3, 128, 2, 128, 2).mean(axis=(3, 5))

    assert abs(large - rendering.render(scenes)).mean() < 0.01


def test_an_object_that_does_not_exist_is_not_drawn() -> None:
    scenes = world.parse(ONE_RED_CIRCLE)

    assert set(np.unique(rendering.segments(scenes))) == {0, 1}


def test_an_unknown_style_is_refused() -> None:
    with pytest.raises(UnknownName, match="style"):
        rendering.render(world.sample(0, 1), style="nigth")
