"""A window of calls of all ranks, with the account of every rank, and findings from comparing two windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from takeup.training.model.calls import CallLog
from takeup.training.model.slowdowns import Suspect
from takeup.training.policies.stragglers.accounts import RankTimeline, TimeAccount, overlapped_pairs
from takeup.training.policies.stragglers.matched import Anchor, MatchedCalls, agreed_anchors

LEAST_SHARE = 0.05  # share of an iteration; smaller findings are not reported
LEAST_RATIO = 1.05


class RankedSuspect(NamedTuple):
    """A suspect, and its cost per iteration."""

    excess_s: float
    suspect: Suspect


@dataclass(frozen=True)
class CallWindow:
    """Calls of a period, and the accounts of ranks that have one."""

    calls: MatchedCalls | None
    accounts: Mapping[int, TimeAccount]

    @property
    def iteration_s(self) -> float:
        """Median iteration time over ranks."""
        return float(np.median([account.iteration_s for account in self.accounts.values()]))

    @property
    def num_iterations(self) -> int:
        """Number of iterations of the rank that has most."""
        return max(len(account.iterations_s) for account in self.accounts.values())


def windows_of(logs: Sequence[CallLog], before: Sequence[CallLog]) -> tuple[CallWindow, CallWindow]:
    """The windows of these logs, with common anchors; ranks in which nothing marks iterations are left out."""
    anchors = _anchors(logs, before)
    usable = [[log for log in each if log.rank in anchors and len(log.calls)] for each in (logs, before)]
    calls = [MatchedCalls.of(each) if each else None for each in usable]
    timelines = [
        [] if each is None else [RankTimeline(each, place) for place in range(len(each.logs))] for each in calls
    ]
    through = overlapped_pairs(chain.from_iterable(timelines))
    accounts = [{line.rank: line.account(anchors[line.rank], through) for line in lines} for lines in timelines]
    known = [{rank: account for rank, account in each.items() if account is not None} for each in accounts]
    return CallWindow(calls[0], known[0]), CallWindow(calls[1], known[1])


def own_seconds(logs: Sequence[CallLog]) -> dict[int, float]:
    """By rank: median time per iteration that it spends on its own work."""
    now, _ = windows_of(logs, ())
    return {rank: account.own_s for rank, account in now.accounts.items()}


def _anchors(logs: Sequence[CallLog], before: Sequence[CallLog]) -> dict[int, Anchor]:
    """By rank, the call that marks its iterations in both windows together."""
    earlier = {log.rank: log.calls for log in before}
    rows = {log.rank: np.concatenate([earlier.get(log.rank, log.calls[:0]), log.calls]) for log in logs}
    return agreed_anchors(rows)
