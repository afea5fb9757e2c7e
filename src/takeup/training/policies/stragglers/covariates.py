"""Expected time of an iteration, given what it does: extra calls, longer sequences.

Some iterations also evaluate, save or log: they are recognized by their calls, and compared with others that make the
same calls. Where the amount of work varies between iterations (bytes of messages, or tokens if the caller knows them),
times are compared along a regression line of recent times by work. The residual is what has changed.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from takeup.core.arrays import Floats

Work = tuple[float, ...]
NUM_RECENT = 64
FEW = 3  # iterations of a special sort needed before their extra time is known
ENOUGH = 16  # points for the regression line
LEAST_VARIATION = 0.01  # minimum relative spread of the amount of work


@dataclass(slots=True)
class Covariates:
    """Learns from iterations, and normalizes each one's time to that of a usual iteration."""

    _sorts: deque[Hashable] = field(default_factory=lambda: deque(maxlen=NUM_RECENT))
    _plain: deque[tuple[float, ...]] = field(default_factory=lambda: deque(maxlen=NUM_RECENT))
    _reference: tuple[float, ...] = ()
    _extra: dict[Hashable, deque[float]] = field(default_factory=dict)

    def as_usual_s(self, taken_s: float, sort: Hashable = None, work: Work = (0.0,)) -> float | None:
        """The time without what is special about this iteration; None if that is not known yet."""
        self._sorts.append(sort)
        along_s = self._without_work_s(taken_s, work)
        if sort == self._usual_sort():
            self._plain.append((*work, taken_s))
            return along_s
        return self._without_extra_s(along_s, sort)

    def _usual_sort(self) -> Hashable:
        return Counter(self._sorts).most_common(1)[0][0]

    def _without_extra_s(self, taken_s: float, sort: Hashable) -> float | None:
        """Compared with earlier ones of the sort; their extra time is kept as seconds, not as a factor."""
        extras = self._extra.setdefault(sort, deque(maxlen=FEW * 3))
        usual_s = median(taken for *_, taken in list(self._plain)[-FEW * 3 :]) if self._plain else taken_s
        known = median(extras) if len(extras) >= FEW else None
        extras.append(taken_s - usual_s)
        return None if known is None or taken_s - known <= 0 else taken_s - known

    def _without_work_s(self, taken_s: float, work: Work) -> float:
        known = np.array([each for each in self._plain if len(each) == len(work) + 1])
        if len(known) < ENOUGH or not _varies(known[:, :-1]):
            return taken_s
        amounts = np.column_stack([np.ones(len(known)), known[:, :-1]])
        line, *_ = np.linalg.lstsq(amounts, known[:, -1], rcond=None)
        if len(self._reference) != amounts.shape[1]:
            self._reference = tuple(np.median(amounts, axis=0).tolist())
        usual_s, expected_s = float(np.array(self._reference) @ line), float(np.array([1.0, *work]) @ line)
        return taken_s * usual_s / expected_s if min(usual_s, expected_s) > 0 else taken_s


def _varies(amounts: Floats) -> bool:
    return bool((amounts.std(axis=0) > LEAST_VARIATION * np.abs(amounts.mean(axis=0))).any())
