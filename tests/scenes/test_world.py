"""Scenes are sampled from a seed, written as captions and read back."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.errors import BadInput
from takeup.scenes import world

COLUMNS = ("shape", "colour", "size", "place", "texture")


def same_objects(a: world.Scenes, b: world.Scenes) -> bool:
    present = a.present()
    same_counts = bool((a.count == b.count).all())
    return same_counts and all((getattr(a, name) == getattr(b, name))[present].all() for name in COLUMNS)


def test_a_seed_gives_the_same_scenes_again() -> None:
    first, again, other = world.sample(5, 20), world.sample(5, 20), world.sample(6, 20)

    assert same_objects(first, again)
    assert (first.offset == again.offset).all()
    assert not (first.place == other.place).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_every_caption_in_any_words_is_read_back(seed: int) -> None:
    scenes = world.sample(seed, 30)

    assert same_objects(scenes, world.parse(world.captions(scenes, np.random.default_rng(seed))))


def test_a_caption_without_variation_also_tells_the_background() -> None:
    scenes = world.sample(1, 50)
    parsed = world.parse(world.captions(scenes))
    plain = scenes.ground[:, 0] == 0

    assert (parsed.ground[:, :2] == scenes.ground[:, :2]).all()
    assert (parsed.ground[~plain] == scenes.ground[~plain]).all()


def test_training_never_sees_a_description_that_is_held_out() -> None:
    assert not world.is_held_out(world.sample(2, 500)).any()
    assert world.is_held_out(world.sample(2, 50, held_out=True)).all()


def test_about_one_description_in_sixteen_is_held_out() -> None:
    drawn = world._draw(np.random.default_rng(0), 20_000, 1)

    assert 0.055 < world.is_held_out(drawn).mean() < 0.07


def test_whether_a_scene_is_held_out_does_not_depend_on_the_order_of_its_objects() -> None:
    scenes = world.sample(3, 40, fewest=world.MOST)
    order = [2, 0, 1]
    turned = replace(scenes, **{name: getattr(scenes, name)[:, order] for name in COLUMNS})

    assert (world.is_held_out(turned) == world.is_held_out(scenes)).all()


def test_a_vague_caption_leaves_out_shape_and_size() -> None:
    told = world.captions(world.sample(4, 30), np.random.default_rng(0), vague=1.0)

    words = {word for caption in told for word in caption.split()}
    assert not words & {*world.SHAPES, *world.SIZES}
    assert "object" in words


def test_every_word_of_every_caption_is_known() -> None:
    told = world.captions(world.sample(9, 300), np.random.default_rng(1))

    assert {word for caption in told for word in caption.replace(",", " ,").split()} <= set(world.WORDS)


@pytest.mark.parametrize("caption", ["a dog on the moon", "", "a circle at the top left", "a red thing in the center"])
def test_a_caption_outside_the_grammar_is_refused_with_an_example(caption: str) -> None:
    with pytest.raises(BadInput):
        world.parse([caption])
