"""Watch a job by its calls: when iterations became slower, which rank or link causes it, the loss, and the recovery.

Calls of all ranks are passed in as they are made, in batches of any size. A call that occurs once per iteration marks
iterations; their times, adjusted for unusual iterations, go to the change detector. When it declares a change, calls
since then are compared with calls before. The watcher reads no clock: all times are those in the logs.
"""

from collections import Counter, deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Ints
from takeup.training.stragglers.contract import CALL, CallLog, Operation, SlowdownEvent, Suspect
from takeup.training.stragglers.detect.change_points import ChangePoint, ChangePointDetector
from takeup.training.stragglers.detect.kernels import LEAST_RATIO
from takeup.training.stragglers.locate.matching import FEW_STEPS, STEP, Anchor, agreed_anchors, tokens_of
from takeup.training.stragglers.locate.standing import RankStanding, standing_suspects, standings
from takeup.training.stragglers.locate.suspects import locate

# Expected time of an iteration, given what it does: extra calls, longer sequences -------------------------------------
#
# Some iterations also evaluate, save or log: they are recognized by their calls, and compared with others that make
# the same calls. Where the amount of work varies between iterations (bytes of messages, or tokens if the caller knows
# them), times are compared along a regression line of recent times by work. The residual is what has changed.

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
        if sort == Counter(self._sorts).most_common(1)[0][0]:
            self._plain.append((*work, taken_s))
            return along_s
        return self._without_extra_s(along_s, sort)

    def _without_extra_s(self, taken_s: float, sort: Hashable) -> float | None:
        """Compared with earlier ones of the sort; their extra time is kept as seconds, not as a factor."""
        extras = self._extra.setdefault(sort, deque(maxlen=FEW * 3))
        usual_s = median(taken for *_, taken in list(self._plain)[-FEW * 3 :]) if self._plain else taken_s
        known = median(extras) if len(extras) >= FEW else None
        extras.append(taken_s - usual_s)
        return None if known is None or taken_s - known <= 0 else taken_s - known

    def _without_work_s(self, taken_s: float, work: Work) -> float:
        known = np.array([each for each in self._plain if len(each) == len(work) + 1])
        if len(known) < ENOUGH:
            return taken_s
        spreads, means = known[:, :-1].std(axis=0), known[:, :-1].mean(axis=0)
        if not (spreads > LEAST_VARIATION * np.abs(means)).any():
            return taken_s
        amounts = np.column_stack([np.ones(len(known)), known[:, :-1]])
        line, *_ = np.linalg.lstsq(amounts, known[:, -1], rcond=None)
        if len(self._reference) != amounts.shape[1]:
            self._reference = tuple(np.median(amounts, axis=0).tolist())
        usual_s, expected_s = float(np.array(self._reference) @ line), float(np.array([1.0, *work]) @ line)
        return taken_s * usual_s / expected_s if min(usual_s, expected_s) > 0 else taken_s


# Calls received from one rank so far: the latest ones, split into iterations by the call that marks them (anchor) -----

Rows = npt.NDArray[np.void]
MOST_ROWS = 200_000
LOST_AFTER = 6  # the anchor is lost after this many iterations' worth of calls without it


@dataclass(slots=True)
class RankCalls:
    """Calls of a rank; `marks` are indices of the anchor in `rows`; the first `num_dropped` iterations were dropped."""

    groups: dict[int, tuple[int, ...]] = field(default_factory=dict)
    rows: Rows = field(default_factory=lambda: np.zeros(0, CALL))
    anchor: Anchor | None = None
    marks: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    num_dropped: int = 0
    num_steps: int = 0

    def append(self, log: CallLog) -> None:
        self.groups.update(log.groups)
        self.num_steps += int(np.count_nonzero(log.calls["operation"] == Operation.STEP))
        self.rows = np.concatenate([self.rows, log.calls])[-MOST_ROWS:]
        if self.anchor is not None:
            self.marks = np.flatnonzero(self._is(self.anchor))

    def follow(self, anchor: Anchor, since: int) -> None:
        """Count iterations from the first call of this sort that has at least this number."""
        self.anchor = anchor
        places = np.flatnonzero(self._is(anchor))
        self.rows = self.rows[places[self.rows["number"][places] >= since][0] :]
        self.num_dropped = since if anchor == STEP else 0  # steps are numbered from the start of the job
        self.marks = np.flatnonzero(self._is(anchor))

    def first_number(self, anchor: Anchor) -> int:
        """Sequence number of the first call of this sort."""
        return int(self.rows["number"][self._is(anchor)][0])

    def count(self, anchor: Anchor) -> int:
        return int(self._is(anchor).sum())

    def _is(self, anchor: Anchor) -> npt.NDArray[np.bool_]:
        same: npt.NDArray[np.bool_] = (tokens_of(self.rows) == anchor).all(axis=1)
        return same

    @property
    def is_lost(self) -> bool:
        """Whether the anchor has been absent for too many calls, so the job must be in another phase."""
        if self.anchor is None or len(self.marks) < 2:
            return False
        usual = float(np.median(np.diff(self.marks)))
        return bool(len(self.rows) - self.marks[-1] > LOST_AFTER * usual + LOST_AFTER)

    @property
    def num_iterations(self) -> int:
        """Number of complete iterations since the anchor was known."""
        return self.num_dropped + max(0, len(self.marks) - 1)

    def iteration_s(self, number: int) -> float:
        place = number - self.num_dropped
        began_ns = self.rows["began_ns"][self.marks[place : place + 2]]
        return float(began_ns[1] - began_ns[0]) / 1e9

    def calls(self, first: int, end: int) -> Rows:
        """Calls of these iterations, and the call that ends them."""
        places = np.clip(np.array([first, end]) - self.num_dropped, 0, len(self.marks) - 1)
        start, stop = self.marks[places] if len(self.marks) else (0, -1)
        return self.rows[start : stop + 1]

    def log(self, rank: int, first: int, end: int) -> CallLog:
        return CallLog(rank, self.calls(first, end), self.groups)

    def forget(self, before: int) -> None:
        """Drop the calls of iterations before this one."""
        drop = min(before - self.num_dropped, len(self.marks) - 1)
        if drop > 0:
            start = int(self.marks[drop])
            self.rows, self.marks = self.rows[start:], self.marks[drop:] - start
            self.num_dropped += drop

    def start_over(self) -> None:
        """Reset the anchor and the counts; find another anchor in later calls."""
        self.rows = self.rows[:0]
        self.anchor, self.marks, self.num_dropped = None, self.marks[:0], 0


NUM_WARM_UP = 5  # iterations that are not compared with others
MOST_BEHIND = 32  # iterations; a rank further behind is not waited for
NUM_TO_FIND = 10  # minimum iterations before anchors are accepted
MANY_CALLS = 500  # calls after which a rank without any is not waited for
MOST_WITHOUT_STEPS = 50_000  # calls after which steps are no longer waited for, if only some ranks make any
NUM_KEPT = 96  # iterations whose calls are buffered
NUM_BEFORE = 32  # iterations of the window before a change
NUM_SINCE = 10  # and of the window since, at most
COMPARE_EVERY = 32  # iterations between two comparisons of ranks in the same role
MOST_COMPARED, FEW_COMPARED = 200_000, 8  # calls and iterations of such a comparison
MESSAGES = (Operation.SEND, Operation.RECEIVE)


Named = tuple[str, tuple[int, ...]]  # kind and ranks of a suspect


def _named(suspects: Sequence[Suspect]) -> set[Named]:
    return {(each.kind, each.ranks) for each in suspects}


class StragglerDetector:
    """Consumes the calls of all ranks and returns events."""

    def __init__(self, *, num_to_locate: int = 6) -> None:
        self._num_to_locate = num_to_locate
        self._ranks: dict[int, RankCalls] = {}
        self._work: deque[float] = deque()
        self._start_over()

    def _start_over(self) -> None:
        self.num_iterations = 0
        self._look_at = 16  # calls
        self.iterations_s: deque[float] = deque(maxlen=NUM_KEPT)
        self._warm_up_until = NUM_WARM_UP
        self._covariates = Covariates()
        self._healthy_s: float | None = None
        self._is_slow = False
        self._compare_at, self._changed_at = NUM_WARM_UP + COMPARE_EVERY, 0
        self._told: set[Named] = set()  # kinds and ranks of the suspects that are slow now
        self._standing: set[Named] = set()  # the same, by the latest standing comparison
        self.latest_standings: list[RankStanding] = []
        self._new_level()

    def _new_level(self) -> None:
        self._detector = ChangePointDetector()
        self._points: deque[int] = deque(maxlen=4 * NUM_KEPT)  # iterations of the latest points
        self._num_points = 0
        self._pending: list[ChangePoint] = []

    @property
    def anchors(self) -> Mapping[int, tuple[int, int, int]]:
        """By rank: operation, group and bytes of a call that repeats regularly; known ones only."""
        found = {rank: heard.anchor for rank, heard in self._ranks.items() if heard.anchor is not None}
        if STEP in found.values():
            rows = {rank: heard.rows[heard.rows["operation"] != Operation.STEP] for rank, heard in self._ranks.items()}
            found = dict(agreed_anchors(rows))
        return {rank: (operation, group, size) for rank, (operation, size, group, _) in found.items()}

    def rebase(self) -> None:
        """Reset the baseline, as after a mitigation; the anchors stay."""
        self._new_level()
        self._told, self._standing = set(), set()
        self._warm_up_until = self.num_iterations + NUM_WARM_UP

    def see(self, logs: Sequence[CallLog], work: Sequence[float] = ()) -> list[SlowdownEvent]:
        """Process these calls; returns the events they revealed, each event once.

        `work` are amounts of work (tokens, for instance) of iterations in order, where the caller knows them.
        """
        self._work.extend(work)
        for log in logs:
            self._ranks.setdefault(log.rank, RankCalls()).append(log)
        if any(heard.is_lost for heard in self._ranks.values()) or self._has_better_clock:
            for heard in self._ranks.values():
                heard.start_over()
            self._start_over()
        if all(heard.anchor is None for heard in self._ranks.values()):
            self._find_anchors()
        events = [event for number in self._new_iterations() for event in self._next(number)]
        events += self._compare_standing()
        for heard in self._ranks.values():
            heard.forget(self.num_iterations - NUM_KEPT)
        return events

    def logs(self, num_iterations: int = NUM_KEPT) -> list[CallLog]:
        """The calls of the latest iterations, as far as they are buffered."""
        return self._logs(self.num_iterations - num_iterations, self.num_iterations)

    # Iterations -------------------------------------------------------------------------------------------------------

    @property
    def _has_better_clock(self) -> bool:
        """Whether iterations are counted by calls, but all ranks have made steps of an optimizer meanwhile."""
        ranks = self._ranks.values()
        are_calls = any(heard.anchor not in (None, STEP) for heard in ranks)
        return are_calls and all(heard.num_steps > FEW_STEPS for heard in ranks)

    @property
    def _has_some_without_optimizer(self) -> bool:
        """Whether some ranks make calls but never a step, as actors of a learner do."""
        first = max(self._ranks.values(), key=lambda heard: heard.num_steps)
        return first.num_steps > 2 * NUM_TO_FIND and any(
            not heard.num_steps and 2 * len(heard.rows) >= len(first.rows) for heard in self._ranks.values()
        )

    def _find_anchors(self) -> None:
        """Agree on the calls that mark iterations, once every rank has made enough of them."""
        speaking = {rank: heard for rank, heard in self._ranks.items() if len(heard.rows)}
        num_calls = min((len(heard.rows) for heard in speaking.values()), default=0)
        if num_calls < (self._look_at if len(speaking) == len(self._ranks) else MANY_CALLS):
            return
        self._look_at = num_calls + num_calls // 4
        anchors = agreed_anchors({rank: heard.rows for rank, heard in speaking.items()})
        are_steps = STEP in anchors.values() or any(heard.num_steps for heard in speaking.values())
        are_steps &= not self._has_some_without_optimizer
        if are_steps and num_calls < MOST_WITHOUT_STEPS and set(anchors.values()) != {STEP}:
            return  # some ranks have not made enough steps yet
        least = FEW_STEPS if are_steps else NUM_TO_FIND
        if len(anchors) == len(speaking) and all(speaking[n].count(a) > least for n, a in anchors.items()):
            for anchor in set(anchors.values()):
                ranks = [speaking[rank] for rank, each in anchors.items() if each == anchor]
                since = max(heard.first_number(anchor) for heard in ranks)
                for heard in ranks:
                    heard.follow(anchor, since)
            self._begin_at(max(heard.num_dropped for heard in speaking.values()))

    def _begin_at(self, number: int) -> None:
        """The first iteration that is counted has this number."""
        self.num_iterations = number
        self._warm_up_until = number + NUM_WARM_UP
        self._compare_at = self._warm_up_until + COMPARE_EVERY

    def _new_iterations(self) -> range:
        """Numbers of iterations that all ranks have ended, except ranks that are far behind or silent."""
        ended = [heard.num_iterations for heard in self._ranks.values() if heard.anchor is not None]
        end = min((each for each in ended if each >= max(ended) - MOST_BEHIND), default=0)
        return range(self.num_iterations, end)

    def _next(self, number: int) -> list[SlowdownEvent]:
        """Process one more iteration."""
        reached = [heard for heard in self._ranks.values() if heard.num_iterations > number >= heard.num_dropped]
        taken_s = median(heard.iteration_s(number) for heard in reached)
        self.num_iterations = number + 1
        self.iterations_s.append(taken_s)
        sort, size = self._context(reached[0], number)
        point_s = self._covariates.as_usual_s(taken_s, sort, self._amounts() or (size,))
        if point_s is None or point_s <= 0 or number < self._warm_up_until:
            return self._due(number)
        self._points.append(number)
        self._num_points += 1
        self._pending += self._detector.see_one(point_s)
        return self._due(number)

    def _amounts(self) -> tuple[float, ...]:
        """The work of this iteration and of the next, if known: the mark may be anywhere in an iteration."""
        here = self._work.popleft() if self._work else None
        return () if here is None else (here, self._work[0] if self._work else here)

    def _context(self, heard: RankCalls, number: int) -> tuple[frozenset[tuple[tuple[int, ...], int]], float]:
        """Number of calls of each sort in an iteration, regardless of size; and the bytes of its messages."""
        rows = heard.calls(number, number + 1)[:-1]
        sorts = Counter(map(tuple, tokens_of(rows)[:, [0, 2, 3]].tolist()))
        messages = (rows["operation"] == MESSAGES[0]) | (rows["operation"] == MESSAGES[1])
        return frozenset(sorts.items()), float(rows["size_bytes"][messages].sum())

    # Events -----------------------------------------------------------------------------------------------------------

    def _due(self, number: int) -> list[SlowdownEvent]:
        """Events of changes with enough calls since to locate the cause."""
        ready = [
            change
            for change in self._pending
            if not change.is_onset or number + 1 - self._iteration(change.began) >= self._num_to_locate
        ]
        self._pending = [change for change in self._pending if change not in ready]
        return [event for change in ready if (event := self._event(change)) is not None]

    def _iteration(self, point: int) -> int:
        """The iteration number of this point."""
        place = point - (self._num_points - len(self._points))
        return self._points[max(0, place)]

    def _event(self, change: ChangePoint) -> SlowdownEvent | None:
        began, declared = self._iteration(change.began), self._iteration(change.declared)
        healthy_s = self._healthy_s if self._is_slow and self._healthy_s is not None else change.before_s
        was_slow, still_slow = self._is_slow, change.after_s > LEAST_RATIO * healthy_s
        self._is_slow = still_slow
        self._healthy_s = healthy_s if still_slow else change.after_s
        if not change.is_onset and not was_slow:
            return None  # warm-up took longer than assumed
        suspects = self._suspects(began) if change.is_onset else []
        self._told = _named(suspects) | (self._told if still_slow else set())
        self._changed_at, self._standing = began, set()
        self._compare_at = max(self._compare_at, declared + COMPARE_EVERY)
        lost_share = max(0.0, 1 - healthy_s / change.after_s)
        levels = (change.before_s, change.after_s)
        return SlowdownEvent(began, declared, change.is_onset, change.factor, lost_share, tuple(suspects), *levels)

    # Standing comparison ----------------------------------------------------------------------------------------------

    def standings(self) -> list[RankStanding]:
        """All ranks over the latest iterations after the warm-up, compared with others in their role."""
        since = self._compared_since()
        return standings(self._logs(since, self.num_iterations)) if self.num_iterations > since else []

    def _compared_since(self) -> int:
        """The first iteration to compare: all that are buffered since the last change, fewer if calls are very many."""
        num_rows = sum(len(heard.rows) for heard in self._ranks.values())
        num_buffered = max((len(heard.marks) for heard in self._ranks.values()), default=0)
        most = int(np.clip(MOST_COMPARED * num_buffered // max(1, num_rows), FEW_COMPARED, NUM_KEPT))
        return max(self._warm_up_until, self._changed_at, self.num_iterations - most)

    def _compare_standing(self) -> list[SlowdownEvent]:
        """An event if two comparisons in sequence find the same ranks, and these were not reported yet."""
        if self.num_iterations < self._compare_at:
            return []
        if self.num_iterations >= self._compare_at + COMPARE_EVERY:  # calls came late, and a comparison was skipped
            earlier = self._logs(self._compared_since(), self.num_iterations - COMPARE_EVERY)
            self._standing = _named(standing_suspects(standings(earlier)))
        self._compare_at = self.num_iterations + COMPARE_EVERY
        rows = self.standings() if not self._pending else []
        self.latest_standings = rows or self.latest_standings
        suspects = standing_suspects(rows)
        found, before = _named(suspects), self._standing
        self._standing = found
        new = (found & before) - self._told
        if not new or any(ranks in {told for _, told in self._told} for _, ranks in new):
            return []
        self._told = found & before
        kept = tuple(each for each in suspects if (each.kind, each.ranks) in self._told)
        return [self._standing_event(rows[0].iteration_s, kept)]

    def _standing_event(self, iteration_s: float, suspects: tuple[Suspect, ...]) -> SlowdownEvent:
        now, excess_s = self.num_iterations, max(each.excess_s for each in suspects)
        began = self._compared_since() if self._is_slow or self._changed_at else 0
        healthy_s = iteration_s - excess_s
        self._is_slow, self._healthy_s = True, healthy_s
        levels = (excess_s / iteration_s, suspects, healthy_s, iteration_s)
        return SlowdownEvent(began, now - 1, True, iteration_s / healthy_s, *levels, is_standing=True)

    def _suspects(self, began: int) -> list[Suspect]:
        since = max(began, self.num_iterations - NUM_SINCE)  # the begin is uncertain if detection took long
        return locate(self._logs(since, self.num_iterations), self._logs(began - NUM_BEFORE, began))

    def _logs(self, first: int, end: int) -> list[CallLog]:
        known = {rank: heard for rank, heard in sorted(self._ranks.items()) if heard.anchor is not None}
        return [heard.log(rank, max(0, first), end) for rank, heard in known.items()]
