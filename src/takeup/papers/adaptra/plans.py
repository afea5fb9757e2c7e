"""First plans that keep their slack, queues, bounded memory, and the gap of plans to the lower bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from takeup.core.report import Cell, Check, Column, Series, Table
from takeup.core.seeds import Streams
from takeup.papers.adaptra.pipelines import Numbers, iteration_ms, profile_with_latencies, profile_with_queues, to_ms
from takeup.papers.findings import Findings
from takeup.training.model.pipeline import Link, Profile
from takeup.training.policies.adaptra import Adaptra, AdaptraAsPublished
from takeup.training.policies.initial import AdaptraInitial
from takeup.training.policies.warmups import spread_warmups
from takeup.training.timing.bounds import least_iteration_s
from takeup.training.timing.runs import generate_schedule, timeline_of
from takeup.training.traces import random_profile


def first_plans(expected: Numbers) -> Findings:
    """The same warm-ups, ordered for links without delay and for virtual delays."""
    part, healthy = expected["initial"], profile_with_latencies(expected, 4, 24, {})
    cases: list[dict[int, float]] = [{}, {0: 20.0}, {2: 20.0}, {2: 30.0}]
    rows: list[tuple[Cell, ...]] = []
    checks = []
    for index, slackness in enumerate(part["slackness"]):
        warmups = spread_warmups(3 * slackness + 1, 4)
        orders = {
            "made_for_no_delay": generate_schedule(healthy, warmups),
            "made_for_virtual_delays": AdaptraInitial(slackness=slackness).plan(healthy).schedule,
        }
        for how, schedule in orders.items():
            ours = [iteration_ms(schedule, profile_with_latencies(expected, 4, 24, delays)) for delays in cases]
            rows.append((str(warmups), how.replace("_", " "), *ours))
            for delays, found, known in zip(cases, ours, part[how][index], strict=True):
                name = f"first plan, slackness {slackness}, {how.replace('_', ' ')}, links {delays or 'healthy'}"
                checks.append(Check.near(name, found, known, 1e-6, unit="ms", source="measured"))
    titles = ("healthy", "20 on the first", "20 on the last", "30 on the last")
    columns = (Column("warm-ups"), Column("order"), *(Column(title, "ms", 0) for title in titles))
    return Findings(tuple(checks), (Table("First plans under delays", columns, tuple(rows)),))


def queues(expected: Numbers) -> Findings:
    """A link that serves one message at a time: the published plan, and one that models the queue."""
    part, bar = expected["queues"], expected["queue_bar"]["least_gain_percent"]
    rows: list[tuple[Cell, ...]] = []
    points: list[dict[str, Cell]] = []
    checks = []
    for service_ms, published, aware in zip(part["service_ms"], part["published"], part["queue_aware"], strict=True):
        profile = profile_with_queues(expected, 4, 24, {2: service_ms})
        plans = (AdaptraAsPublished().plan(profile), Adaptra().plan(profile))
        theirs, ours = (to_ms(plan.iteration_s) for plan in plans)
        rows.append((service_ms, theirs, ours, to_ms(plans[1].bound_s), 100 * (1 - ours / theirs)))
        points += [
            {"plan": plan.planner, "service": service_ms, "iteration": to_ms(plan.iteration_s)} for plan in plans
        ]
        name = f"service of {service_ms} ms"
        checks.append(Check.near(f"{name}, published plan", theirs, published, 1e-6, unit="ms", source="measured"))
        checks.append(Check.at_most(f"{name}, our plan", ours, aware, unit="ms", source="measured"))
        if service_ms > 2 * expected["setting"]["op_ms"]:
            checks.append(Check.at_least(f"{name}, gain of our plan", 100 * (1 - ours / theirs), bar, unit="%"))
    names = ("service", "published", "ours", "no order is below")
    columns = (*(Column(name, "ms", 0) for name in names), Column("gain", "%", 1))
    chart = Series("A link with a queue", "service", "iteration", tuple(points), "plan", None, "ms", "ms")
    return Findings(tuple(checks), (Table("A link with a queue", columns, tuple(rows)),), (chart,))


def memory(expected: Numbers) -> Findings:
    """Memory for two micro-batches per stage of the pipeline, instead of all of them."""
    part, profile = expected["memory"], profile_with_latencies(expected, 4, 48, {2: 40.0})
    stages = tuple(replace(stage, activation_bytes=1, memory_bytes=8) for stage in profile.stages)
    published = AdaptraAsPublished().plan(profile)
    free, capped = Adaptra().plan(profile), Adaptra().plan(replace(profile, stages=stages))
    rows = tuple(
        (name, to_ms(plan.iteration_s), max(plan.peak_live))
        for name, plan in (("published", published), ("ours", free), ("ours, at most 8", capped))
    )
    table = Table(
        "Memory, 40 ms on the last link", (Column("plan"), Column("iteration", "ms", 0), Column("held")), rows
    )
    checks = (
        Check.at_most(
            "iteration without a limit of memory", to_ms(free.iteration_s), part["free"], unit="ms", source="measured"
        ),
        Check.at_most(
            "iteration with 8 micro-batches at most",
            to_ms(capped.iteration_s),
            part["capped"],
            unit="ms",
            source="measured",
        ),
        Check.at_most("micro-batches held with the limit", float(max(capped.peak_live)), 8.0),
    )
    return Findings(checks, (table,))


def random_pipelines(expected: Numbers) -> Findings:
    """Uneven pipelines with some slow links: gap to the bound, adapted and not."""
    part, known = expected["gaps"], expected["gaps_of_zero_bubble"]["over_bound_percent"]
    rows: list[tuple[Cell, ...]] = []
    checks = []
    for (num_stages, count), over in zip(part["sizes"], known, strict=True):
        random = Streams(expected["setting"]["seed"]).stream(f"random pipelines {num_stages} {count}")
        drawn = [random_profile(random, num_stages, count) for _ in range(part["num_profiles"])]
        ours = [100 * Adaptra().plan(profile).gap_share for profile in drawn]
        theirs = float(np.mean([_zero_bubble_gap_percent(profile) for profile in drawn]))
        rows.append((f"{num_stages} x {count}", float(np.mean(ours)), max(ours), theirs))
        name = f"{num_stages} stages, {count} micro-batches"
        checks.append(Check.at_most(f"{name}, mean gap", float(np.mean(ours)), part["mean_percent"], unit="%"))
        why = "other draws, and a bound that is not quite the same"
        checks.append(
            Check.near(f"{name}, zero bubble over bound", theirs, over, 15.0, unit="%", source="unverified", why=why)
        )
    columns = (Column("size"), Column("mean gap", "%", 2), Column("largest gap", "%", 2), Column("zero bubble", "%", 1))
    note = f"{part['num_profiles']} pipelines of each size; zero bubble: what the kept schedule takes above the bound"
    return Findings(tuple(checks), (Table("Uneven pipelines", columns, tuple(rows), note),))


def _zero_bubble_gap_percent(profile: Profile) -> float:
    """Gap in percent of a zero-bubble schedule that ignores the links."""
    num = profile.num_stages
    healthy = replace(profile, links=(Link(),) * (num - 1))
    schedule = generate_schedule(
        healthy, [min(profile.num_microbatches, 2 * (num - stage) - 1) for stage in range(num)]
    )
    return 100 * (timeline_of(schedule, profile).iteration_s / least_iteration_s(profile) - 1)
