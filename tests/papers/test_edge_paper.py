"""The reproduction of joint offloading: every curve and gap, and that its checks can fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from reproduced import reproduced, together
from takeup.core.report import Report, Table
from takeup.edge.traces.generators import paper_setting
from takeup.papers import numbers
from takeup.papers.edge import _checks_at, run_policies

EXPECTED = numbers("edge")


pytestmark = together


@pytest.fixture(scope="module")
def report() -> Report:
    return reproduced("edge")


def table(report: Report, title: str) -> Table:
    return next(table for table in report.tables if table.title == title)


def column(report: Report, title: str, name: str) -> list[float]:
    found = table(report, title)
    place = [column.name for column in found.columns].index(name)
    return [float(str(row[place])) for row in found.rows]


def test_every_check_holds(report: Report) -> None:
    assert [check.name for check in report.checks if not check.holds] == []


def test_nothing_is_said_to_be_printed_in_the_paper(report: Report) -> None:
    assert {check.source for check in report.checks} == {"measured", "bar"}


def test_every_measured_mean_is_compared(report: Report) -> None:
    names = [check.name for check in report.checks]
    for part, axis in (("figure_2", "num_devices"), ("cpu_sweep", "edge_mhz"), ("radio_sweep", "num_subcarriers")):
        for policy in EXPECTED[part]["energy_j"]:
            for value in EXPECTED[part][axis]:
                about = [it for it in names if it.startswith("energy") and it.endswith(f", {axis} {value}")]
                assert any(policy in it for it in about), (policy, axis, value)
        for policy in EXPECTED[part].get("accepted", {}):
            assert {f"accepted of {policy}, {axis} {value}" for value in EXPECTED[part][axis]} <= {*names}


@pytest.mark.parametrize(("better", "worse"), [("exact", "greedy"), ("exact", "joint"), ("joint", "radio_first")])
def test_the_curves_lie_in_the_order_of_the_figure(report: Report, better: str, worse: str) -> None:
    title = "Figure 2: mean energy by number of devices"
    lower, upper = column(report, title, better), column(report, title, worse)

    assert all(low <= high * (1 + 1e-9) for low, high in zip(lower, upper, strict=True))


def test_the_joint_gain_vanishes_where_the_cpu_is_plentiful(report: Report) -> None:
    radio, joint = (
        np.array(column(report, "Accepted requests by CPU speed", name)) for name in ("radio_first", "joint")
    )

    assert (joint - radio).argmax() not in {len(joint) - 1, len(joint) - 2}
    assert joint[-1] - radio[-1] < 0.1


def test_a_policy_that_needs_a_fifth_more_than_the_best_fails() -> None:
    cells = [paper_setting(np.random.default_rng(seed), 12, 4, 1.2e9) for seed in range(40)]
    sample = run_policies(cells, ["joint", "radio_first"])
    worse = sample | {"radio_first": replace(sample["radio_first"], energy_j=1.2 * sample["radio_first"].energy_j)}
    right, wrong = (
        {check.name: check for check in _checks_at(EXPECTED, "radio_sweep", 1, "here", each)}
        for each in (sample, worse)
    )

    assert right["energy of radio_first over joint, here"].holds
    assert not wrong["energy of radio_first over joint, here"].holds
