"""Scores of pictures against captions without a network: colours by the nearest palette entry, shapes by overlap.

How it works: every pixel is labelled with its nearest palette colour. For each object of the caption a window around
its place is cut out; the pixels of the object's colour are compared with masks of all shapes and sizes at shifts of up
to 4 pixels by intersection over union (IoU). An object is right if its colour dominates, the best mask is of its shape
and the IoU is at least 0.6. Colour found elsewhere is a stray object. Pictures are arrays
[n, 3, side, side] from 0 to 1.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.ndimage import binary_dilation, binary_erosion, uniform_filter

from takeup.errors import BadInput, UnknownName
from takeup.scenes.render import (
    CELL,
    GROUND_COLOURS,
    MAX_RADIUS,
    RADII,
    SIDE,
    STYLES,
    TONES,
    cell_centre,
    render,
    segments,
    shadows,
    shape_mask,
)
from takeup.scenes.world import COLOURS, MOST, PLACES, SHAPES, TEXTURES, Scenes, parse

SHIFT = 4  # pixels an object may lie away from the centre of its place
LEAST_OVERLAP = 0.6
LEAST_COLOUR = 0.3  # share of the object's area
STRAY_AREA = 60  # pixels of object colours in a place that should be empty
CHANGED = 16 / 255  # a difference that counts as a changed pixel
SEAM = 0.25  # a jump along the border of a mask that scores 0
PALETTE = np.array([*(tone for pair in TONES for tone in pair), *GROUND_COLOURS], np.float32) / 255
GROUND = len(COLOURS)  # labels from here on are background colours


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found in `n` pictures: [n, 3] for objects, false where the caption has no such object."""

    present: Any
    colour: Any
    shape: Any
    size: Any
    texture: Any
    right: Any  # colour, shape and place
    overlap: Any  # IoU with the named shape at its best size and shift
    strays: Any  # [n], places with an object that the caption does not name
    background: Any  # [n], whether the background has the named colours

    @property
    def scores(self) -> Any:
        """Of each picture: right objects over all objects, named or stray; from 0 to 1."""
        return self.right.sum(axis=1) / np.maximum(self.present.sum(axis=1) + self.strays, 1)

    def shares(self) -> dict[str, float]:
        """The share of objects with the right colour, shape ..., and of pictures without strays."""
        objects = {name: getattr(self, name) for name in ("colour", "shape", "size", "texture", "right")}
        shares = {name: float(found[self.present].mean()) for name, found in objects.items()}
        return shares | {
            "no_strays": float((self.strays == 0).mean()),
            "background": float(self.background.mean()),
            "score": float(self.scores.mean()),
        }


def judge(images: Any, wanted: Scenes | Iterable[str]) -> Verdict:
    """The verdict on pictures that should show these scenes or captions."""
    scenes = wanted if isinstance(wanted, Scenes) else parse(wanted)
    labels = label(images)
    if len(labels) != len(scenes):
        raise BadInput(f"{len(scenes)} captions for {len(labels)} pictures; one caption for each is expected")
    present, found = scenes.present(), np.zeros((6, len(scenes), MOST))
    for image, k in zip(*present.nonzero(), strict=True):
        found[:, image, k] = _object(labels[image], scenes, image, k)
    colour, shape, size, texture, right = found[:5].astype(bool)
    strays, background = _strays(labels, scenes), _background(labels, scenes)
    return Verdict(present, colour, shape, size, texture, right, found[5], strays, background)


def label(images: Any) -> Any:
    """Of every pixel the number of the nearest palette colour: twice the colour plus the tone, then backgrounds."""
    pixels = np.asarray(images, np.float32)
    if pixels.ndim != 4 or pixels.shape[1:] != (3, SIDE, SIDE):
        raise BadInput(f"pictures of shape [n, 3, {SIDE}, {SIDE}] are expected, found {list(pixels.shape)}")
    nearest, labels = np.full(pixels[:, 0].shape, np.inf, np.float32), np.zeros(pixels[:, 0].shape, np.int64)
    for number, (red, green, blue) in enumerate(PALETTE):
        distance = (pixels[:, 0] - red) ** 2 + (pixels[:, 1] - green) ** 2 + (pixels[:, 2] - blue) ** 2
        labels[distance < nearest] = number
        nearest = np.minimum(nearest, distance)
    return labels


# Objects ----------------------------------------------------------------------------------------------------------


def _object(labels: Any, scenes: Scenes, image: int, k: int) -> tuple[bool, bool, bool, bool, bool, float]:
    """Right colour, shape, size, texture; colour, shape and place together; and the overlap of one object."""
    place, shape, wanted = scenes.place[image, k], scenes.shape[image, k], scenes.colour[image, k]
    window = _window(labels, place)
    counts = np.bincount(window[SHIFT:-SHIFT, SHIFT:-SHIFT].ravel() // 2, minlength=GROUND)[:GROUND]
    masks = _masks()
    colour = counts.argmax() == wanted and counts.max() > LEAST_COLOUR * masks[shape * 3].sum()
    by_size = _overlaps(window // 2 == wanted).reshape(len(SHAPES), len(RADII))
    overlaps = by_size.max(axis=1)
    found = overlaps.argmax() == shape and overlaps[shape] > 0
    size = found and by_size[shape].argmax() == scenes.size[image, k]
    right = colour and found and overlaps[shape] >= LEAST_OVERLAP
    texture = right and _texture(window, wanted) == scenes.texture[image, k]
    return bool(colour), bool(found), bool(size), bool(texture), bool(right), float(overlaps[shape])


def _window(labels: Any, place: int) -> Any:
    margin = 2 * SHIFT + MAX_RADIUS
    padded = np.pad(labels, margin, constant_values=2 * GROUND)
    half = MAX_RADIUS + SHIFT
    left, top = (round(float(centre)) + margin - half for centre in cell_centre(place))
    return padded[top : top + 2 * half, left : left + 2 * half]


@lru_cache(maxsize=1)
def _masks() -> Any:
    """Masks of all shapes and sizes, [shape x size, pixels]."""
    masks = [shape_mask(shape, radius, 2 * MAX_RADIUS) for shape in range(len(SHAPES)) for radius in RADII]
    return np.stack(masks).reshape(len(masks), -1).astype(np.float32)


def _overlaps(mask: Any) -> Any:
    """The best IoU of a mask with each shape and size over all shifts."""
    views = np.lib.stride_tricks.sliding_window_view(mask, (2 * MAX_RADIUS, 2 * MAX_RADIUS))
    common = views.reshape(-1, (2 * MAX_RADIUS) ** 2).astype(np.float32) @ _masks().T
    return (common / np.maximum(mask.sum() + _masks().sum(axis=1) - common, 1)).max(axis=0)


def _texture(window: Any, colour: int) -> int:
    """Plain with few pixels of the second tone; striped if that tone follows the diagonals; dotted otherwise."""
    inside = binary_erosion(window // 2 == colour)
    second = (window == 2 * colour + 1) & inside
    if second.sum() < 0.1 * max(inside.sum(), 1):
        return TEXTURES.index("plain")
    rows, columns = inside.nonzero()
    values, diagonal = second[inside].astype(float), rows + columns
    sums = np.bincount(diagonal, values) / np.maximum(np.bincount(diagonal), 1)
    explained = np.var(sums[diagonal]) / max(np.var(values), 1e-9)
    return TEXTURES.index("striped" if explained > 0.6 else "dotted")


def _strays(labels: Any, scenes: Scenes) -> Any:
    """In how many places that the caption leaves empty an object's colours cover more than `STRAY_AREA` pixels."""
    half = int(CELL / 2) - 5
    named = np.zeros((len(scenes), len(PLACES)), bool)
    image, k = scenes.present().nonzero()
    named[image, scenes.place[image, k]] = True
    strays = np.zeros(len(scenes), int)
    for place in range(len(PLACES)):
        x, y = (round(float(centre)) for centre in cell_centre(place))
        area = (labels[:, y - half : y + half, x - half : x + half] < 2 * GROUND).sum(axis=(1, 2))
        strays += (area > STRAY_AREA) & ~named[:, place]
    return strays


def _background(labels: Any, scenes: Scenes) -> Any:
    """Whether the picture's background colours agree with the exact picture on at least 90 % of its pixels."""
    centred = scenes.centred()
    empty = ~np.stack([binary_dilation(mask > 0, iterations=6) for mask in segments(centred)])
    agree = label(render(centred)) == labels
    return (agree & empty).sum(axis=(1, 2)) >= 0.9 * empty.sum(axis=(1, 2))


# Edits ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EditVerdict:
    """What was found in `n` edited pictures, [n] each."""

    new: Any  # whether the edited object is right
    others: Any  # share of the other objects that are right
    untouched: Any  # share of pixels outside the mask that stayed within 16 of 255 levels
    seam: Any  # how much further pixels jump across the mask's border than in the exact picture

    @property
    def scores(self) -> Any:
        """From 0 to 1: the new object right, times what was left untouched, times the absence of a seam."""
        return self.new * self.untouched * np.clip(1 - self.seam / SEAM, 0, 1)

    def shares(self) -> dict[str, float]:
        """Means of all parts and of the score."""
        parts = {name: float(np.mean(getattr(self, name))) for name in ("new", "others", "untouched", "seam")}
        return parts | {"score": float(self.scores.mean())}


def judge_edit(before: Any, after: Any, mask: Any, wanted: Scenes, edited: int = 0) -> EditVerdict:
    """The verdict on edits of object number `edited`; `mask` is [n, side, side], true where painting was allowed."""
    verdict, mask = judge(after, wanted), np.asarray(mask, bool)
    rest = verdict.present.copy()
    rest[:, edited] = False
    others = (verdict.right & rest).sum(axis=1) / np.maximum(rest.sum(axis=1), 1)
    others = np.where(rest.any(axis=1), others, 1.0)
    changed = (abs(np.asarray(after, float) - before).max(axis=1) > CHANGED) & ~mask
    untouched = 1 - changed.sum(axis=(1, 2)) / np.maximum((~mask).sum(axis=(1, 2)), 1)
    excess = _jumps(after, mask) - _jumps(render(wanted), mask)
    return EditVerdict(verdict.right[:, edited], others, untouched, np.maximum(excess, 0))


def _jumps(images: Any, mask: Any) -> Any:
    """Mean difference of neighbouring pixels of which exactly one is in the mask."""
    total, count = np.zeros(len(mask)), np.zeros(len(mask))
    for axis in (1, 2):
        border = np.diff(mask.astype(int), axis=axis) != 0
        steps = abs(np.diff(np.asarray(images, float), axis=axis + 1)).mean(axis=1)
        total += (steps * border).sum(axis=(1, 2))
        count += border.sum(axis=(1, 2))
    return total / np.maximum(count, 1)


# Styles, edges, distances -----------------------------------------------------------------------------------------


def style_share(images: Any, scenes: Scenes, style: str) -> float:
    """How far pictures have gone from the plain style (0) to the full style (1), over all pictures together."""
    if style not in STYLES:
        raise UnknownName("style", style, STYLES)
    centred = scenes.centred()
    region = _region(centred, style)
    darkness = [
        ((1 - np.asarray(shown, float).mean(axis=1)) * region).sum()
        for shown in (images, render(centred), render(centred, style=style))
    ]
    return float((darkness[0] - darkness[1]) / (darkness[2] - darkness[1]))


def _region(scenes: Scenes, style: str) -> Any:
    """The pixels that a style darkens, away from objects: the background, or the inner part of shadows."""
    empty = np.stack([~binary_dilation(mask > 0, iterations=4 if style == "night" else 2) for mask in segments(scenes)])
    return empty if style == "night" else empty & (shadows(scenes) > 0.5)


def edge_agreement(images: Any, edges: Any) -> Any:
    """Of each picture the share of asked edge pixels with a step of brightness or colour within one pixel."""
    values = np.asarray(images, float)
    steps = np.zeros((len(values), SIDE, SIDE))
    for axis in (2, 3):
        jump = abs(np.diff(values, axis=axis)).max(axis=1)
        steps = np.maximum(steps, np.pad(jump, [(0, 0), *((0, int(axis == n)) for n in (2, 3))]))
    near = np.stack([binary_dilation(step > 0.12, iterations=1) for step in steps])
    asked = np.asarray(edges)[:, 0] > 0.5
    return (near & asked).sum(axis=(1, 2)) / np.maximum(asked.sum(axis=(1, 2)), 1)


def psnr(images: Any, others: Any) -> Any:
    """Peak signal-to-noise ratio of each pair in dB; 100 for equal pictures."""
    error = ((np.asarray(images, float) - others) ** 2).mean(axis=(1, 2, 3))
    return -10 * np.log10(np.maximum(error, 1e-10))


def ssim(images: Any, others: Any, window: int = 7) -> Any:
    """Structural similarity of each pair (Wang et al. 2004) with uniform windows of 7 pixels."""
    a, b = np.asarray(images, float), np.asarray(others, float)

    def mean(values: Any) -> Any:
        return uniform_filter(values, size=(1, 1, window, window))

    mean_a, mean_b = mean(a), mean(b)
    var_a, var_b, both = mean(a * a) - mean_a**2, mean(b * b) - mean_b**2, mean(a * b) - mean_a * mean_b
    light = (2 * mean_a * mean_b + 1e-4) / (mean_a**2 + mean_b**2 + 1e-4)
    return (light * (2 * both + 9e-4) / (var_a + var_b + 9e-4)).mean(axis=(1, 2, 3))


def interval(values: Any, seed: int = 0, draws: int = 2000) -> tuple[float, float, float]:
    """Mean and its 95 % bootstrap interval over pictures."""
    values, rng = np.asarray(values, float).ravel(), np.random.default_rng(seed)
    means = rng.choice(values, (draws, len(values))).mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(values.mean()), float(low), float(high)
