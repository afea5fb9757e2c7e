"""Tasks with a known answer for trained scene models: pictures of captions, edits of one object, edge maps."""

from dataclasses import replace
from typing import Any

import numpy as np

from takeup.scenes import world
from takeup.scenes.render import SIDE, cell_centre
from takeup.scenes.world import COLOURS, SHAPES, Scenes

SMALLEST_MASK = 0.08  # of the picture; in a smaller one only small objects have room
MASK_SHAPES = ("box", "ellipse")


def edits(
    number: int, seed: int, share: float = 0.13, edited: int = 0, mask_shape: str = "box"
) -> tuple[Scenes, Scenes, Any]:
    """Held-out scenes of at least two objects, the same with another object `edited`, and masks [n, side, side]."""
    before = world.sample(seed, number, held_out=True, fewest=2).centred()
    rng, shape, colour = np.random.default_rng((seed, edited)), before.shape.copy(), before.colour.copy()
    shape[:, edited] = (shape[:, edited] + rng.integers(1, len(SHAPES), number)) % len(SHAPES)
    colour[:, edited] = (colour[:, edited] + rng.integers(1, len(COLOURS), number)) % len(COLOURS)
    if share < SMALLEST_MASK:
        size = before.size.copy()
        size[:, edited] = 0
        before = replace(before, size=size)
    masks = np.stack([mask_around(int(place), share, mask_shape) for place in before.place[:, edited]])
    return before, replace(before, shape=shape, colour=colour), masks


def mask_around(place: int, share: float, shape: str = "box") -> Any:
    """A mask of this share of the picture around a place, moved so that all of it lies inside."""
    side = min(round(SIDE * share**0.5 * (1 if shape == "box" else (4 / np.pi) ** 0.5)), SIDE)
    x, y = (int(np.clip(round(centre - side / 2), 0, SIDE - side)) for centre in cell_centre(place))
    line = np.arange(SIDE) + 0.5
    across, down = (line - x - side / 2) / (side / 2), (line - y - side / 2) / (side / 2)
    if shape == "ellipse":
        return across[None] ** 2 + down[:, None] ** 2 < 1
    return (abs(across)[None] < 1) & (abs(down)[:, None] < 1)
