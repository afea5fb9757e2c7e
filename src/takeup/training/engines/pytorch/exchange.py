"""All ranks agree on one profile, as whole nanoseconds, so that each computes the same plan from it.

Rank 0 gathers the measurements of all ranks, computes a profile and broadcasts it. Link delays are estimated from the
messages of training itself: when the sender handed one over, when the receiver could use it. Before ranks switch, they
compare their proposals, and they switch only if all proposals are equal.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist

from takeup.core.arrays import Ints
from takeup.errors import TakeupError
from takeup.training.engines.pytorch.arrivals import first_words
from takeup.training.engines.pytorch.stopwatch import NUM_TIMES
from takeup.training.model.pipeline import Link
from takeup.training.policies.estimate import MessageStamps, estimate_link

NANO = 1e-9
NUM_REMEMBERED = 4
FINE, USELESS = -1, -2  # status from rank 0; else the number of a rank with another version
LOG = logging.getLogger("takeup.training")


class SmoothedLinks:
    """Smoothed links for planning: of the recent measurements, the one with the most typical delay."""

    def __init__(self, typical_s: Callable[[list[float]], float]) -> None:
        self._typical_s = typical_s
        self._recent: deque[list[Link]] = deque(maxlen=NUM_REMEMBERED)

    def after(self, measured: list[Link]) -> list[Link]:
        """Add these measurements and return the links to plan for."""
        self._recent.append(measured)
        return [self._nearest(recent) for recent in zip(*self._recent, strict=True)]

    def _nearest(self, recent: tuple[Link, ...]) -> Link:
        """The measurement nearest to the typical delay; latency and service time stay paired."""
        wanted_s = self._typical_s([link.delay_s for link in recent])
        return min(reversed(recent), key=lambda link: abs(link.delay_s - wanted_s))


class ProfileExchange:
    """Collectives among the ranks of a pipeline; all ranks must call each method together, within the timeout."""

    def __init__(self, group: dist.ProcessGroup, links: SmoothedLinks) -> None:
        self._group = group
        self._links = links
        self._num_ranks = dist.get_world_size(group)
        self._rank = dist.get_rank(group)

    def agree(self, version: int, measured: Ints) -> Ints | None:
        """Agree on F, I and W of every stage, then latency and service of every link; None if the estimate failed.

        If a rank follows another version of the schedule than the first, all ranks raise.
        """
        with _communication("to agree on a profile"):
            verdict, of_version, *shared = self._shared(np.array([version, *measured]))
        if verdict >= 0:
            raise TakeupError(
                f"rank {verdict} follows version {of_version} of the schedule and the first rank another; "
                "change schedules on all ranks before the same iteration"
            )
        return np.array(shared) if verdict == FINE else None

    def same(self, number: int) -> bool:
        """Whether all ranks pass the same number."""
        both = torch.tensor([number, -number])
        with _communication("to switch to another schedule"):
            dist.all_reduce(both, dist.ReduceOp.MAX, group=self._group)
        return bool(both[0] == -both[1])

    def least(self, number: int) -> int:
        """Minimum of the numbers that the ranks pass."""
        given = torch.tensor([number])
        with _communication("to hear what they are asked"):
            dist.all_reduce(given, dist.ReduceOp.MIN, group=self._group)
        return int(given.item())

    def _shared(self, row: Ints) -> list[int]:
        """Status, version and profile that rank 0 computes from the measurements of all ranks."""
        rows = self._gather(row)
        shared = np.zeros(2 + NUM_TIMES * self._num_ranks + 2 * (self._num_ranks - 1), np.int64)
        if rows is not None:
            found = self._judged(rows)
            shared[: len(found)] = found
        dist.broadcast(torch.from_numpy(shared), group=self._group, group_src=0)
        return [int(number) for number in shared]

    def _judged(self, rows: Ints) -> list[int]:
        odd = np.flatnonzero(rows[:, 0] != rows[0, 0])
        if odd.size:
            return [int(odd[0]), int(rows[odd[0], 0])]
        try:
            links = self._links.after(estimate_links(rows[:, 1:]))
        except TakeupError:
            LOG.exception("what ranks measured is no pipeline; the schedule stays as it is")
            return [USELESS]
        delays = [round(delay_s / NANO) for link in links for delay_s in (link.latency_s, link.service_s)]
        return [FINE, 0, *rows[:, 1 : 1 + NUM_TIMES].ravel(), *delays]

    def _gather(self, measured: Ints) -> Ints | None:
        message = torch.from_numpy(measured)
        rows = [torch.empty_like(message) for _ in range(self._num_ranks)] if self._rank == 0 else None
        dist.gather(message, rows, group=self._group, group_dst=0)
        return None if rows is None else np.stack([row.numpy() for row in rows])


@contextmanager
def _communication(why: str) -> Iterator[None]:
    """Convert a communication failure to an error that says what the ranks were doing."""
    try:
        yield
    except RuntimeError as error:
        raise TakeupError(
            f"ranks met {why}, and one did not answer in time or is gone; the schedule stays as it was; "
            f"look which rank failed, and start the job again ({first_words(error)})"
        ) from error


def estimate_links(rows: Ints) -> list[Link]:
    """Estimate the links between ranks from their measurements."""
    notes = rows[:, NUM_TIMES:].reshape(len(rows), 2, 2, -1) * NANO  # by rank: handed or usable, direction, micro-batch
    handed, usable = notes[:, 0], notes[:, 1]
    return [
        estimate_link(MessageStamps(handed[i, 0], usable[i + 1, 0]), MessageStamps(handed[i + 1, 1], usable[i, 1])).link
        for i in range(len(rows) - 1)
    ]
