"""Better victims for gangs: corrects the fast pass where a solver proves that the evictions can cost less.

How it works. The decisions of a pass are examined in order. At the first gang for which jobs are evicted and a cheaper
plan exists, that plan replaces what was decided; everything behind it must be decided again, on the state after the
plan. Within its budget the solver may find nothing: then the fast plan stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from takeup.cluster.fleet.exact import BUDGET_S, GangPlan, best_victims, prices_gpu_s
from takeup.cluster.fleet.rules import SchedulerRules
from takeup.cluster.model import Decision, Evict, Grade, Job, Kind, Run, Start, State, Waiting

TINY_SHARE = 1e-6


@dataclass(frozen=True, slots=True)
class PassCorrection:
    """The decisions of a pass that stand, with the better plan at the end, and the state after them."""

    decisions: tuple[Decision, ...]
    state: State


def corrected_pass(
    state: State, decisions: Sequence[Decision], rules: SchedulerRules, budget_s: float = BUDGET_S
) -> PassCorrection | None:
    """The pass up to the first gang that has a cheaper plan; None if there is no such gang."""
    jobs = {job.id: job for job in [run.job for run in state.runs] + [wait.job for wait in state.waiting]}
    before, num_done = state, 0
    for place, decision in enumerate(decisions):
        if not (isinstance(decision, Start) and _evicts_for_gang(decisions[num_done:place], jobs[decision.job_id])):
            continue
        fast = [it for it in decisions[num_done:place] if isinstance(it, Evict) and it.for_job == decision.job_id]
        before = state_after(before, [it for it in decisions[num_done:place] if it not in fast])
        better = _cheaper_decisions(before, jobs[decision.job_id], fast, rules, budget_s)
        if better is not None:
            stands = (*(it for it in decisions[:place] if it not in fast), *better)
            return PassCorrection(stands, state_after(before, better))
        before, num_done = state_after(before, [*fast, decision]), place + 1
    return None


def _evicts_for_gang(decisions: Sequence[Decision], job: Job) -> bool:
    is_gang = job.kind == Kind.HIGH and job.num_workers > 1 and job.gpus_per_worker >= 1
    return is_gang and any(isinstance(it, Evict) and it.for_job == job.id for it in decisions)


def _cheaper_decisions(
    state: State, job: Job, fast: list[Evict], rules: SchedulerRules, budget_s: float
) -> list[Decision] | None:
    """Evictions and start of a plan that costs less, its price and bound in the reasons."""
    plan = best_victims(state, job, rules, budget_s)
    if plan is None:
        return None
    runs = {run.job.id: run for run in state.runs if run.job.kind == Kind.SPOT and run.job.pool == job.pool}
    price = dict(zip(runs, prices_gpu_s(list(runs.values()), state.now_s, rules).tolist(), strict=True))
    fast_price, best_price = (
        sum(map(price.__getitem__, names)) for names in ((it.job_id for it in fast), plan.victims)
    )
    if best_price >= fast_price * (1 - TINY_SHARE) or _is_too_wide(plan, fast, job, runs, rules):
        return None
    return [*(_eviction(runs[name], job, plan, state.now_s) for name in plan.victims), _start(job, plan)]


def _is_too_wide(plan: GangPlan, fast: list[Evict], job: Job, runs: dict[str, Run], rules: SchedulerRules) -> bool:
    """Whether its victims hold more GPUs than those of the fast plan, and exceed the patience limit of the job."""
    ours, theirs = (
        sum(runs[name].job.num_gpus for name in names) for names in (plan.victims, (it.job_id for it in fast))
    )
    return rules.patience_s > 0 and ours > max(theirs, job.num_gpus + rules.patience_gpus)


def _eviction(run: Run, job: Job, plan: GangPlan, now_s: float) -> Evict:
    lost = run.job.num_gpus * (now_s - run.saved_s)
    return Evict(run.job.id, job.id, lost, f"{job.id} needs the room; of all ways to make it, {_proof(plan)}")


def _start(job: Job, plan: GangPlan) -> Start:
    reason = f"high priority, room made by {len(plan.victims)} evictions"
    return Start(job.id, plan.nodes, Grade.HIGH, reason if plan.victims else "high priority, idle GPUs fit")


def _proof(plan: GangPlan) -> str:
    gap_share = 1 - plan.bound_gpu_s / plan.price_gpu_s if plan.price_gpu_s > 0 else 0.0
    return "this is the cheapest" if gap_share < TINY_SHARE else f"none is more than {gap_share:.1%} cheaper"


def state_after(state: State, decisions: Sequence[Decision]) -> State:
    """The state when decisions have been carried out at once."""
    runs, waits = {run.job.id: run for run in state.runs}, {wait.job.id: wait for wait in state.waiting}
    for it in decisions:
        if isinstance(it, Start):
            wait = waits.pop(it.job_id)
            runs[it.job_id] = Run(wait.job, it.nodes, state.now_s, it.grade, state.now_s, wait.num_evictions)
        elif isinstance(it, Evict) and not it.notice_s:
            run = runs.pop(it.job_id)
            waits[it.job_id] = Waiting(run.job, state.now_s, run.num_evictions + 1)
    nominations = {name: nodes for name, nodes in state.nominations.items() if name in waits}
    return replace(state, runs=tuple(runs.values()), waiting=tuple(waits.values()), nominations=nominations)
