"""Captioned scenes: up to three shapes on a background, sampled from a seed, written as a caption and read back.

A batch of scenes is stored as columns (`Scenes`), since training renders hundreds of thousands of them. Captions come
from a closed grammar, so `parse` knows from a caption alone which shape of which colour must be where. One caption in
sixteen is held out: `sample` never returns it for training.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from takeup.errors import BadInput

MOST = 3  # objects of a scene
SHAPES = ("circle", "square", "triangle", "ring", "cross", "star")
COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "cyan", "white")
SIZES = ("small", "medium", "large")
TEXTURES = ("plain", "striped", "dotted")
GROUNDS = ("grey", "black", "beige", "brown")
PATTERNS = ("plain", "split", "gradient", "checkered")
PLACES = tuple(f"{row} {column}" for row in ("top", "middle", "bottom") for column in ("left", "center", "right"))
SYNONYMS = {
    "circle": "disc",
    "square": "box",
    "ring": "hoop",
    "cross": "plus",
    "small": "little",
    "large": "big",
    "grey": "gray",
    "top": "upper",
    "bottom": "lower",
}
OTHER_WORDS = ("a", "at", "in", "the", "and", "on", "over", "gradient", "from", "to", "background", "object", ",")
WORDS = tuple(
    dict.fromkeys(
        (
            *(*SHAPES, *COLOURS, *SIZES, *TEXTURES, *GROUNDS, *PATTERNS),
            *("top", "middle", "bottom", "left", "center", "right", *SYNONYMS.values(), *OTHER_WORDS),
        )
    )
)
HELD_OUT_EVERY = 16
MEANING = {synonym: word for word, synonym in SYNONYMS.items()}


@dataclass(frozen=True, slots=True)
class Scenes:
    """Scenes as columns: numpy arrays, or torch tensors of the same names on a device.

    Objects beyond `count` are ignored. `ground` is pattern, first and second colour; `offset` is the shift to the
    right and down in pixels of a 128-pixel picture and the relative change of size.
    """

    count: Any  # [n]
    shape: Any  # [n, 3]
    colour: Any  # [n, 3]
    size: Any  # [n, 3]
    place: Any  # [n, 3]
    texture: Any  # [n, 3]
    ground: Any  # [n, 3]
    offset: Any  # [n, 3, 3]

    def __len__(self) -> int:
        return len(self.count)

    def __getitem__(self, index: Any) -> "Scenes":
        return Scenes(*(getattr(self, field.name)[index] for field in fields(self)))

    def centred(self) -> "Scenes":
        """The same scenes with every object at the centre of its place and of the nominal size."""
        return replace(self, offset=self.offset * 0)

    def present(self) -> Any:
        """Which of the three objects exist, [n, 3]."""
        return np.arange(MOST) < self.count[:, None]


def concatenate(parts: Sequence[Scenes]) -> Scenes:
    """The scenes of all parts, in order."""
    return Scenes(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Scenes)))


# Sampling ---------------------------------------------------------------------------------------------------------


def sample(seed: int | Sequence[int], number: int, *, held_out: bool = False, fewest: int = 1) -> Scenes:
    """`number` scenes of a seed; those whose description is held out, or only the others."""
    rng = np.random.default_rng(seed)
    parts: list[Scenes] = []
    while sum(map(len, parts)) < number:
        drawn = _draw(rng, number * (HELD_OUT_EVERY * 2 if held_out else 1) + 64, fewest)
        parts.append(drawn[is_held_out(drawn) == held_out])
    return concatenate(parts)[:number]


def _draw(rng: np.random.Generator, number: int, fewest: int) -> Scenes:
    first = rng.integers(0, len(GROUNDS), number)
    second = (first + rng.integers(1, len(GROUNDS), number)) % len(GROUNDS)
    pattern = rng.choice(len(PATTERNS), number, p=(0.55, 0.15, 0.15, 0.15))
    return Scenes(
        count=rng.integers(fewest, MOST + 1, number),
        shape=rng.integers(0, len(SHAPES), (number, MOST)),
        colour=rng.integers(0, len(COLOURS), (number, MOST)),
        size=rng.integers(0, len(SIZES), (number, MOST)),
        place=rng.random((number, len(PLACES))).argsort(axis=1)[:, :MOST],
        texture=rng.choice(len(TEXTURES), (number, MOST), p=(0.6, 0.2, 0.2)),
        ground=np.stack([pattern, first, second], axis=1),
        offset=rng.uniform(-1, 1, (number, MOST, 3)) * np.array([1.5, 1.5, 0.04]),
    )


def is_held_out(scenes: Scenes) -> Any:
    """Whether a scene's description (objects and background, without offsets) is kept from training."""
    objects = np.stack([scenes.shape, scenes.colour, scenes.size, scenes.place, scenes.texture], axis=2)
    objects = (objects + 1) * scenes.present()[:, :, None]
    objects = (objects * np.array([1, 7, 61, 191, 1789])).sum(axis=2)  # a sum over objects: their order does not count
    plain = scenes.ground[:, 0] == 0
    ground = scenes.ground[:, 1] * 5 + np.where(plain, 0, scenes.ground[:, 2]) * 23 + scenes.ground[:, 0] * 101
    mixed = ((objects * 2654435761) % 4294967291).sum(axis=1) + ground * 40503
    return (mixed % 4294967291 * 1000000007 % 4294967291) // 7 % HELD_OUT_EVERY == 0


# Captions ---------------------------------------------------------------------------------------------------------


def captions(scenes: Scenes, rng: np.random.Generator | None = None, vague: float = 0.0) -> list[str]:
    """A caption of each scene; with `rng` in varied words. `vague` is the share of objects without shape and size."""
    chances = np.ones((len(scenes), 32)) if rng is None else rng.random((len(scenes), 32))
    unclear = (np.random.default_rng(0) if rng is None else rng).random((len(scenes), MOST)) < vague
    columns = [
        getattr(scenes, name).tolist() for name in ("count", "shape", "colour", "size", "place", "texture", "ground")
    ]
    return [_caption(*row) for row in zip(*columns, chances.tolist(), unclear.tolist(), strict=True)]


def _caption(  # noqa: PLR0913, PLR0917 (one argument for each column)
    count: int,
    shape: list[int],
    colour: list[int],
    size: list[int],
    place: list[int],
    texture: list[int],
    ground: list[int],
    chance: list[float],
    unclear: list[bool],
) -> str:
    parts = []
    for k in range(count):
        mine = chance[k * 8 : k * 8 + 8]
        words = [SIZES[size[k]], COLOURS[colour[k]], TEXTURES[texture[k]], SHAPES[shape[k]]]
        if unclear[k]:
            words[0], words[3] = "", "object"
        parts.append(_object([word for word in words if word not in {"", "plain"}], PLACES[place[k]], mine))
    joint = ", " if chance[24] < 0.3 else " and "
    return joint.join(parts) + _background(ground, chance[25:])


def _object(words: list[str], place: str, chance: list[float]) -> str:
    words = [SYNONYMS.get(word, word) if chance[n] < 0.25 else word for n, word in enumerate(words)]
    if place.startswith("top") or place.startswith("bottom"):
        place = " ".join(SYNONYMS.get(word, word) if chance[5] < 0.25 else word for word in place.split())
    elif place == "middle center":
        place = "center"
    if chance[6] < 0.2:
        return f"in the {place} a {' '.join(words)}"
    return f"a {' '.join(words)} {'in' if chance[7] < 0.4 else 'at'} the {place}"


def _background(ground: list[int], chance: list[float]) -> str:
    if chance[0] < 0.04:
        return ""
    first, second = (
        SYNONYMS.get(GROUNDS[g], GROUNDS[g]) if chance[1] < 0.3 else GROUNDS[g] for g in (ground[1], ground[2])
    )
    told = {
        "plain": f"a {first} background" if chance[3] > 0.25 else first,
        "split": f"a {first} and {second} background",
        "gradient": f"a gradient from {first} to {second}",
        "checkered": f"a checkered {first} and {second} background",
    }
    return f" {'over' if chance[2] < 0.25 else 'on'} {told[PATTERNS[ground[0]]]}"


def parse(texts: Iterable[str]) -> Scenes:
    """The scenes that captions of this grammar describe, objects centred. What is not said has the first value."""
    rows = [_parse(text) for text in texts]
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    columns.append(np.zeros((len(rows), MOST, 3)))
    return Scenes(*columns)


def _parse(text: str) -> tuple[Any, ...]:
    plain = " ".join(MEANING.get(word, word) for word in re.findall(r"[a-z]+|,", text.lower()))
    told, _, ground = re.sub(r"\bover\b", "on", plain).partition(" on ")
    objects = [_parse_object(part, text) for part in re.split(r"(?:,|\band\b)", told) if part.strip()]
    if not 1 <= len(objects) <= MOST:
        raise BadInput(f"a caption of 1 to {MOST} objects is expected, found {len(objects)}: '{text}'")
    padded = objects + [(0, 0, 0, 0, 0)] * (MOST - len(objects))
    shape, colour, size, place, texture = map(list, zip(*padded, strict=True))
    return len(objects), shape, colour, size, place, texture, _parse_ground(ground.split())


def _parse_object(part: str, text: str) -> tuple[int, int, int, int, int]:
    words = part.split()
    place = next((name for name in PLACES if name in part), "middle center")
    if not set(words) & {*SHAPES, "object"} or not set(words) & set(COLOURS):
        raise BadInput(
            f"no colour and shape in '{part.strip()}' of the caption '{text}'\n\n"
            f"hint: write 'a large red circle at the top left'; shapes: {', '.join(SHAPES)}; "
            f"colours: {', '.join(COLOURS)}"
        )
    found = [_index(words, names) for names in (SHAPES, COLOURS, SIZES)]
    return found[0], found[1], found[2], PLACES.index(place), _index(words, TEXTURES)


def _parse_ground(words: list[str]) -> list[int]:
    named = [GROUNDS.index(word) for word in words if word in GROUNDS]
    if len(named) < 2:
        return [0, named[0] if named else 0, 0]
    pattern = "gradient" if "gradient" in words else "checkered" if "checkered" in words else "split"
    return [PATTERNS.index(pattern), named[0], named[1]]


def _index(words: Iterable[str], names: Sequence[str]) -> int:
    return next((names.index(word) for word in words if word in names), 0)
