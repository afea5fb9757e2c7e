"""Tables and charts of edge: decisions and reasons, policy comparisons, Gantt charts, measured executions."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from takeup.core.report import Cell, Column, Report, Series, Table
from takeup.edge.model import Allocation, Answer, Instance
from takeup.edge.results import Played, PlayedTask, ServiceWindow, SimulationResult
from takeup.edge.traces.library import BestKnown, CellTraits

MS = 1e3
TIMES = ("upload", "start", "end", "deadline")
DECISION_COLUMNS = (
    Column("device"),
    Column("offloads"),
    Column("subcarriers"),
    *(Column(name, "ms", 2) for name in TIMES),
    Column("energy", "mJ", 3),
    Column("local run", "mJ", 3),
    Column("why"),
)
COMPARISON_COLUMNS = (
    Column("policy"),
    Column("accepted", digits=2),
    Column("energy", "J", 4),
    Column("saving", "J", 4),
    Column("gap", "%", 2),
    Column("largest gap", "%", 2),
)
PLAYED_COLUMNS = (
    Column("device"),
    Column("bytes"),
    *(Column(f"{kind} {name}", "ms", 2) for name in TIMES[:3] for kind in ("planned", "real")),
    Column("deadline", "ms", 2),
    Column("core"),
    Column("over plan", "ms", 3),
    Column("in time"),
    Column("failure"),
)
SERVED_QUANTITIES = {
    "accept_share": "accepted",
    "miss_share": "deadline missed, of the accepted",
    "radio_share": "subcarriers in use",
    "cpu_share": "cores in use",
}


# Answers --------------------------------------------------------------------------------------------------------------


def decisions_table(instance: Instance, answer: Answer) -> Table:
    """One row for each device: what was decided for it, when, at what cost, and why."""
    plan = answer.allocation
    ends_s = plan.start_s + instance.run_s
    rows = tuple(
        (
            decision.device,
            decision.offload,
            ", ".join(map(str, plan.group(decision.device).tolist())) if decision.offload else "",
            *(_ms(times_s[decision.device]) for times_s in (plan.upload_s, plan.start_s, ends_s, instance.deadlines_s)),
            MS * float(plan.energies_j[decision.device]),
            MS * float(instance.local_j[decision.device]),
            decision.reason,
        )
        for decision in answer.decisions()
    )
    note = (
        f"{answer.policy}: {plan.num_accepted} of {instance.num_devices} devices offload, {answer.saving_j:.4g} J saved"
    )
    return Table("Decisions", DECISION_COLUMNS, rows, f"{note}{_gap_words(answer)}")


def _gap_words(answer: Answer) -> str:
    if answer.bound_j is None or answer.gap_share is None:
        return ""
    return f"; no allocation is worth more than {answer.bound_j:.4g} J, so at most {answer.gap_share:.2%} is missing"


def certificate_table(answer: Answer) -> Table:
    """What the plan is worth, what no plan exceeds, and the gap between them."""
    columns = (
        Column("policy"),
        Column("accepted"),
        Column("saving", "J", 4),
        Column("worth", "J", 4),
        Column("bound", "J", 4),
        Column("gap", "%", 2),
    )
    gap = None if answer.gap_share is None else 100 * answer.gap_share
    row = (answer.policy, answer.allocation.num_accepted, answer.saving_j, answer.worth_j, answer.bound_j, gap)
    return Table("Certificate", columns, (row,), "worth: saving plus values; no plan is worth more than the bound")


def prices_table(answer: Answer) -> Table | None:
    """What one more of each thing would be worth; None where the answer has no prices."""
    if answer.prices is None:
        return None
    rows = (("subcarrier", MS * answer.prices.subcarrier_j), ("core", MS * answer.prices.core_j))
    return Table("One more would be worth at most", (Column("what"), Column("worth", "mJ")), rows)


def comparison_table(answers: Mapping[str, Sequence[Answer]]) -> Table:
    """Means over instances, the same for every policy; a policy that has no bound borrows the best one there is."""
    bounds_j = _best_bounds(answers)
    rows = tuple(_comparison_row(policy, given, bounds_j) for policy, given in answers.items())
    counts = sorted({len(given) for given in answers.values()})
    note = (
        f"means of {' or '.join(map(str, counts))} instances; gap: share of the largest possible worth that is missing"
    )
    return Table("Policies", COMPARISON_COLUMNS, rows, f"{note}, at most")


def _best_bounds(answers: Mapping[str, Sequence[Answer]]) -> list[float | None]:
    """For every instance, the smallest bound that any policy gave."""
    by_instance = zip(*answers.values(), strict=True)
    known = [[answer.bound_j for answer in given if answer.bound_j is not None] for given in by_instance]
    return [min(bounds, default=None) for bounds in known]


def _comparison_row(policy: str, given: Sequence[Answer], bounds_j: Sequence[float | None]) -> tuple[Cell, ...]:
    gaps = [
        max(0.0, 1 - answer.worth_j / bound_j) if bound_j > 0 else 0.0
        for answer, bound_j in zip(given, bounds_j, strict=True)
        if bound_j is not None
    ]
    return (
        policy,
        _mean(answer.allocation.num_accepted for answer in given),
        _mean(answer.allocation.energy_j for answer in given),
        _mean(answer.saving_j for answer in given),
        _mean(100 * gap for gap in gaps),
        max((100 * gap for gap in gaps), default=None),
    )


def comparison_bars(answers: Mapping[str, Sequence[Answer]]) -> tuple[Series, Series]:
    """The mean energy and the mean number of accepted devices of every policy."""
    energies: list[dict[str, Cell]] = []
    accepted: list[dict[str, Cell]] = []
    for policy, given in answers.items():
        energies.append({"policy": policy, "energy": _mean(answer.allocation.energy_j for answer in given)})
        accepted.append({"policy": policy, "accepted": _mean(answer.allocation.num_accepted for answer in given)})
    return (
        Series("Energy of all devices", "policy", "energy", tuple(energies), "policy", y_unit="J", kind="bar"),
        Series("Devices that offload", "policy", "accepted", tuple(accepted), "policy", kind="bar"),
    )


def library_table(cells: Sequence[CellTraits], known: Mapping[int, BestKnown]) -> Table:
    """One row for each cell of the instance library."""
    names = ("cell", "scenario", "devices", "blocks", "cores", "groups", "rates")
    columns = (
        *(Column(name) for name in names),
        Column("worth", "J", 5),
        Column("bound", "J", 5),
        Column("gap", "%", 2),
    )
    rows = tuple((*_traits(cell), *_known(known.get(cell.number))) for cell in cells)
    found = sum(cell.number in known for cell in cells)
    return Table("Cells", columns, rows, f"best known plans and bounds of {found} of these {len(cells)} cells")


def _traits(cell: CellTraits) -> tuple[Cell, ...]:
    groups, rates = "contiguous" if cell.contiguous else "any", "3GPP" if cell.modulated else "Shannon"
    return (cell.number, cell.scenario, cell.num_devices, cell.num_subcarriers, cell.num_cores, groups, rates)


def _known(best: BestKnown | None) -> tuple[Cell, ...]:
    if best is None:
        return (None, None, None)
    gap = 100 * max(0.0, 1 - best.worth_j / best.bound_j) if best.bound_j > 0 else 0.0
    return (best.worth_j, best.bound_j, gap)


# Plans over time ------------------------------------------------------------------------------------------------------


def radio_gantt(instance: Instance, allocation: Allocation) -> Series:
    """Which device uploads over which subcarrier, and when."""
    rows: list[dict[str, Cell]] = []
    for subcarrier, owner in enumerate(allocation.owners.tolist()):
        uploads = owner >= 0 and bool(allocation.offloads[owner])
        times_s = (instance.releases_s[owner], allocation.upload_s[owner]) if uploads else (math.nan, math.nan)
        span: dict[str, Cell] = {"time": _ms(times_s[0]), "until": _ms(times_s[1])}
        rows.append({"subcarrier": str(subcarrier), "device": str(owner) if uploads else "none", **span})
    used = tuple(row for row in rows if row["device"] != "none")
    note = f"{len(rows) - len(used)} of {len(rows)} subcarriers are not used." if len(used) < len(rows) else ""
    return Series("Uploads", "time", "subcarrier", used, "device", x_unit="ms", kind="span", note=note, x_end="until")


def cpu_gantt(instance: Instance, allocation: Allocation) -> Series:
    """Which task runs on which core, and when, with its deadline; tasks that no core has time for are set apart."""
    rows: list[dict[str, Cell]] = []
    for device, lane in sorted(_lanes(instance, allocation), key=lambda pair: pair[1]):
        spare = lane - instance.num_cores + 1
        start_s, run_s = float(allocation.start_s[device]), float(instance.run_s[device])
        times_ms = {"time": _ms(start_s), "until": _ms(start_s + run_s), "deadline": _ms(instance.deadlines_s[device])}
        rows.append(
            {"core": f"core {lane + 1}" if spare < 1 else f"no core, {spare}", "device": str(device), **times_ms}
        )
    return _core_gantt("Runs on the cores", rows)


def _lanes(instance: Instance, allocation: Allocation) -> list[tuple[int, int]]:
    """A lane for every task that offloads: the core that is free for longest, or one beyond the cores, if none is."""
    num_cores, lanes = instance.num_cores, []
    free_s = [0.0] * (num_cores + allocation.num_accepted)
    offloaders = np.flatnonzero(allocation.offloads).tolist()
    for device in sorted(offloaders, key=lambda device: float(allocation.start_s[device])):
        start_s = float(allocation.start_s[device])
        choices = [int(np.argmin(free_s[:num_cores])), *range(num_cores, len(free_s))]
        lane = next(lane for lane in choices if free_s[lane] <= start_s * (1 + 1e-9))
        free_s[lane] = start_s + float(instance.run_s[device])
        lanes.append((device, lane))
    return lanes


def _core_gantt(title: str, rows: Sequence[Mapping[str, Cell]]) -> Series:
    note = "A tall line is the deadline of the device of its colour."
    return Series(title, "time", "core", tuple(rows), "device", None, "ms", "", "span", note, "until", "deadline")


# What was played and simulated ----------------------------------------------------------------------------------------


def played_table(played: Played) -> Table:
    """One row for each device that offloaded: planned and measured times."""
    rows = tuple(_played_row(played, task) for task in played.tasks)
    middle, last = (played.slack_used_s(share) for share in (0.5, 0.99))
    over = (
        ""
        if middle is None or last is None
        else f"; over the plan by {MS * middle:.2f} ms (p50), {MS * last:.2f} ms (p99)"
    )
    note = (
        f"{played.num_met} in time, {played.num_late} late, {played.num_failed} failed{over}; link {played.link}, "
        f"dispatch {played.dispatch}, a second took {played.slowdown:g} s, a bit {played.bits_factor:g} bits, and "
        f"{MS * played.tolerance_s:g} ms after the deadline is still in time, both by the clock of the machine"
    )
    return Table("Planned and measured times", PLAYED_COLUMNS, rows, note)


def _played_row(played: Played, task: PlayedTask) -> tuple[Cell, ...]:
    return (
        task.device,
        task.num_bytes,
        *(
            _ms(moment_s)
            for pair in (
                (task.planned_upload_s, task.upload_s),
                (task.planned_start_s, task.start_s),
                (task.planned_end_s, task.end_s),
            )
            for moment_s in pair
        ),
        _ms(task.deadline_s),
        None if task.core is None else task.core + 1,
        _ms(task.over_plan_s),
        played.met(task),
        task.failure,
    )


def played_gantt(played: Played) -> Series:
    """The measured runs on the cores; tasks that never ran are left out."""
    rows: list[dict[str, Cell]] = [
        {
            "core": f"core {task.core + 1}",
            "device": str(task.device),
            "time": _ms(task.start_s),
            "until": _ms(task.end_s),
            "deadline": _ms(task.deadline_s),
        }
        for task in played.tasks
        if task.core is not None and task.end_s is not None
    ]
    return _core_gantt("Runs as measured", sorted(rows, key=lambda row: str(row["core"])))


def served_table(runs: Sequence[SimulationResult]) -> Table:
    """One row for each simulation of tasks that arrive over time."""
    columns = (
        Column("policy"),
        Column("tasks"),
        *(Column(name, "%", 2) for name in SERVED_QUANTITIES.values()),
        Column("energy", "mJ per task"),
        Column("plans"),
    )
    rows = tuple(
        (
            run.policy,
            run.whole.num_arrived,
            *(_percent(run.whole, name) for name in SERVED_QUANTITIES),
            _ms(run.whole.energy_per_task_j),
            run.num_plans,
        )
        for run in runs
    )
    return Table("Tasks that arrive over time", columns, rows)


def served_series(runs: Sequence[SimulationResult], num_windows: int = 40) -> Series:
    """How much was accepted, missed and in use over time, a line for each policy."""
    rows: tuple[dict[str, Cell], ...] = tuple(
        {"policy": run.policy, "time": window.begin_s, "quantity": label, "share": _percent(window, name)}
        for name, label in SERVED_QUANTITIES.items()
        for run in runs
        for window in run.over_time(num_windows)
    )
    return Series("Over time", "time", "share", rows, "policy", "quantity", "s", "%", kind="step")


def _percent(window: ServiceWindow, name: str) -> float | None:
    share = float(getattr(window, name))
    return None if math.isnan(share) else 100 * share


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None or math.isnan(seconds) else MS * float(seconds)


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else None


# Results of the library -----------------------------------------------------------------------------------------------


def report_of(result: Answer | Played | SimulationResult) -> Report:
    """A plan, a measured execution or a simulation as a report."""
    match result:
        case Answer():
            title, tables, chart = "Plan", [_plan_table(result), certificate_table(result)], _energy_bars(result)
        case Played():
            title, tables, chart = "Execution", [played_table(result)], played_gantt(result)
        case SimulationResult():
            title, tables, chart = "Simulation", [served_table([result])], served_series([result])
    return Report(title, "edge", {}, 0, tuple(tables), (chart,))


def _plan_table(answer: Answer) -> Table:
    """One row for each device, with what is known without its instance."""
    plan = answer.allocation
    columns = (Column("device"), Column("offloads"), Column("subcarriers"), Column("energy", "mJ", 3), Column("why"))
    rows = tuple(
        (each.device, each.offload, len(plan.group(each.device)), _ms(plan.energies_j[each.device]), each.reason)
        for each in answer.decisions()
    )
    return Table("Decisions", columns, rows)


def _energy_bars(answer: Answer) -> Series:
    rows: tuple[dict[str, Cell], ...] = tuple(
        {
            "device": str(each.device),
            "energy": _ms(answer.allocation.energies_j[each.device]),
            "runs": "at the site" if each.offload else "on the device",
        }
        for each in answer.decisions()
    )
    return Series("Energy of the devices", "device", "energy", rows, "runs", y_unit="mJ", kind="bar")
