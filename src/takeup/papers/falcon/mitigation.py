"""Mitigation: micro-batches for slow groups, stages for slow devices, node swaps, recovery at scale, time of action."""

from collections.abc import Iterator, Sequence
from statistics import fmean

import numpy as np

from takeup.core.report import Cell, Check, Column, Table
from takeup.papers import Findings, Numbers
from takeup.papers.falcon.slowdowns import LARGE_MINUTES
from takeup.training.stragglers.remedy.rebalance import rebalance
from takeup.training.stragglers.remedy.restart import (
    LINK_MINUTES,
    DurationDistribution,
    Quantiles,
    Remedy,
    expected_loss_s,
    plan_escalation,
    ski_rental,
)

MICROBATCHES_EACH = 16
SEVERITIES = ("weak", "medium", "severe")


# Micro-batches --------------------------------------------------------------------------------------------------------


def rebalancing(expected: Numbers) -> Findings:
    """Slowdowns before and after rebalancing micro-batches, printed and by the least maximum."""
    part, several, objective = expected["rebalance"], expected["rebalance_several"], expected["objective"]
    rows: list[tuple[Cell, ...]] = []
    for num, befores, afters in zip(part["num_groups"], part["before"], part["after"], strict=True):
        for severity, before, after in zip(SEVERITIES, befores, afters, strict=True):
            rows.append(
                (f"1 of {num} groups, {severity}", before, after, _remaining_slowdown([before, *[1.0] * (num - 1)]))
            )
    checks = []
    for num_slow, after in enumerate(several["after"], start=1):
        found = _remaining_slowdown([several["before"]] * num_slow + [1.0] * (4 - num_slow))
        rows.append((f"{num_slow} of 4 groups", several["before"], after, found))
        checks.append(Check.near(f"{num_slow} of 4 groups slow, after", found, after, several["tolerance"], unit="x"))
    times_s, count = objective["microbatch_s"], objective["num_microbatches"]
    variance_s, best_s = (
        _least_variance_s(times_s, count),
        rebalance(times_s, count).iteration_s,
    )
    checks += [
        Check.near(
            "least variance, slowest group", variance_s, objective["variance_s"], 1e-9, unit="s", source="measured"
        ),
        Check.near("least maximum, slowest group", best_s, objective["best_s"], 1e-9, unit="s", source="measured"),
    ]
    columns = (Column("slow"), *(Column(name, "x", 2) for name in ("before", "after, paper", "after, least maximum")))
    note = f"times to those of a healthy job; ours with {MICROBATCHES_EACH} micro-batches for each group"
    return Findings(
        tuple(checks), (Table("Micro-batches redistributed", columns, tuple(rows), note), _solver_table(expected))
    )


def _remaining_slowdown(factors: Sequence[float]) -> float:
    """The remaining slowdown."""
    return rebalance(factors, MICROBATCHES_EACH * len(factors)).iteration_s / MICROBATCHES_EACH


def _least_variance_s(times_s: Sequence[float], count: int) -> float:
    """Time of the split that the published objective picks, by enumeration."""
    best = min(_splits(count, len(times_s)), key=lambda split: float(np.var(np.array(split) * times_s)))
    return float(np.max(np.array(best) * times_s))


def _splits(total: int, num_parts: int) -> Iterator[tuple[int, ...]]:
    if num_parts == 1:
        yield (total,)
        return
    for first in range(1, total - num_parts + 2):
        yield from ((first, *rest) for rest in _splits(total - first, num_parts - 1))


def _solver_table(expected: Numbers) -> Table:
    part = expected["solver"]
    rows = tuple(zip(part["num_groups"], part["seconds"], strict=True))
    note = "4,096 groups take ours a few milliseconds: see benchmarks/training/stragglers.py, part solver"
    return Table("Seconds of the paper's solver", (Column("groups"), Column("paper", "s", 2)), rows, note)


# Stages ---------------------------------------------------------------------------------------------------------------


def pipeline_s(stages_s: Sequence[float], num_microbatches: int) -> float:
    """Time of a pipeline with these stage times per micro-batch: filling it, then its slowest stage."""
    return sum(stages_s) + (num_microbatches - 1) * max(stages_s)


def consolidation(expected: Numbers) -> Findings:
    """The cost of one slow stage, and of a second one."""
    part = expected["consolidation"]
    rows, checks = list[tuple[Cell, ...]](), []
    for stages_s, known_s in zip(part["stages_s"], part["pipeline_s"], strict=True):
        ours_s = pipeline_s(stages_s, 4)
        name = f"stages of {', '.join(f'{each:g}' for each in stages_s)} s"
        rows.append((name, known_s, ours_s))
        checks.append(Check.near(f"pipeline, {name}", ours_s, known_s, 1e-9, unit="s"))
    columns = (Column("four micro-batches"), Column("paper", "s", 1), Column("ours", "s", 1))
    note = "gathering slow devices in one stage saves what the second slow stage adds, in filling the pipeline only"
    return Findings(tuple(checks), (Table("Slow stages", columns, tuple(rows), note),))


def at_scale(expected: Numbers) -> Findings:
    """The share of the lost throughput that was recovered, from the printed rates."""
    part = expected["at_scale"]
    rows, checks = list[tuple[Cell, ...]](), []
    for (healthy, slow, helped), known in zip(part["rates"], part["recovered_percent"], strict=True):
        ours = 100 * (helped - slow) / (healthy - slow)
        rows.append((healthy, slow, helped, known, ours))
        checks.append(Check.near(f"recovered of {healthy} it/min", ours, known, part["tolerance"], unit="%"))
    rates = (Column(name, "it/min", 1) for name in ("healthy", "slow", "mitigated"))
    columns = (*rates, Column("recovered, paper", "%", 1), Column("from the rates", "%", 1))
    return Findings(tuple(checks), (Table("Recovered at scale", columns, tuple(rows)),))


# When to act ----------------------------------------------------------------------------------------------------------


def duration_law(quantiles: Quantiles, num: int = 400) -> DurationDistribution:
    """Durations from points of their distribution, interpolated linearly in the logarithm."""
    shares, minutes = np.array(quantiles).T
    return DurationDistribution(tuple(60 * np.exp(np.interp((np.arange(num) + 0.5) / num, shares, np.log(minutes)))))


def planner(expected: Numbers) -> Findings:
    """Expected losses under the published rule and under the plan that knows the distribution of durations."""
    part, bar = expected["planner"], expected["planner_bar"]["to_published"]
    remedies = (
        Remedy("nothing", 0.0, part["loss_share"]),
        Remedy("swap", **part["swap"]),
        Remedy("restart", **part["restart"]),
    )
    rows, checks = list[tuple[Cell, ...]](), []
    laws = {"links": (LINK_MINUTES, part["to_best_links"]), "at scale": (LARGE_MINUTES, part["to_best_at_scale"])}
    for name, (quantiles, known) in laws.items():
        law = duration_law(quantiles)
        losses_s = _losses_s(remedies, law)
        rows.append((name, *losses_s))
        nothing_s, published_s, planned_s, best_s = losses_s
        checks += [
            Check.near(
                f"{name}, published rule to hindsight",
                published_s / best_s,
                known,
                part["tolerance"],
                unit="x",
                source="measured",
            ),
            Check.at_most(f"{name}, our plan to the published rule", planned_s / published_s, bar, unit="x"),
            Check.at_least(f"{name}, doing nothing to the published rule", nothing_s / published_s, 1.0, unit="x"),
        ]
    names = ("nothing", "published rule", "least expected loss", "hindsight")
    columns = (Column("events"), *(Column(title, "s", 0) for title in names))
    note = "expected loss of one event; a swap of nodes costs 60 s, a restart 1800 s"
    return Findings(tuple(checks), (Table("When to act", columns, tuple(rows), note),))


def _losses_s(remedies: Sequence[Remedy], law: DurationDistribution) -> tuple[float, float, float, float]:
    """Losses of no action, the published rule, the plan, and the hindsight optimum per event."""
    best_s = [min(each.cost_s + each.loss_share * duration_s for each in remedies) for duration_s in law.durations_s]
    nothing_s = remedies[0].loss_share * float(np.mean(law.durations_s))
    published_s, planned_s = (
        expected_loss_s(ski_rental(remedies), law),
        expected_loss_s(plan_escalation(remedies, law), law),
    )
    return nothing_s, published_s, planned_s, float(np.mean(best_s))


def swaps(expected: Numbers) -> Findings:
    """Share of a slowdown removed by swapping nodes, from the printed slowdowns."""
    part = expected["swaps"]
    rows, checks, every = list[tuple[Cell, ...]](), list[Check](), list[float]()
    for num, before, after, known in zip(
        part["num_stages"], part["before"], part["after"], part["removed_percent"], strict=True
    ):
        removed = _removed_percent(before, after)
        every += removed
        names = [f"{num} stages, {severity}" for severity in SEVERITIES]
        rows += zip(names, before, after, removed, strict=True)
        checks.append(
            Check.near(f"{num} stages, mean share removed", fmean(removed), known, part["tolerance"], unit="%")
        )
    best = part["best_removed_percent"]
    checks.append(Check.near("largest share removed", max(every), best, part["tolerance"], unit="%"))
    columns = (Column("congested"), Column("before", "x", 2), Column("after", "x", 2), Column("removed", "%", 1))
    note = "an exchange in a real job, foretold and measured, is in benchmarks/training/stragglers.py, part restart"
    return Findings(tuple(checks), (Table("Nodes exchanged for a congested link", columns, tuple(rows), note),))


def _removed_percent(before: Sequence[float], after: Sequence[float]) -> list[float]:
    return [100 * (slow - left) / (slow - 1) for slow, left in zip(before, after, strict=True)]


def gathering(expected: Numbers) -> Findings:
    """Cost of slow devices in one stage of four, and in more of them."""
    part = expected["gathered"]
    rows, checks = list[tuple[Cell, ...]](), []
    num_stages, number = max(part["num_slow_stages"]), part["num_microbatches"]
    healthy_s = pipeline_s([1.0] * num_stages, number)
    for num_slow, before, after in zip(part["num_slow_stages"], part["before"], part["after"], strict=True):
        stages_s = [part["factor"]] * num_slow + [1.0] * (num_stages - num_slow)
        ours = pipeline_s(stages_s, number) / healthy_s
        rows.append((num_slow, before, ours, after))
        checks.append(Check.near(f"slow devices in {num_slow} of 4 stages", ours, before, part["tolerance"], unit="x"))
    titles = ("before, paper", "before, ours", "gathered, paper")
    columns = (Column("stages with slow devices"), *(Column(title, "x", 2) for title in titles))
    note = (
        f"ours: {number} micro-batches and devices {part['factor']:g} times as slow, which fits the printed slowdowns; "
        "by the same formula one slow stage alone costs what stands in the first row, and gathering cannot go below"
    )
    return Findings(tuple(checks), (Table("Slow devices gathered in few stages", columns, tuple(rows), note),))


def compound_faults(expected: Numbers) -> Findings:
    """One job that is hit twice; the throughput recovered each time."""
    part = expected["compound"]
    rows = [
        (what, part["healthy"], slow, helped, 100 * (helped - slow) / (part["healthy"] - slow))
        for what, slow, helped in zip(part["what"], part["slow"], part["helped"], strict=True)
    ]
    rates = (Column(name, "it/s", 1) for name in ("healthy", "slow", "mitigated"))
    columns = (Column("what happened"), *rates, Column("recovered", "%", 1))
    return Findings((), (Table("One job that is hit twice", columns, tuple(rows)),))
