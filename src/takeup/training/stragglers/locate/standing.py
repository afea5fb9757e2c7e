"""Standing comparison: ranks that are slow all the time, or that pause now and then, without any change to detect.

Ranks that make the same calls have the same role and are compared with each other, iteration by iteration: by medians,
which show a rank that is always slow, and by means, which also count pauses. What only one rank of a role does cannot
be compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from takeup.core.arrays import Floats
from takeup.training.stragglers.contract import CallLog, Suspect
from takeup.training.stragglers.locate.accounts import LEAST_SHARE, screened, windows_of
from takeup.training.stragglers.locate.suspects import beside_fast_s, fast_half, late_shares, ranks_by_role

LEAST_PAUSES = 3  # pauses in a window that make a habit
LEAST_PAUSE = 0.2  # share of an iteration; shorter ones are noise
LEAST_SHARED = 0.5  # the same of pauses that all ranks make: a layer with more work than others is none
CLEARLY_MORE = 3.0  # times the mean excess of any other rank of the role


@dataclass(frozen=True, slots=True)
class RankStanding:
    """Mean seconds of a rank per iteration in own work, waiting and transfers, and how it compares with its role.

    `excess_s` is the own work beyond that of the faster half of its role, of which `pauses_s` comes in pauses, in
    `num_pauses` iterations. `is_sure` says that the excess without pauses is more than noise.
    """

    rank: int
    role_size: int
    iteration_s: float
    own_s: float
    wait_s: float
    transfer_s: float
    late_share: float
    excess_s: float = 0.0
    pauses_s: float = 0.0
    num_pauses: int = 0
    num_iterations: int = 0
    is_sure: bool = False
    shared_s: float = 0.0  # of the pauses that all ranks make together
    num_shared: int = 0

    @property
    def lost_share(self) -> float:
        """Share of an iteration that the other ranks lose by waiting for this one, at most."""
        return max(0.0, self.excess_s) / self.iteration_s


def standings(logs: Sequence[CallLog]) -> list[RankStanding]:
    """All ranks with at least one complete iteration, or some of very many; the one with the largest excess first."""
    window, _ = windows_of(*screened(logs, ()))
    if not window.accounts:
        return []
    late, rows = late_shares(window), list[RankStanding]()
    iteration_s = float(np.mean([np.mean(account.iterations_s) for account in window.accounts.values()]))
    for ranks in ranks_by_role(window):
        beside_s = beside_fast_s(window, ranks)
        usual_s = fast_half(beside_s) if len(ranks) > 1 and beside_s else None
        for rank in ranks:
            account = window.accounts[rank]
            own_s, wait_s, transfer_s = (
                float(each.mean()) for each in (account.owns_s, account.waits_s, account.transfers_s)
            )
            row = RankStanding(rank, len(ranks), iteration_s, own_s, wait_s, transfer_s, late[rank])
            rows.append(row if usual_s is None else _compared(row, beside_s[rank], usual_s))
    shared_s, num_shared = _shared_pauses([account.owns_s for account in window.accounts.values()], iteration_s)
    rows = [replace(row, shared_s=shared_s, num_shared=num_shared) for row in rows]
    return sorted(rows, key=lambda row: (-row.excess_s, row.rank))


def _shared_pauses(owns_s: Sequence[Floats], iteration_s: float) -> tuple[float, int]:
    """Seconds per iteration of the pauses that all ranks make in the same iterations, and their number.

    Slow iterations in one half alone are a warm-up, or a change, and no habit.
    """
    number = min(map(len, owns_s))
    more_s = np.min([each[-number:] - np.median(each) for each in owns_s], axis=0)
    is_pause = more_s > LEAST_SHARED * iteration_s
    if not (is_pause[: number // 2].any() and is_pause[number // 2 :].any()):
        return 0.0, 0
    return float(more_s[is_pause].sum() / number), int(is_pause.sum())


def _compared(row: RankStanding, these_s: Floats, usual_s: Floats) -> RankStanding:
    """The same with its excess, given its own work and the usual one, both beyond the fastest quarter of the role."""
    typical_s = float(np.median(these_s))
    is_pause = these_s > typical_s + LEAST_PAUSE * row.iteration_s
    return replace(
        row,
        excess_s=float(these_s.mean() - usual_s.mean()),
        pauses_s=float((these_s[is_pause] - typical_s).sum() / len(these_s)),
        num_pauses=int(is_pause.sum()),
        num_iterations=len(these_s),
        is_sure=bool(np.quantile(these_s, 0.25) > np.quantile(usual_s, 0.75)),
    )


def standing_suspects(rows: Sequence[RankStanding]) -> list[Suspect]:
    """Ranks that are clearly slower than their role, or that pause again and again while others do not."""
    found = []
    if rows and rows[0].num_shared >= LEAST_PAUSES and rows[0].shared_s >= LEAST_SHARE * rows[0].iteration_s:
        found.append(_shared_suspect(rows))
    for row in rows:
        steady_s = row.excess_s - row.pauses_s
        if row.is_sure and steady_s >= LEAST_SHARE * row.iteration_s:
            factor = row.own_s / max(row.own_s - row.excess_s, 1e-9)
            reason = f"{1e3 * row.own_s:.4g} ms of own work, {1e3 * row.excess_s:.4g} ms more than others in its role"
            found.append(Suspect("compute", (row.rank,), factor, row.late_share, reason, row.excess_s))
        elif _pauses(row, rows):
            each_s = row.pauses_s * row.num_iterations / row.num_pauses
            reason = f"{1e3 * each_s:.4g} ms in {row.num_pauses} of {row.num_iterations} iterations"
            factor = row.iteration_s / (row.iteration_s - row.excess_s)
            found.append(Suspect("pause", (row.rank,), factor, row.late_share, reason, row.excess_s))
    return found


def _shared_suspect(rows: Sequence[RankStanding]) -> Suspect:
    """All ranks, which stop together as for checkpoints or evaluation."""
    first, number = rows[0], max(row.num_iterations for row in rows)
    each_s = first.shared_s * number / first.num_shared
    reason = f"{1e3 * each_s:.4g} ms in {first.num_shared} of {number} iterations"
    factor = first.iteration_s / (first.iteration_s - first.shared_s)
    return Suspect("pause", tuple(sorted(row.rank for row in rows)), factor, 0.0, reason, first.shared_s)


def _pauses(row: RankStanding, rows: Sequence[RankStanding]) -> bool:
    if row.num_pauses < LEAST_PAUSES or min(row.pauses_s, row.excess_s) < LEAST_SHARE * row.iteration_s:
        return False
    return all(row.pauses_s >= CLEARLY_MORE * other.pauses_s for other in rows if other.rank != row.rank)
