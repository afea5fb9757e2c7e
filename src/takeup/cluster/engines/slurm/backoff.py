"""Exponential backoff: the delay doubles with each failure, up to a limit."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from takeup.cluster.engines.slurm.commands import SlurmDown


@dataclass(slots=True)
class Backoff:
    """Backoff for calls to Slurm, between `first_s` and `most_s` seconds of `monotonic` time."""

    monotonic: Callable[[], float]
    first_s: float = 1.0
    most_s: float = 60.0
    num_failures: int = 0
    _until_s: float = field(default=-inf, init=False)

    def require(self) -> None:
        """Raise `SlurmDown` while it is too early for another attempt."""
        if self.monotonic() < self._until_s:
            raise SlurmDown("Slurm did not answer; it will be asked again in a while")

    def failed(self) -> None:
        wait_s = min(self.most_s, self.first_s * 2.0 ** min(self.num_failures, 30))
        self.num_failures += 1
        self._until_s = self.monotonic() + wait_s

    def succeeded(self) -> None:
        self.num_failures, self._until_s = 0, -inf


@dataclass(slots=True)
class JobBackoff:
    """Backoff per job that Slurm would not start on the nodes it was given."""

    first_s: float = 60.0
    most_s: float = 3600.0
    _until_s: dict[str, float] = field(default_factory=dict)
    _waits_s: dict[str, float] = field(default_factory=dict)

    def put_off(self, name: str, now_s: float) -> None:
        """Postpone the next attempt for a job, twice as long as the last time."""
        self._waits_s[name] = min(self.most_s, 2 * self._waits_s.get(name, self.first_s / 2))
        self._until_s[name] = now_s + self._waits_s[name]

    def names(self, now_s: float) -> set[str]:
        return {name for name, until_s in self._until_s.items() if now_s < until_s}
