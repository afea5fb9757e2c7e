"""Figure 2 and the two sweeps: energy and accepted requests by number of devices, speed of the CPU, subcarriers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from takeup.core.report import Cell, Check, Column, Series, Table
from takeup.core.seeds import Streams
from takeup.edge.model import Instance
from takeup.edge.traces.generators import paper_setting
from takeup.papers.edge.samples import PolicySample, mean_check, run_policies
from takeup.papers.findings import Findings

Numbers = Mapping[str, Any]
Tick = Callable[[], None]
Samples = list[dict[str, PolicySample]]

FIGURE_2 = ("local", "radio_first", "cpu_first", "joint", "joint_append", "joint_plus", "exact", "min_group")
SWEEPS = ("local", "radio_first", "joint", "joint_plus")


def figure_2(expected: Numbers, tick: Tick) -> Findings:
    """Energy by number of devices under every policy, and the gap of each to the optimum."""
    part = expected["figure_2"]
    samples = _sample_sweep(expected, "figure_2", "num_devices", paper_setting, tick)
    gaps = _saving_gaps(samples)
    tables = (
        _mean_table(
            "Figure 2: mean energy by number of devices", "devices", "J", part["num_devices"], samples, "energy_j"
        ),
        _mean_table("Accepted requests by number of devices", "devices", "", part["num_devices"], samples, "accepted"),
        _gap_table(part["num_devices"], gaps),
    )
    chart = _energy_chart("Figure 2: mean energy by number of devices", "devices", part["num_devices"], samples)
    return Findings(
        _mean_checks(expected, "figure_2", "num_devices", samples) + _gap_checks(part, gaps), tables, (chart,)
    )


def cpu_sweep(expected: Numbers, tick: Tick) -> Findings:
    """The joint gain peaks where CPU and radio are balanced, and vanishes when one of them is abundant."""
    return _sweep_findings(
        expected,
        "cpu_sweep",
        "edge_mhz",
        "CPU speed",
        lambda random, value: paper_setting(random, 8, 4, 1e6 * value),
        tick,
    )


def radio_sweep(expected: Numbers, tick: Tick) -> Findings:
    """The same band divided into more subcarriers serves more devices."""
    return _sweep_findings(
        expected,
        "radio_sweep",
        "num_subcarriers",
        "subcarriers",
        lambda random, value: paper_setting(random, 12, value, 1.2e9),
        tick,
    )


def _sweep_findings(
    expected: Numbers,
    name: str,
    axis: str,
    label: str,
    make: Callable[[np.random.Generator, int], Instance],
    tick: Tick,
) -> Findings:
    samples = _sample_sweep(expected, name, axis, make, tick)
    values = expected[name][axis]
    titles = {"energy_j": f"Mean energy by {label}", "accepted": f"Accepted requests by {label}"}
    tables = tuple(
        _mean_table(title, label, "J" if kind == "energy_j" else "", values, samples, kind)
        for kind, title in titles.items()
    )
    chart = _energy_chart(titles["energy_j"], label, values, samples)
    return Findings(_mean_checks(expected, name, axis, samples), tables, (chart,))


def _sample_sweep(
    expected: Numbers, name: str, axis: str, make: Callable[[np.random.Generator, int], Instance], tick: Tick
) -> Samples:
    policies = FIGURE_2 if name == "figure_2" else SWEEPS
    samples = []
    for value in expected[name][axis]:
        random = Streams(expected["setting"]["seed"]).stream(f"{name} {value}")
        samples.append(run_policies([make(random, value) for _ in range(expected[name]["num_instances"])], policies))
        tick()
    return samples


def _mean_checks(expected: Numbers, name: str, axis: str, samples: Samples) -> tuple[Check, ...]:
    part, errors = expected[name], expected["setting"]["sampling_errors"]
    checks = []
    for kind, unit in (("energy_j", "J"), ("accepted", "")):
        for policy, means in part.get(kind, {}).items():
            for value, sample, mean in zip(part[axis], samples, means, strict=True):
                ours = getattr(sample[policy], kind)
                title = f"{kind.removesuffix('_j')} of {policy}, {axis} {value}"
                checks.append(mean_check(title, ours, mean, errors=errors, unit=unit, source=part["source"]))
    return tuple(checks)


def _saving_gaps(samples: Samples) -> list[dict[str, Sequence[float]]]:
    """Gap of every policy as a share of the optimum's saving, in percent, by instance."""
    return [
        {
            name: (100 * (1 - sample[name].saving_j / np.maximum(sample["exact"].saving_j, 1e-300))).tolist()
            for name in ("radio_first", "cpu_first", "joint", "joint_plus")
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
    means = max(float(np.mean(gap["joint_plus"])) for gap in gaps)
    worst = max(float(np.max(gap["joint_plus"])) for gap in gaps)
    bars = part["gaps"]
    return (
        Check.at_most("joint_plus, lost saving, largest mean", means, bars["joint_plus_mean"], unit="%"),
        Check.at_most("joint_plus, lost saving, largest of all", worst, bars["joint_plus_max"], unit="%"),
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
