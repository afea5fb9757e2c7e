"""Named random streams from one seed, so that an extra draw in one stream does not change the others."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import sha256

from numpy.random import PCG64, Generator, SeedSequence

from takeup.errors import BadInput


@dataclass(frozen=True, slots=True)
class Streams:
    """Independent random streams, each determined by its name alone, not by other streams or the order of draws."""

    seed: int
    path: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise BadInput(f"the seed is {self.seed}; choose a whole number from zero up")

    def stream(self, name: str) -> Generator:
        """The stream called `name`, at its beginning; call once and keep it, because a second call restarts it."""
        # PCG64 by name: the default generator of numpy may change between versions.
        return Generator(PCG64(SeedSequence(self.seed, spawn_key=self._key(name))))

    def child(self, name: str) -> Streams:
        """A separate family of streams, for a component whose stream names may equal those of others."""
        return Streams(self.seed, self._key(name))

    def _key(self, name: str) -> tuple[int, ...]:
        # hashlib, because hash() differs from process to process; 128 bits make collisions negligible.
        return (*self.path, *struct.unpack("<4I", sha256(name.encode()).digest()[:16]))
