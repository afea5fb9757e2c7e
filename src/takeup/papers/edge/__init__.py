"""Joint subcarrier and CPU-time allocation reproduced: Figure 2, two sweeps, and the loss of each method.

The body of the paper could not be read. Its setting is known, so every curve is computed again, on our instances, and
compared with an independent program; gaps to the optimum are compared with bars set by us.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.report import Cell, Check, Column, Report, Series, Table
from takeup.core.seeds import Streams
from takeup.edge.model import Instance
from takeup.edge.planning import solve
from takeup.edge.traces.generators import paper_setting, radio_tight_setting
from takeup.edge.validate import violation_of_answer
from takeup.papers import Findings, Numbers, report_parts
from takeup.papers.edge.baselines import COMPARED

# Many instances under many policies: energies, accepted requests and savings -----------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class PolicySample:
    """One number per instance for a policy."""

    energy_j: Floats
    accepted: Floats
    saving_j: Floats


def run_policies(instances: Sequence[Instance], policies: Sequence[str]) -> dict[str, PolicySample]:
    """Run every policy on every instance; each answer is checked by the validator."""
    return {name: _run_policy(instances, name) for name in policies}


def _run_policy(instances: Sequence[Instance], name: str) -> PolicySample:
    rows = []
    policy = COMPARED[name]
    for instance in instances:
        answer = policy.allocate(instance)
        violation = violation_of_answer(instance, answer, ignores_cpu=policy.ignores_cpu)
        assert violation is None, violation
        rows.append((answer.allocation.energy_j, answer.allocation.num_accepted, answer.saving_j))
    return PolicySample(*np.array(rows, float).T)


# Figure 2 and the two sweeps: energy and accepted requests by number of devices, speed of the CPU, subcarriers --------

Samples = list[dict[str, PolicySample]]
MakeInstance = Callable[[np.random.Generator, int], Instance]

FIGURE_2 = ("local", "radio_first", "cpu_first", "joint", "joint_append", "greedy", "auto", "exact", "min_group")
SWEEPS = ("local", "radio_first", "joint", "auto")
LAST_DIGIT = 0.005  # half of the last one of the numbers to compare with


def figure_2(expected: Numbers) -> Findings:
    """Energy by number of devices under every policy, and the gap of each to the optimum."""
    part = expected["figure_2"]
    samples = _sample_sweep(expected, "figure_2", "num_devices", paper_setting)
    gaps = _saving_gaps(samples)
    title, devices = "Figure 2: mean energy by number of devices", part["num_devices"]
    tables = (
        _mean_table(title, "devices", "J", devices, samples, "energy_j"),
        _mean_table("Accepted requests by number of devices", "devices", "", devices, samples, "accepted"),
        _gap_table(devices, gaps),
    )
    checks = _mean_checks(expected, "figure_2", "num_devices", samples) + _gap_checks(part, gaps)
    return Findings(checks, tables, (_energy_chart(title, "devices", devices, samples),))


def cpu_sweep(expected: Numbers) -> Findings:
    """The joint gain peaks where CPU and radio are balanced, and vanishes when one of them is abundant."""
    return _sweep_findings(
        expected, "cpu_sweep", "edge_mhz", "CPU speed", lambda random, value: paper_setting(random, 8, 4, 1e6 * value)
    )


def radio_sweep(expected: Numbers) -> Findings:
    """The same band divided into more subcarriers serves more devices."""
    return _sweep_findings(
        expected,
        "radio_sweep",
        "num_subcarriers",
        "subcarriers",
        lambda random, value: paper_setting(random, 12, value, 1.2e9),
    )


def _sweep_findings(expected: Numbers, name: str, axis: str, label: str, make: MakeInstance) -> Findings:
    samples = _sample_sweep(expected, name, axis, make)
    values = expected[name][axis]
    titles = {"energy_j": f"Mean energy by {label}", "accepted": f"Accepted requests by {label}"}
    tables = tuple(
        _mean_table(title, label, "J" if kind == "energy_j" else "", values, samples, kind)
        for kind, title in titles.items()
    )
    chart = _energy_chart(titles["energy_j"], label, values, samples)
    return Findings(_mean_checks(expected, name, axis, samples), tables, (chart,))


def _sample_sweep(expected: Numbers, name: str, axis: str, make: MakeInstance) -> Samples:
    policies = FIGURE_2 if name == "figure_2" else SWEEPS
    samples = []
    for value in expected[name][axis]:
        random = Streams(expected["setting"]["seed"]).stream(f"{name} {value}")
        samples.append(run_policies([make(random, value) for _ in range(expected[name]["num_instances"])], policies))
    return samples


def _mean_checks(expected: Numbers, name: str, axis: str, samples: Samples) -> tuple[Check, ...]:
    """Means against those of a program with other instances of the setting.

    Energies are compared over that of the best policy on the same instances: these ratios differ by a few percent from
    sample to sample, the energies themselves by up to a third.
    """
    return tuple(
        check
        for number, value in enumerate(expected[name][axis])
        for check in _checks_at(expected, name, number, f"{axis} {value}", samples[number])
    )


def _checks_at(expected: Numbers, name: str, number: int, where: str, sample: dict[str, PolicySample]) -> list[Check]:
    part, shares = expected[name], expected["setting"]
    theirs = {policy: means[number] for policy, means in part["energy_j"].items()}
    ours = {policy: float(sample[policy].energy_j.mean()) for policy in theirs}
    best = part["best"]
    rows = [
        (f"energy of {policy} over {best}", ours[policy] / ours[best], theirs[policy] / theirs[best], "ratio_share")
        for policy in theirs
        if policy not in {best, "local"}
    ]
    if "local" in theirs:
        rows += [("energy of local", ours["local"], theirs["local"], "level_share")]
        saved = f"energy that {best} saves"
        rows += [(saved, ours["local"] - ours[best], theirs["local"] - theirs[best], "level_share")]
    else:
        rows += [(f"energy of {best}", ours[best], theirs[best], "level_share")]
    for policy, means in part.get("accepted", {}).items():
        rows += [(f"accepted of {policy}", float(sample[policy].accepted.mean()), means[number], "ratio_share")]
    return [
        Check.near(f"{title}, {where}", mine, theirs, shares[share] * theirs + LAST_DIGIT, source=part["source"])
        for title, mine, theirs, share in rows
    ]


def _saving_gaps(samples: Samples) -> list[dict[str, Sequence[float]]]:
    """Gap of every policy as a share of the optimum's saving, in percent, by instance."""
    return [
        {
            name: (100 * (1 - sample[name].saving_j / np.maximum(sample["exact"].saving_j, 1e-300))).tolist()
            for name in ("radio_first", "cpu_first", "joint", "greedy", "auto")
        }
        for sample in samples
    ]


def _gap_table(values: Sequence[int], gaps: list[dict[str, Sequence[float]]]) -> Table:
    names = list(gaps[0])
    columns = [Column("devices")]
    columns += [Column(f"{name} {kind}", "%", 2) for name in names for kind in ("mean", "max")]
    rows = tuple(
        (value, *(f(gap[name]) for name in names for f in (np.mean, np.max)))
        for value, gap in zip(values, gaps, strict=True)
    )
    return Table("Lost share of the possible saving", tuple(columns), tuple(tuple(map(float, row)) for row in rows))


def _gap_checks(part: Numbers, gaps: list[dict[str, Sequence[float]]]) -> tuple[Check, ...]:
    means = max(float(np.mean(gap["auto"])) for gap in gaps)
    worst = max(float(np.max(gap["auto"])) for gap in gaps)
    bars = part["gaps"]
    return (
        Check.at_most("auto, lost saving, largest mean", means, bars["auto_mean"], unit="%"),
        Check.at_most("auto, lost saving, largest of all", worst, bars["auto_max"], unit="%"),
    )


def _mean_table(title: str, axis: str, unit: str, values: Sequence[int], samples: Samples, kind: str) -> Table:
    names = list(samples[0])
    columns = (Column(axis), *(Column(name, unit, 3 if unit else 2) for name in names))
    rows = tuple(
        (value, *(float(getattr(sample[name], kind).mean()) for name in names))
        for value, sample in zip(values, samples, strict=True)
    )
    return Table(title, columns, rows)


def _energy_chart(title: str, axis: str, values: Sequence[int], samples: Samples) -> Series:
    rows: tuple[Mapping[str, Cell], ...] = tuple(
        {"policy": name, axis: value, "energy": float(sample[name].energy_j.mean())}
        for value, sample in zip(values, samples, strict=True)
        for name in sample
    )
    return Series(title, axis, "energy", rows, "policy", y_unit="J")


# Long uploads, where the greedy algorithm of the paper loses: the loss, certified by a bound for every instance -------

RADIO_TIGHT_POLICIES = ("radio_first", "cpu_first", "joint", "gma", "car_p", "jtora", "greedy")


def radio_tight(expected: Numbers) -> Findings:
    """Gaps of all policies to one bound, that of `auto`."""
    part = expected["radio_tight"]
    random = Streams(expected["setting"]["seed"]).stream("radio_tight")
    rows = []
    for _ in range(part["num_instances"]):
        rows.append(_gaps_to_bound(radio_tight_setting(random, part["num_devices"])))
    gaps = dict(zip((*RADIO_TIGHT_POLICIES, "auto"), np.array(rows).T, strict=True))
    columns = (Column("policy"), Column("mean", "%", 2), Column("median", "%", 2), Column("max", "%", 2))
    table = Table(
        "Where uploads are long: largest possible loss of saving",
        columns,
        tuple(
            (name, float(gap.mean()), float(np.median(gap)), float(gap.max()))  # one row for each policy
            for name, gap in gaps.items()
        ),
        "against the bound of auto, which no allocation exceeds; the true loss is smaller",
    )
    lost = _greedy_loss_percent(part, random)
    return Findings(_radio_tight_checks(part, gaps["auto"].tolist(), lost), (table,))


def _greedy_loss_percent(part: Numbers, random: np.random.Generator) -> float:
    """The largest share of the saving of a short search that joint does not reach, in percent."""
    cells = [radio_tight_setting(random, part["num_devices"]) for _ in range(part["num_greedy_instances"])]
    pairs = [(COMPARED["joint"].allocate(cell).saving_j, solve(cell, "exact").saving_j) for cell in cells]
    return 100 * max(1 - joint_j / ours_j for joint_j, ours_j in pairs)


def _gaps_to_bound(instance: Instance) -> list[float]:
    auto = COMPARED["auto"].allocate(instance)
    assert auto.bound_j is not None
    savings_j = [COMPARED[name].allocate(instance).saving_j for name in RADIO_TIGHT_POLICIES]
    return [100 * (1 - saving_j / auto.bound_j) for saving_j in (*savings_j, auto.saving_j)]


def _radio_tight_checks(part: Numbers, gaps: list[float], lost: float) -> tuple[Check, ...]:
    why = f"of {part['num_greedy_instances']} cells: the greedy of the paper is no longer near the optimum"
    return (
        Check.at_most("auto, certified gap, mean", float(np.mean(gaps)), part["auto_mean"], unit="%"),
        Check.at_most("auto, certified gap, largest", max(gaps), part["auto_max"], unit="%"),
        Check.at_least("joint, lost against ours, largest", lost, part["joint_loses_at_least"], unit="%", why=why),
    )


def reproduce(*, quiet: bool = False) -> Report:
    """All curves and gaps, checked."""
    return report_parts("edge", (figure_2, cpu_sweep, radio_sweep, radio_tight), quiet=quiet)
