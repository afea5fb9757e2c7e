"""Named random streams from one seed, so that adding a draw in one place moves nothing elsewhere."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import sha256

from numpy.random import PCG64, Generator, SeedSequence

from takeup.errors import BadInput

__all__ = ["Streams"]


@dataclass(frozen=True, slots=True)
class Streams:
    """Independent random streams, each found by its name alone: who else draws, and in which order, plays no part."""

    seed: int
    path: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise BadInput(f"the seed is {self.seed}; choose a whole number from zero up")

    def stream(self, name: str) -> Generator:
        """The stream called `name`, at its beginning; ask once and keep it, for asking again starts it again."""
        # PCG64 by name: the default generator of numpy may change between versions.
        return Generator(PCG64(SeedSequence(self.seed, spawn_key=self._key(name))))

    def child(self, name: str) -> Streams:
        """A family of streams of its own, for a part that names its streams without knowing of others."""
        return Streams(self.seed, self._key(name))

    def _key(self, name: str) -> tuple[int, ...]:
        # hashlib, because hash() differs from process to process; 128 bits make two equal keys a non-event.
        return (*self.path, *struct.unpack("<4I", sha256(name.encode()).digest()[:16]))
