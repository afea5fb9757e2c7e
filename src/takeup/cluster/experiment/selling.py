"""What could be promised to a job at one moment of a trace, after everything that was promised before."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from takeup.cluster.experiment.replays import DayProgress, quota_source
from takeup.cluster.experiment.scenario import ClusterScenario, report_on
from takeup.cluster.experiment.workloads import DAY_S, load_workload, select_jobs
from takeup.cluster.fleet.evidence import Evidence, QuotaSource
from takeup.cluster.model import Kind, Offer, Quota, Workload
from takeup.cluster.policies import RuleBasedScheduler, find_policy
from takeup.cluster.policies.gfs.quota import SpotPromise, SpotQuota
from takeup.cluster.report import OfferRequest, menu_table, nodes_table, offers_table
from takeup.cluster.simulate import replay
from takeup.core.progress import progress
from takeup.core.report import Report
from takeup.errors import BadInput

TICK_S, HOUR_S = 300.0, 3600.0  # quotas are made every five minutes


def offer(scenario: ClusterScenario, quiet: bool) -> Report:
    """Replay until the moment, and ask."""
    workload, notes = load_workload(scenario)
    pool = _pool(scenario, workload)
    moment_s = _moment_s(scenario, workload)
    source = _OfferProbe(quota_source(scenario), scenario.num_gpus, scenario.gang_nodes, moment_s)
    num_days = int(moment_s // DAY_S) + 1
    with progress("cluster offer", num_days, quiet=quiet) as tick:
        days = DayProgress(source, tick)
        scheduler = _promising(scenario.policies[0], days)
        known = select_jobs(workload, workload.job_submit_s < moment_s, (pool,))
        replay(_with_question(known, moment_s), scheduler, 0.0, moment_s + HOUR_S)
        days.finish(num_days)
    assert source.asked is not None
    notes = (f"day {moment_s / DAY_S:.3f} of {workload.name} under {scheduler.name}", *notes)
    tables = [offers_table(source.asked, source.offers), menu_table(source.asked)]
    if source.asked.num_nodes:
        tables.append(nodes_table(source.asked))
    return report_on(scenario, f"Cluster: what {pool} can promise", *tables, notes=notes)


def _promising(policy: str, source: QuotaSource) -> RuleBasedScheduler:
    scheduler = find_policy(policy, source)
    if not scheduler.rules.uses_quota:
        raise BadInput(f"{policy!r} makes no promises; ask a policy with a quota, such as 'gfs'")
    return scheduler


def _pool(scenario: ClusterScenario, workload: Workload) -> str:
    if len(workload.pools) > 1:
        raise BadInput(f"{workload.name} has the pools {', '.join(workload.pools)}; choose one with '--pool'")
    pool = workload.pools[0]
    size = int(workload.node_gpus.sum())
    if scenario.num_gpus > size or scenario.gang_nodes > workload.num_nodes:
        asked = f"{scenario.num_gpus} GPUs on {scenario.gang_nodes or 'any'} whole nodes"
        raise BadInput(f"{asked} are more than {pool} has: {workload.num_nodes} nodes with {size} GPUs; ask for less")
    return pool


def _moment_s(scenario: ClusterScenario, workload: Workload) -> float:
    last_s = float(workload.job_submit_s[-1])
    moment_s = last_s if scenario.at_day is None else scenario.at_day * DAY_S
    if moment_s > last_s + DAY_S:
        raise BadInput(f"day {moment_s / DAY_S:g} is after the trace, which ends on day {last_s / DAY_S:.2f}")
    return float(np.ceil(moment_s / TICK_S) * TICK_S)


def _with_question(workload: Workload, moment_s: float) -> Workload:
    """The workload with a small spot job at the end, so that a quota is asked for at this moment."""
    last = {
        "job_kind": int(Kind.SPOT), "job_pool": 0, "job_organisation": 0, "job_gpus": 1.0, "job_workers": 1,
        "job_submit_s": moment_s, "job_duration_s": 1.0, "job_guarantee_h": 1.0, "job_checkpoint_s": HOUR_S,
    }  # fmt: skip
    columns = {name: np.append(getattr(workload, name), value) for name, value in last.items()}
    return replace(workload, **columns)  # type: ignore[arg-type]


@dataclass(slots=True)
class _OfferProbe:
    """A source of quota that, at one moment, also asks what could be offered."""

    source: SpotQuota
    num_gpus: int
    num_nodes: int
    moment_s: float
    asked: OfferRequest | None = None
    offers: tuple[Offer, ...] = ()

    def quota(self, pool: str, evidence: Evidence) -> Quota:
        """What the source says."""
        quota = self.source.quota(pool, evidence)
        if self.asked is None and evidence.now_s >= self.moment_s:
            sold = self._sold(evidence)
            self.offers = self.source.offer(pool, evidence, self.num_gpus, self.num_nodes, sold)
            self.asked = self._asked(pool, evidence, sold)
        return quota

    def _sold(self, evidence: Evidence) -> tuple[SpotPromise, ...]:
        """What runs under a promise counts as promised in the strongest way: when each ends is not in the evidence."""
        if not evidence.guaranteed_gpus:
            return ()
        until_s = evidence.now_s + self.source.hours[-1] * HOUR_S
        return (SpotPromise(evidence.guaranteed_gpus, until_s, self.source.probabilities[-1]),)

    def _asked(self, pool: str, evidence: Evidence, sold: tuple[SpotPromise, ...]) -> OfferRequest:
        menu, nodes = self.source.menu(pool, evidence), self.source.node_menu(pool, evidence)
        return OfferRequest(
            pool=pool,
            num_gpus=self.num_gpus,
            num_nodes=self.num_nodes,
            capacity_gpus=evidence.capacity_gpus,
            idle_gpus=evidence.idle_gpus,
            idle_nodes=evidence.idle_nodes,
            promised_gpus=evidence.guaranteed_gpus,
            coefficient=self.source.coefficient(pool),
            num_hours_known=len(evidence.hourly_demand),
            hours=menu.hours,
            probabilities=menu.probabilities,
            free_gpus=menu.free_gpus,
            left_gpus=menu.available(sold, evidence.now_s),
            free_nodes=nodes.free_gpus if nodes is not None else (),
        )
