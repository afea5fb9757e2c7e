"""Plans and timelines of training as tables and charts: stages, comparison of planners, Gantt charts."""

from collections.abc import Mapping, Sequence

from takeup.core.report import Cell, Column, Report, Series, Table
from takeup.training.pipelines.schedule import OpKind, PipelinePlan, Timeline
from takeup.training.pipelines.timing.evaluation import timeline_of
from takeup.training.stragglers.contract import Suspect
from takeup.training.stragglers.locate.standing import RankStanding
from takeup.training.stragglers.locate.whatif import LEAST_SAVING, Diagnosis
from takeup.training.traces.flight_recorder import StuckGroup

MS = 1e3
MOST_SPANS = 2_000  # more bars are indistinguishable on a screen
WORDS = {
    OpKind.FORWARD: "forward",
    OpKind.INPUT_GRADIENT: "backward, input",
    OpKind.WEIGHT_GRADIENT: "backward, weights",
    OpKind.FULL_BACKWARD: "backward",
}
STAGE_COLUMNS = (
    Column("stage"),
    Column("rank"),
    Column("F", "ms", 2),
    Column("B", "ms", 2),
    Column("W", "ms", 2),
    Column("warm-up"),
    Column("peak in flight on its rank"),
    Column("latency to next", "ms", 2),
    Column("service to next", "ms", 2),
)
COMPARISON_COLUMNS = (
    Column("planner"),
    Column("iteration", "ms", 2),
    Column("lower bound", "ms", 2),
    Column("gap", "%", 2),
    Column("bubbles", "%", 1),
    Column("peak in-flight micro-batches"),
    Column("fits memory"),
)


def stages_table(plan: PipelinePlan) -> Table:
    """One row per stage: operation times, warm-up, micro-batches held by its rank, and the link to the next."""
    profile, warmups = plan.profile, plan.schedule.warmups()
    links = [*((MS * link.latency_s, MS * link.service_s) for link in profile.links), (None, None)]
    rows = tuple(
        (
            number,
            profile.placement[number],
            MS * stage.forward_s,
            MS * stage.backward_s,
            MS * stage.weight_s,
            warmups[number],
            plan.peak_live[profile.placement[number]],
            *links[number],
        )
        for number, stage in enumerate(profile.stages)
    )
    return Table(f"Stages under {plan.planner}", STAGE_COLUMNS, rows, f"{'; '.join(plan.reasons)}; {_time_words(plan)}")


def _time_words(plan: PipelinePlan) -> str:
    return (
        f"{MS * plan.iteration_s:.4g} ms per iteration; no order takes less than {MS * plan.bound_s:.4g} ms, "
        f"so the gap is at most {plan.gap_share:.2%}"
    )


def comparison_table(plans: Sequence[PipelinePlan], timelines: Sequence[Timeline]) -> Table:
    """One row per planner."""
    rows = tuple(_row(plan, timeline) for plan, timeline in zip(plans, timelines, strict=True))
    note = "in flight: pairs of stage and micro-batch on one rank; planners that cut stages into chunks have more"
    return Table("Planners", COMPARISON_COLUMNS, rows, note)


def _row(plan: PipelinePlan, timeline: Timeline) -> tuple[Cell, ...]:
    return (
        plan.planner,
        MS * plan.iteration_s,
        MS * plan.bound_s,
        100 * plan.gap_share,
        100 * timeline.bubble_share,
        max(plan.peak_live),
        plan.fits_memory,
    )


def comparison_bars(plans: Sequence[PipelinePlan]) -> Series:
    """The iteration time of every planner."""
    rows: tuple[dict[str, Cell], ...] = tuple(
        {"planner": plan.planner, "iteration": MS * plan.iteration_s} for plan in plans
    )
    return Series("Iteration time", "planner", "iteration", rows, "planner", y_unit="ms", kind="bar")


def delay_series(plans: Mapping[float, Sequence[PipelinePlan]], kind: str) -> Series:
    """Iteration time by the delay, in milliseconds, of the slow links; one line per planner."""
    rows: tuple[dict[str, Cell], ...] = tuple(
        {"planner": plan.planner, "delay": delay_ms, "iteration": MS * plan.iteration_s}
        for delay_ms, given in plans.items()
        for plan in given
    )
    return Series(f"Iteration time by {kind}", "delay", "iteration", rows, "planner", None, "ms", "ms")


def report_of(result: PipelinePlan | Timeline) -> Report:
    """A plan, or when the operations of a schedule run, as a report."""
    tables: tuple[Table, ...]
    if isinstance(result, Timeline):
        title, tables, timeline = "Timeline", (_ranks_table(result),), result
    else:
        title, timeline = f"Plan of {result.planner}", timeline_of(result.schedule, result.profile)
        tables = (comparison_table([result], [timeline]), stages_table(result))
    return Report(title, "training", {}, 0, tables, (gantt(timeline),))


def _ranks_table(timeline: Timeline) -> Table:
    columns = (Column("rank"), Column("computes", "ms", 2), Column("idle", "%", 1), Column("peak in flight"))
    times = zip(timeline.starts_s, timeline.ends_s, timeline.peak_live, strict=True)
    busy = [(float((ends - starts).sum()), peak) for starts, ends, peak in times]
    rows = tuple(
        (rank, MS * busy_s, 100 * max(0.0, 1 - busy_s / timeline.iteration_s), peak)
        for rank, (busy_s, peak) in enumerate(busy)
    )
    return Table("Ranks", columns, rows, f"an iteration takes {MS * timeline.iteration_s:.4g} ms")


def gantt(timeline: Timeline, title: str = "What ranks do") -> Series:
    """Gantt chart with one lane per rank; only the beginning if there are too many operations."""
    spans = sorted(timeline.spans(), key=lambda span: (span.start_s, span.rank))
    shown = spans[:MOST_SPANS]
    rows: tuple[dict[str, Cell], ...] = tuple(
        {
            "rank": f"rank {span.rank}",
            "operation": WORDS[span.op.kind],
            "time": MS * span.start_s,
            "until": MS * span.end_s,
        }
        for span in sorted(shown, key=lambda span: (span.rank, span.start_s))
    )
    note = f"The first {len(shown)} of {len(spans)} operations." if len(shown) < len(spans) else ""
    return Series(title, "time", "rank", rows, "operation", x_unit="ms", kind="span", note=note, x_end="until")


def sampled_table(samples: Sequence[tuple[str, float, float, float, float]]) -> Table:
    """One row per planner: name, planned time, and mean, median and 95th percentile of the simulated times."""
    columns = (Column("planner"), *(Column(name, "ms", 2) for name in ("planned", "mean", "p50", "p95")))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, MS * planned_s, MS * mean_s, MS * p50_s, MS * p95_s) for name, planned_s, mean_s, p50_s, p95_s in samples
    )
    return Table("Iterations when operations vary", columns, rows)


# What if --------------------------------------------------------------------------------------------------------------

MOST_REPLICAS = 64


def causes_table(found: Diagnosis, note: str = "") -> Table:
    """One row per cause: the step time without it, and what that saves; the verdict is in the note."""
    columns = (Column("without"), Column("found"), Column("step", "s", 3), Column("saved", "%", 1))
    rows = tuple((each.cause, str(each), each.step_s, 100 * each.saved_share) for each in found.causes)
    least = f"no cause costs as much as {LEAST_SAVING:.0%}"
    verdict = least if found.verdict is None else f"{found.verdict}, costing {found.verdict.saved_share:.1%}"
    words = f"a step takes {found.step_s:.4g} s as simulated; {verdict}"
    return Table("Causes of delay", columns, rows, f"{words}; {note}" if note else words)


def workers_table(found: Diagnosis) -> Table:
    """A heat map of the workers: times the healthy ones of the same stage; the slowest replicas if there are many."""
    ranked = sorted(range(len(found.factors)), key=lambda replica: -max(found.factors[replica]))[:MOST_REPLICAS]
    columns = (Column("replica"), *(Column(f"stage {stage}", "x", 2) for stage in range(len(found.factors[0]))))
    return Table("Workers", columns, tuple((replica, *found.factors[replica]) for replica in sorted(ranked)))


def ranks_table(rows: Sequence[RankStanding], suspects: Sequence[Suspect]) -> Table:
    """One row per rank, the one that delays the others most first; the verdict is in the note."""
    columns = (
        *(Column("rank"), Column("own work", "ms", 2), Column("waiting", "ms", 2), Column("transfers", "ms", 2)),
        *(Column("last in", "%", 0), Column("costs", "%", 1)),
    )
    body = tuple(
        (row.rank, MS * row.own_s, MS * row.wait_s, MS * row.transfer_s, 100 * row.late_share, 100 * row.lost_share)
        for row in rows
    )
    compared = any(row.role_size > 1 for row in rows)
    none = "no rank is clearly slower than others" if compared else "no rank can be compared with another"
    verdict = " and ".join(map(str, suspects)) or none
    return Table("Ranks", columns, body, f"an iteration takes {MS * rows[0].iteration_s:.4g} ms; {verdict}")


def stuck_table(found: Sequence[StuckGroup]) -> Table:
    """One row per process group in which ranks have not made the same calls."""
    columns = (Column("group"), Column("call"), Column("ranks that made it"), Column("ranks that did not"))
    rows = tuple((each.group, each.number, len(each.calls), _listed(each)) for each in found)
    alike = "all ranks have made the same calls, so none hangs; the recorder does not show which rank is slow"
    return Table(
        "Calls that not all ranks have made", columns, rows, "; ".join(map(StuckGroup.sentence, found)) or alike
    )


def _listed(stuck: StuckGroup) -> str:
    return ", ".join(map(str, sorted(stuck.missing)[:MOST_REPLICAS]))
