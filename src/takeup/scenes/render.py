"""Pictures of scenes with exact edge and segmentation maps, from signed distances.

One source for two array libraries: numpy for single pictures and tests, torch for batches on a device. A signed
distance is negative inside a shape and positive outside, in pixels; coverage of a pixel is `0.5 - distance`, clipped,
which gives anti-aliased outlines. Pictures have the shape [n, 3, side, side] and values from 0 to 1.
"""

from dataclasses import fields
from types import ModuleType
from typing import Any

import numpy as np

from takeup.errors import UnknownName
from takeup.scenes.world import COLOURS, MOST, PLACES, SHAPES, TEXTURES, Scenes

SIDE = 128
CELL = SIDE / 3
RADII = (9.5, 13.5, 18.0)
MAX_RADIUS = 21
STYLES = ("shadow", "night")
SHADOW = 5  # pixels to the right and down
GROUND_COLOURS = ((128, 128, 128), (22, 22, 22), (222, 203, 168), (95, 60, 40))
TONES = (  # each colour and the second tone of its stripes and dots
    ((215, 30, 35), (140, 10, 30)),
    ((35, 165, 60), (15, 100, 35)),
    ((40, 75, 225), (25, 35, 140)),
    ((245, 225, 45), (185, 170, 20)),
    ((245, 130, 20), (180, 85, 10)),
    ((145, 45, 185), (90, 20, 115)),
    ((45, 205, 225), (20, 140, 165)),
    ((250, 250, 250), (190, 195, 235)),
)
STAR_REACH = 1.12


def render(scenes: Scenes, xp: ModuleType = np, style: str | None = None, side: int = SIDE) -> Any:
    """The pictures, [n, 3, side, side]."""
    x, y = _grid(scenes, xp, side)
    distances = _distances(scenes, x, y, xp, side / SIDE)
    image = _grounds(scenes, x, y, xp, side)
    if style == "night":
        image = image * 0.3
    elif style == "shadow":
        image = image * (1 - 0.65 * shadows(scenes, xp, side))[:, None]
    elif style is not None:
        raise UnknownName("style", str(style), STYLES)
    for k in range(MOST):
        distance = distances[:, k]
        image = _over(image, _paint(scenes, k, x, y, xp, side / SIDE), _clip(0.5 - distance, xp), xp)
    return image


def shadows(scenes: Scenes, xp: ModuleType = np, side: int = SIDE) -> Any:
    """How much of the soft shadow of any object falls on each pixel, objects included, [n, side, side]."""
    x, y = _grid(scenes, xp, side)
    shift, scale = SHADOW * side / SIDE, side / SIDE
    return _biggest(_clip(0.5 - _distances(scenes, x - shift, y - shift, xp, scale) / (6 * scale), xp), xp)


def edge_map(scenes: Scenes, xp: ModuleType = np, side: int = SIDE) -> Any:
    """White lines along the outlines of all objects on black, [n, 3, side, side]: the input of a ControlNet."""
    x, y = _grid(scenes, xp, side)
    lines = _clip(1.5 - abs(_distances(scenes, x, y, xp, side / SIDE)), xp)
    return _biggest(lines, xp)[:, None].repeat(*((1, 3, 1, 1) if xp is not np else (3, 1)))


def segments(scenes: Scenes, xp: ModuleType = np, side: int = SIDE) -> Any:
    """0 for the background, else 1 + the number of the object that covers the pixel's centre, [n, side, side]."""
    x, y = _grid(scenes, xp, side)
    distances = _distances(scenes, x, y, xp, side / SIDE)
    nearest = distances.argmin(1)
    inside = -_biggest(-distances, xp) < 0
    return (nearest + 1) * inside


def shape_mask(shape: int, radius: float, side: int) -> Any:
    """The pixels whose centres one shape covers, centred in a square of `side` pixels."""
    line = np.arange(side) + 0.5 - side / 2
    x, y = np.meshgrid(line, line)
    return SHAPE_DISTANCES[shape](x, y, np.full_like(x, radius), np) < 0


def cell_centre(place: Any) -> tuple[Any, Any]:
    """Horizontal and vertical position of a place in pixels of a 128-pixel picture."""
    return (place % 3 + 0.5) * CELL, (place // 3 + 0.5) * CELL


def tensors(scenes: Scenes, device: Any) -> Scenes:
    """The same scenes as torch tensors on a device, for rendering there."""
    torch: Any = __import__("torch")
    columns = [torch.as_tensor(getattr(scenes, field.name), device=device) for field in fields(scenes)]
    columns[-1] = columns[-1].float()
    return Scenes(*columns)


# Parts of a picture -----------------------------------------------------------------------------------------------


def _grid(scenes: Scenes, xp: ModuleType, side: int) -> tuple[Any, Any]:
    line = xp.arange(side, **_on(scenes, xp)) + 0.5
    return line[None, None, :], line[None, :, None]


def _on(scenes: Scenes, xp: ModuleType) -> dict[str, Any]:
    return {} if xp is np else {"device": scenes.shape.device}


def _table(values: Any, scenes: Scenes, xp: ModuleType) -> Any:
    return np.array(values, float) if xp is np else xp.tensor(values, dtype=xp.float32, device=scenes.shape.device)


def _distances(scenes: Scenes, x: Any, y: Any, xp: ModuleType, scale: float) -> Any:
    """Signed distances to all objects, [n, 3, side, side]; far away for objects that do not exist."""
    centre_x, centre_y = cell_centre(scenes.place)
    radius = _table(RADII, scenes, xp)[scenes.size] * (1 + scenes.offset[..., 2])
    per_object = []
    for k in range(MOST):
        wide = [
            column[:, None, None] * scale
            for column in (centre_x[:, k] + scenes.offset[:, k, 0], centre_y[:, k] + scenes.offset[:, k, 1])
        ]
        reach = radius[:, k][:, None, None] * scale
        distance = _by_shape(scenes.shape[:, k], x - wide[0], y - wide[1], reach, xp)
        per_object.append(xp.where((scenes.count > k)[:, None, None], distance, distance * 0 + 999.0))
    return xp.stack(per_object, 1)


def _by_shape(shape: Any, x: Any, y: Any, radius: Any, xp: ModuleType) -> Any:
    distance = SHAPE_DISTANCES[0](x, y, radius, xp)
    for number, formula in enumerate(SHAPE_DISTANCES[1:], 1):
        chosen = shape == number
        if bool(chosen.any()):
            distance[chosen] = formula(x[chosen], y[chosen], radius[chosen], xp)
    return distance


def _grounds(scenes: Scenes, x: Any, y: Any, xp: ModuleType, side: int) -> Any:
    pattern = scenes.ground[:, 0][:, None, None]
    flat = x * 0 + y * 0
    lower = _clip(flat + y - side / 2 + 0.5, xp)
    squares = (xp.floor(x / (side / 8)) + xp.floor(y / (side / 8))) % 2
    share = xp.where(pattern == 1, lower, flat)
    share = xp.where(pattern == 2, flat + y / side, share)
    share = xp.where(pattern == 3, flat + squares, share)[:, None]
    table = _table(GROUND_COLOURS, scenes, xp) / 255
    first, second = (table[scenes.ground[:, n]][:, :, None, None] for n in (1, 2))
    return first * (1 - share) + second * share


def _paint(scenes: Scenes, k: int, x: Any, y: Any, xp: ModuleType, scale: float) -> Any:
    """The colour of object `k` at every pixel: one tone, or a second tone in stripes or dots of 7 pixels."""
    tones = _table(TONES, scenes, xp)[scenes.colour[:, k]] / 255
    texture = scenes.texture[:, k][:, None, None]
    turn = 2 * np.pi / (7 * scale)
    stripes = _clip(1.5 * xp.sin((x + y) * (turn / 1.4)) + 0.5, xp)
    dots = _clip(2.0 * (xp.sin(x * turn) * xp.sin(y * turn)) - 0.2, xp)
    share = xp.where(texture == TEXTURES.index("striped"), stripes, stripes * 0)
    share = xp.where(texture == TEXTURES.index("dotted"), dots, share)[:, None]
    return tones[:, 0, :, None, None] * (1 - share) + tones[:, 1, :, None, None] * share


def _over(image: Any, colour: Any, share: Any, xp: ModuleType) -> Any:
    return image + (colour - image) * share[:, None]


def _clip(values: Any, xp: ModuleType) -> Any:
    return xp.clip(values, 0, 1)


def _biggest(values: Any, xp: ModuleType) -> Any:
    return values.max(axis=1) if xp is np else values.amax(1)


# Signed distances of a shape of radius r at (x, y) ----------------------------------------------------------------


def _circle(x: Any, y: Any, r: Any, xp: ModuleType) -> Any:
    return xp.sqrt(x * x + y * y) - r


def _square(x: Any, y: Any, r: Any, xp: ModuleType) -> Any:
    return xp.maximum(abs(x), abs(y)) - 0.86 * r


def _triangle(x: Any, y: Any, r: Any, xp: ModuleType) -> Any:
    low = y - 0.2 * r
    return xp.maximum(low - 0.575 * r, 0.866 * abs(x) - 0.5 * low - 0.575 * r)


def _ring(x: Any, y: Any, r: Any, xp: ModuleType) -> Any:
    return abs(xp.sqrt(x * x + y * y) - 0.74 * r) - 0.26 * r


def _cross(x: Any, y: Any, r: Any, xp: ModuleType) -> Any:
    arm = 0.33 * r
    return xp.minimum(xp.maximum(abs(x) - r, abs(y) - arm), xp.maximum(abs(x) - arm, abs(y) - r))


def _star(x: Any, y: Any, r: Any, xp: ModuleType) -> Any:
    """A five-pointed star: the plane folded into one half of one point, then the distance to its edge."""
    outer = STAR_REACH * r
    cos, sin = np.cos(np.pi / 5), np.sin(np.pi / 5)
    across, up = abs(x), -y + 0 * outer
    for sign in (1, -1):
        fold = 2 * xp.clip(sign * cos * across - sin * up, 0, None)
        across, up = across - sign * cos * fold, up + sin * fold
    across, up = abs(across) + 0 * up, up - outer
    edge_x, edge_y = 0.45 * sin, 0.45 * cos - 1
    along = (across * edge_x + up * edge_y) / (edge_x**2 + edge_y**2)
    along = xp.minimum(xp.clip(along, 0, None), outer + 0 * along)
    away_x, away_y = across - edge_x * along, up - edge_y * along
    return xp.sqrt(away_x**2 + away_y**2) * xp.sign(up * edge_x - across * edge_y)


SHAPE_DISTANCES = (_circle, _square, _triangle, _ring, _cross, _star)
assert len(SHAPE_DISTANCES) == len(SHAPES) and len(TONES) == len(COLOURS) and len(PLACES) == 9  # noqa: PT018
