"""What to do about a slowdown, as a state machine: events and states of the job in, findings with actions out.

A slow rank gets a smaller share of every batch, an adaptive pipeline replans for a slow link, and what lasts long
enough is answered by a restart (restart.py), with two ranks swapped where that takes traffic off a slow link. Nothing
here reads a clock or a rank, so the decisions of a job can be replayed from the states it reported.
"""

from dataclasses import dataclass, replace
from statistics import median

from takeup.training.stragglers.contract import (
    AdaptSchedule,
    Confirmation,
    Finding,
    JobState,
    RemedyAction,
    ResetBaseline,
    SetRankOrder,
    SlowdownEvent,
    Suspect,
)
from takeup.training.stragglers.remedy.rebalance import BatchShares, are_alike
from takeup.training.stragglers.remedy.restart import PredictedRankSwap, RestartRule, best_rank_swap

NUM_TO_EVALUATE = 24  # iterations after a restart before a rank swap is evaluated, on the later half of them
NUM_TO_SETTLE = 8  # iterations after a rebalance before the times of ranks reflect it
LEAST_SAVED = 0.1  # share of an iteration that a rank swap must save

Remedied = tuple[str, tuple[RemedyAction, ...]]  # in words, and as commands


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """What may be done: pause to confirm, change shares and schedules, restart.

    A job that can checkpoint is restarted after a loss of `restart_after_s`; or, if `restart_cost_s` estimates the cost
    of a restart, once that is likely to pay.
    """

    confirm: bool = False
    rebalance: bool = True
    restart_after_s: float | None = None
    restart_cost_s: float | None = None

    @property
    def may_restart(self) -> bool:
        return self.restart_after_s is not None or self.restart_cost_s is not None


@dataclass(slots=True)
class _Ongoing:
    """The current slowdown: how long it has lasted and what it has cost, both in seconds."""

    event: SlowdownEvent
    lasted_s: float = 0.0
    cost_s: float = 0.0
    is_refused: bool = False  # it was reported that no restart is possible

    @property
    def is_busy_host(self) -> bool:
        """Whether the machine does other work, as it still would after a restart."""
        return any(suspect.kind == "host" for suspect in self.event.suspects)


class Remediation:
    """The remedies of one job."""

    def __init__(self, settings: WatchSettings) -> None:
        self.slow: tuple[Suspect, ...] = ()
        self.lost_s = 0.0
        self._settings = settings
        self._restarts = RestartRule(settings.restart_after_s, settings.restart_cost_s)
        self._swap: tuple[PredictedRankSwap, SlowdownEvent] | None = None
        self._restarted_for: SlowdownEvent | None = None
        self._num_found = 0
        self._reset()

    def _reset(self) -> None:
        self.slow = ()
        self._ongoing: _Ongoing | None = None
        self._shares = BatchShares()
        self._num_requests = 0
        self._changes_before: int | None = None  # schedule changes before a request to adapt that is still open
        self._num_seen = self._settled_from = 0

    def _finding(self, event: SlowdownEvent, remedied: Remedied, confirmed: Confirmation | None = None) -> Finding:
        self._num_found += 1
        words, actions = remedied
        return Finding(self._num_found, event, words, confirmed, actions)

    # Events -----------------------------------------------------------------------------------------------------------

    def on_event(self, event: SlowdownEvent, confirmed: Confirmation | None, job: JobState) -> Finding:
        """The remedy for a new event; the seconds of a pause are in an iteration that is not counted yet."""
        if self._ongoing is not None:
            self._restarts.durations_s.append(self._ongoing.lasted_s)
        is_slow = event.is_slow and not (confirmed is not None and confirmed.has_vanished)
        pause_s = 0.0 if confirmed is None else confirmed.seconds
        self._ongoing = _Ongoing(_refined(event, confirmed), -pause_s, -pause_s) if is_slow else None
        self.slow = event.suspects if is_slow else ()
        return self._finding(event, self._remedy(event, is_slow, job), confirmed)

    def _remedy(self, event: SlowdownEvent, is_slow: bool, job: JobState) -> Remedied:
        kinds = {suspect.kind for suspect in event.suspects}
        if not is_slow:
            return "none, it is over" if event.is_slow else "none is needed", ()
        if "host" in kinds:
            return "none; end what else runs on this machine, or start fewer ranks", ()
        if "compute" in kinds:
            return self._rebalanced(job) if self._settings.rebalance else ("none, as actions are off", ())
        if "pause" in kinds:
            where = "checkpoints, evaluation, shared storage" if event.is_shared else "garbage, data loading, swapping"
            return f"none; look at {where}", ()
        if "link" in kinds and job.can_adapt:
            return self._adapt(job) if self._settings.rebalance else ("none, as actions are off", ())
        advice = "look at this link, or restart without its machines" if kinds else "look at what they share"
        return f"none; {advice}", ()

    def _rebalanced(self, job: JobState) -> Remedied:
        if not job.num_microbatches:
            return "none; with Batches in the script a slow rank would get less work", ()
        before = self._shares.counts or (job.num_microbatches // job.num_ranks,) * job.num_ranks
        shares = self._shares.rebalanced(job) if self._shares.can_change(job) else None
        if shares is None:
            return "none; no other share of the micro-batches would be better", ()
        self._settled_from = job.num_iterations + NUM_TO_SETTLE
        words = " -> ".join(" ".join(map(str, counts)) for counts in (before, shares.counts))
        return f"micro-batches of ranks {words}", (shares, ResetBaseline())

    def _adapt(self, job: JobState) -> Remedied:
        """Request a new schedule because of a slow link."""
        self._num_requests += 1
        self._changes_before = job.num_schedule_changes
        return "the pipeline measures the link and plans its schedule again", (AdaptSchedule(self._num_requests),)

    # Between events ---------------------------------------------------------------------------------------------------

    def on_progress(self, job: JobState) -> list[Finding]:
        """Remedies that have become due, and the outcome of earlier ones."""
        self._account(job)
        return [*self._restart_if_due(job), *self._rebalance_again(job), *self._adapted(job), *self._evaluate_swap(job)]

    def _account(self, job: JobState) -> None:
        """Add the new iterations to the duration and the cost of the current slowdown."""
        num_new, self._num_seen = job.num_iterations - self._num_seen, job.num_iterations
        if self._ongoing is None or num_new <= 0:
            return
        latest_s = job.latest_s[-num_new:]
        cost_s = sum(max(0.0, time_s - self._ongoing.event.before_s) for time_s in latest_s)
        self.lost_s += cost_s
        self._ongoing.cost_s += cost_s
        self._ongoing.lasted_s += sum(latest_s)

    def _restart_if_due(self, job: JobState) -> list[Finding]:
        """Checkpoint and restart once that pays, swapping two ranks if that keeps traffic off a slow link."""
        now = self._ongoing
        if now is None or now.is_busy_host or not self._restarts.is_due(now.lasted_s, now.cost_s):
            return []
        if not job.can_restart:
            return self._refused_restart(now)
        if not self._shares.can_change(job):
            return []
        swap = None if job.traffic is None else best_rank_swap(now.event, job.traffic, job.num_ranks, LEAST_SAVED)
        words = f"saved and restarted after a loss of {now.cost_s:.4g} s"
        if swap is not None:
            words += (
                f" with ranks {swap.ranks[0]} and {swap.ranks[1]} exchanged, {1e3 * swap.predicted_s:.4g} ms predicted"
            )
        self._swap = None if swap is None else (swap, now.event)
        return [self._finding(now.event, (words, self._restart(now.event, swap, job)))]

    def _refused_restart(self, now: _Ongoing) -> list[Finding]:
        """Report once per event that the job could not be restarted."""
        if now.is_refused:
            return []
        now.is_refused = True
        return [
            self._finding(now.event, ("no restart; Batches needs a save function, and torchrun --max-restarts", ()))
        ]

    def _restart(self, event: SlowdownEvent, swap: PredictedRankSwap | None, job: JobState) -> tuple[RemedyAction, ...]:
        self._restarts.requested(job.now_s)
        self._ongoing, self._restarted_for = None, event
        order = () if swap is None else (SetRankOrder(self._restarts.swapped(swap.order(job.num_ranks))),)
        return (*order, self._shares.before_restart(job))

    def on_restart(self, now_s: float) -> list[Finding]:
        """Reset after ranks have restarted; if that was requested, report how long it took."""
        took_s, event = self._restarts.completed(now_s), self._restarted_for
        self._reset()
        self._restarted_for = None
        if took_s is None or event is None:
            return []
        return [self._finding(event, (f"ranks came back after {took_s:.3g} s", ()))]

    def _evaluate_swap(self, job: JobState) -> list[Finding]:
        """Undo a rank swap that misses its predicted iteration time, after enough iterations."""
        if self._swap is None or len(job.latest_s) < NUM_TO_EVALUATE or self._restarts.is_under_way:
            return []
        (swap, event), taken_s = self._swap, median(job.latest_s[-NUM_TO_EVALUATE // 2 :])
        if taken_s <= (swap.predicted_s + event.after_s) / 2:
            self._swap = None
            return [self._finding(event, (f"ranks exchanged, {1e3 * taken_s:.4g} ms as predicted", ()))]
        if not (job.can_restart and self._shares.can_change(job)):
            return []
        self._swap = None
        words = f"saved and restarted as before: {1e3 * taken_s:.4g} ms is not what was predicted"
        return [self._finding(event, (words, self._restart(event, swap, job)))]

    def _rebalance_again(self, job: JobState) -> list[Finding]:
        """Restore even shares once micro-batch times of ranks are alike (iteration times hide it), or improve them.

        The first shares were chosen when a rank had just become slow, and little was known of it.
        """
        can_change = self._shares.are_uneven and self._shares.can_change(job)
        if not can_change or job.num_iterations < self._settled_from:
            return []
        is_over, now = are_alike(job), job.num_iterations
        if not is_over and not self._shares.could_be_better(job):
            return []
        remedied = self._rebalanced(job)
        over = SlowdownEvent(now, now, False, 1.0, 0.0)
        event = over if is_over or self._ongoing is None else self._ongoing.event
        self._ongoing, self.slow = (None, ()) if is_over else (self._ongoing, self.slow)
        return [self._finding(event, remedied)]

    def _adapted(self, job: JobState) -> list[Finding]:
        """Report once what came of a request to adapt, when all ranks have handled it."""
        if self._changes_before is None or job.adapted != {self._num_requests}:
            return []
        has_changed, self._changes_before = job.num_schedule_changes > self._changes_before, None
        if self._ongoing is None:
            return []
        if has_changed:
            return [self._finding(self._ongoing.event, ("the pipeline has changed its schedule", (ResetBaseline(),)))]
        return [self._finding(self._ongoing.event, ("none; no other schedule would be faster", ()))]


def _refined(event: SlowdownEvent, confirmed: Confirmation | None) -> SlowdownEvent:
    """The event with its suspects replaced by the slow links that tests found, if any."""
    if confirmed is None or not confirmed.slow_links:
        return event
    found = tuple(Suspect("link", pair, factor, 1.0, "tested") for pair, factor in confirmed.slow_links.items())
    return replace(event, suspects=found)
