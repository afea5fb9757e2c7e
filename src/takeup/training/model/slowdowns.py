"""A detected slowdown of a job: since when, by how much, and which rank or link causes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MAX_FACTOR_SHOWN = 100  # larger factors come from a baseline near zero


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rank that computes slowly, ranks between which messages are slow, or ranks whose machine does other work.

    It takes `factor` times as long as it should. In `share_late` of the calls all others waited for this rank, or the
    messages over this link took too long. A link has two ranks if it is known, otherwise it is one in this group.
    Its total excess per iteration is `excess_s`, where known; `least_s` is the excess if every message were delayed
    by as much as the fastest ones over this link.
    """

    kind: Literal["compute", "link", "host"]
    ranks: tuple[int, ...]
    factor: float
    share_late: float
    reason: str
    excess_s: float = 0.0
    least_s: float = 0.0

    def __str__(self) -> str:
        if self.kind == "host":
            who = f"rank {self.ranks[0]} waits" if len(self.ranks) == 1 else f"ranks {_listed(self.ranks)} wait"
            return f"{who} for cores that do other work"
        what = "the link between ranks" if len(self.ranks) == 2 else "a link among ranks"
        where = f"rank {self.ranks[0]} computes" if self.kind == "compute" else f"{what} {_listed(self.ranks)} is"
        times = f"{self.factor:.2f}x" if self.factor < MAX_FACTOR_SHOWN else f"more than {MAX_FACTOR_SHOWN}x"
        return f"{where} {times} slower"


@dataclass(frozen=True, slots=True)
class SlowdownEvent:
    """Iterations became slower, or recovered (`is_slow` is false): from `began` on, known since `declared`.

    Both are iteration numbers since the watch began. `factor` compares iteration times after and before; `lost_share`
    is the share of the healthy throughput that is lost from then on.
    """

    began: int
    declared: int
    is_slow: bool
    factor: float
    lost_share: float
    suspects: tuple[Suspect, ...] = ()
    before_s: float = 0.0
    after_s: float = 0.0

    def sentence(self) -> str:
        """The event as a sentence."""
        if not self.is_slow:
            return f"since iteration {self.began}, iterations have recovered: {self._times()}"
        cost = f"costing {self.lost_share:.0%} of the throughput ({self._times()})"
        return f"since iteration {self.began}, {self._who()}, {cost}"

    def _who(self) -> str:
        return " and ".join(map(str, self.suspects)) or "all ranks are slower, or something they share"

    def _times(self) -> str:
        return f"{1e3 * self.before_s:.4g} ms before, {1e3 * self.after_s:.4g} ms now"


def _listed(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks[:-1])) + f" and {ranks[-1]}"
