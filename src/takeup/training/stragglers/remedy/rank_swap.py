"""Which two ranks should exchange their roles so that a slow link carries less: predicted from current traffic.

A process that takes the rank of another takes over its neighbours. The traffic of an iteration between any two ranks is
known from its calls: messages directly, collective calls around the ring of their group. The cost of a slow link is
proportional to its traffic, so the exchange is chosen that minimizes it, at best to zero. The process groups of the
job have to be created again with the new ranks; hence this requires a restart.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from takeup.training.stragglers.model import CallLog, Operation, SlowdownEvent

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PredictedRankSwap:
    """Two ranks that exchange their roles, and the predicted iteration time after that."""

    ranks: Pair
    predicted_s: float

    def order(self, num_ranks: int) -> tuple[int, ...]:
        """By rank: the new rank."""
        one, other = self.ranks
        return tuple({one: other, other: one}.get(rank, rank) for rank in range(num_ranks))


def traffic_of(logs: Sequence[CallLog]) -> dict[Pair, int]:
    """By pair of ranks: the bytes that pass between them in these calls."""
    sent: Counter[Pair] = Counter()
    for log in logs:
        for operation, peer, group, size_bytes in log.calls[["operation", "peer", "group", "size_bytes"]].tolist():
            if operation == Operation.SEND:
                sent[_pair(log.rank, peer)] += size_bytes
            elif peer < 0 and (after := _next_in_ring(log.groups[group], log.rank)) is not None:
                sent[_pair(log.rank, after)] += size_bytes
    return dict(sent)


def best_rank_swap(
    event: SlowdownEvent, traffic: Mapping[Pair, int], num_ranks: int, least_saved_share: float
) -> PredictedRankSwap | None:
    """The exchange that saves most, if it saves this share of an iteration; None if the slow link is not known."""
    links = [suspect.ranks for suspect in event.suspects if suspect.kind == "link" and len(suspect.ranks) == 2]
    carried = traffic.get(_pair(*links[0]), 0) if links else 0
    if not carried:
        return None
    lost_s = event.after_s - event.before_s

    def predicted_s(pair: Pair) -> float:
        now = {pair[0]: pair[1], pair[1]: pair[0]}
        ends = [now.get(rank, rank) for rank in links[0]]
        return event.before_s + lost_s * min(1.0, traffic.get(_pair(*ends), 0) / carried)

    best = min(combinations(range(num_ranks), 2), key=predicted_s)
    found = PredictedRankSwap(best, predicted_s(best))
    return found if event.after_s - found.predicted_s >= least_saved_share * event.after_s else None


def _pair(one: int, other: int) -> Pair:
    return min(one, other), max(one, other)


def _next_in_ring(members: Sequence[int], rank: int) -> int | None:
    """The rank to which a rank sends in the ring of its group; None in a group of one."""
    if rank not in members or len(members) < 2:
        return None
    return members[(members.index(rank) + 1) % len(members)]
