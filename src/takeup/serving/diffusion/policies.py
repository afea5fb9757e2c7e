"""Decisions of the step loop, all pure: turns of tenants, batching, token capacity, reuse of ControlNet residuals."""

import math
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from takeup.errors import BadInput
from takeup.serving.model import Candidate

# Turns of tenants: many images of one tenant do not slow down those of the others -------------------------------------
#
# At a step boundary the tenant with the fewest rows makes a step, and so does each with at most twice as many. The
# others pause, but gain a share of the rows that are computed meanwhile, so that they still progress. Images that are
# being encoded or decoded count as rows of their tenant: the others' steps would slow these down too.

MOST_ROWS_RATIO = 2
PAUSED_SHARE = 1 / 16
IDLE_ROWS = 1 / 128
"""What paused tenants gain in an iteration without a step, which takes about a millisecond."""
NOTHING: Mapping[str, int] = {}


class TenantTurns:
    """Called once for each step; `paused_rows` is what paused tenants have gained since their last step."""

    def __init__(self) -> None:
        self.paused_rows = 0.0

    def __call__(self, rows: Sequence[tuple[str, int]], elsewhere: Mapping[str, int] = NOTHING) -> list[int]:
        """The indices of the requests that make the next step, given the tenant and the number of rows of each.

        `elsewhere` has the rows of images that are encoded or decoded, by tenant.
        """
        total = Counter(elsewhere)
        for tenant, num_rows in rows:
            total[tenant] += num_rows
        most = MOST_ROWS_RATIO * min(total.values(), default=0)
        going = [index for index, (tenant, _) in enumerate(rows) if total[tenant] <= most]
        num_going = sum(rows[index][1] for index in going)
        num_paused = sum(num_rows for _, num_rows in rows) - num_going
        gained = PAUSED_SHARE * num_going if going else IDLE_ROWS
        self.paused_rows = self.paused_rows + gained if num_paused else 0.0
        if self.paused_rows < num_paused:
            return going
        self.paused_rows -= num_paused
        return list(range(len(rows)))


# Batching: which requests share a network call in the next step -------------------------------------------------------
#
# Requests are *compatible* when their inputs have the same shapes and they use the same weights; the engine marks this
# with an equal `bucket`. Their progress does not matter: every row has a separate timestep.


@dataclass(frozen=True, slots=True)
class Grouping:
    """One call per bucket, split at `max_rows` rows; ordered by earliest deadline, then by request number."""

    max_rows: int = 16

    def __post_init__(self) -> None:
        if self.max_rows < 2:
            raise BadInput(f"max_rows is {self.max_rows}; a request with guidance has two rows, so give at least 2")

    def __call__(self, candidates: Sequence[Candidate]) -> list[tuple[int, ...]]:
        """The request numbers of each call."""
        buckets: dict[Hashable, list[Candidate]] = {}
        for candidate in sorted(candidates, key=lambda one: (one.deadline_s, one.number)):
            buckets.setdefault(candidate.bucket, []).append(candidate)
        return [call for members in buckets.values() for call in self._pieces(members)]

    def _pieces(self, members: Sequence[Candidate]) -> list[tuple[int, ...]]:
        pieces: list[list[int]] = []
        free_rows = 0
        for member in members:
            if member.num_rows > free_rows or not pieces:
                pieces.append([])
                free_rows = self.max_rows
            pieces[-1].append(member.number)
            free_rows -= member.num_rows
        return [tuple(piece) for piece in pieces]


def one_by_one(candidates: Sequence[Candidate]) -> list[tuple[int, ...]]:
    """One call per request: slower, but every image is bit-identical to one generated without other requests."""
    return [(candidate.number,) for candidate in sorted(candidates, key=lambda one: one.number)]


# Batching of masked edits: trades the fixed cost of a call against padding to the largest mask ------------------------
#
# A call of n rows is padded to its largest mask. In units of whole images, it costs
#
#     call_share + n * (largest share that one of them computes),
#
# so a separate call pays off for an edit whose mask is much larger or smaller than the others'. For edits with equal
# row counts, an optimal partition is contiguous when sorted by share. That leaves a shortest path over the split
# points, which is solved exactly by dynamic programming.

DEFAULT_CALL_SHARE = 0.3
"""Of SDXL at 1024x1024 on one H200: 5.6 ms for a call, 18.5 ms for the tokens of an image."""


@dataclass(frozen=True, slots=True)
class MaskGrouping:
    """Minimum-cost calls of at most `max_rows` rows; requests with equal shares are batched as in `Grouping`."""

    max_rows: int = 16
    call_share: float = DEFAULT_CALL_SHARE

    def __post_init__(self) -> None:
        Grouping(self.max_rows)
        if not self.call_share >= 0:
            raise BadInput(f"a call costs {self.call_share:g} images; give a number from zero up")

    def __call__(self, candidates: Sequence[Candidate]) -> list[tuple[int, ...]]:
        """The request numbers of each call, earliest deadline first."""
        buckets: dict[Hashable, list[Candidate]] = {}
        for candidate in sorted(candidates, key=_urgency):
            buckets.setdefault(candidate.bucket, []).append(candidate)
        return [call for members in buckets.values() for call in self._calls(members)]

    def _calls(self, members: Sequence[Candidate]) -> list[tuple[int, ...]]:
        if len({one.computed_share for one in members}) == 1:
            return Grouping(self.max_rows)(members)
        by_share = sorted(members, key=lambda one: one.computed_share)
        starts = self._starts(by_share)
        calls = [by_share[start:end] for start, end in zip(starts, [*starts[1:], len(by_share)], strict=True)]
        calls.sort(key=lambda call: min(map(_urgency, call)))
        return [tuple(one.number for one in sorted(call, key=_urgency)) for call in calls]

    def _starts(self, members: Sequence[Candidate]) -> list[int]:
        """Start indices of the calls with minimal total cost; `best[end]` is for the first `end` members."""
        best: list[tuple[float, list[int]]] = [(0.0, [])]
        for end in range(1, len(members) + 1):
            ways = [(best[start][0] + self._cost(members[start:end]), [*best[start][1], start]) for start in range(end)]
            best.append(min(ways, key=lambda way: (way[0], len(way[1]))))
        return best[-1][1]

    def _cost(self, call: Sequence[Candidate]) -> float:
        num_rows = sum(one.num_rows for one in call)
        if num_rows > self.max_rows and len(call) > 1:
            return math.inf
        return self.call_share + num_rows * call[-1].computed_share


def _urgency(candidate: Candidate) -> tuple[float, int]:
    return candidate.deadline_s, candidate.number


# Token capacity of a masked call: reuse that of an already recorded CUDA graph, unless it is much too large -----------
#
# Recording a call takes as long as some hundred steps, so a mask is rather padded to a larger recorded capacity. The
# cost of a call of n rows, in units of whole images, is that of `mask_batches`.

TokenCounts = tuple[int, ...]
"""How many tokens are computed on every grid of a network, the finest first."""
MAX_COST_RATIO = 1.25


def cheapest_capacity(
    needed: TokenCounts, known: Collection[TokenCounts], num_rows: int, num_tokens: int
) -> TokenCounts:
    """The cheapest known capacity that fits, if it costs at most a quarter more than the exact one; else `needed`.

    The finest grid has `num_tokens`.
    """

    def cost(rooms: TokenCounts) -> float:
        return DEFAULT_CALL_SHARE + num_rows * rooms[0] / num_tokens

    fitting = [rooms for rooms in known if all(room >= least for room, least in zip(rooms, needed, strict=True))]
    found = min(fitting, key=cost, default=needed)
    return found if cost(found) <= MAX_COST_RATIO * cost(needed) else needed


# For how many steps ControlNet residuals may be reused: while their predicted change stays within a bound -------------
#
# The *change* is the difference of the residuals of two evaluated steps, relative to their norm. It is assumed to grow
# linearly with the number of steps. Residuals that oscillate or rotate change more in the first steps and less later:
# for an interval longer than the measured one the prediction is then an upper bound; for a shorter one the change may
# exceed it, up to the measured change. An interval without evaluation is at most twice as long as the previous
# distance, so that residuals that begin to change are noticed.

MAX_GROWTH = 2


def steps_to_reuse(change: float, num_apart: int, bound: float) -> int:
    """How many steps after the later of two evaluations, `num_apart` steps apart, are predicted to stay in `bound`."""
    longest = MAX_GROWTH * num_apart
    if not isfinite(change):
        return 0
    return longest if change * longest <= bound * num_apart else int(bound * num_apart / change)
