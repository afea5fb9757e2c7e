"""For how long a quota was spent, as both versions of control groups say it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from takeup.training.stragglers.watch.run_queue import control_group, throttled_ns

FIRST = "9:name=systemd:/\n4:memory:/jobs\n2:cpu,cpuacct:/jobs/7\n3:cpuset:/\n0::/\n"
SECOND = "0::/user.slice/rank:0\n"


@pytest.mark.parametrize(
    ("said", "folder"),
    [(FIRST, "groups/cpu,cpuacct/jobs/7"), (SECOND, "groups/user.slice/rank:0"), ("1:memory:/a\n", None), ("x", None)],
)
def test_the_group_that_shares_out_cores_is_found(tmp_path: Path, said: str, folder: str | None) -> None:
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "cgroup").write_text(said)

    found = control_group(5, tmp_path, tmp_path / "groups")

    assert found == (None if folder is None else tmp_path / folder)


@pytest.mark.parametrize(
    ("said", "expected_ns"),
    [
        ("nr_periods 3\nnr_throttled 2\nthrottled_time 1500\n", 1500),
        ("usage_usec 9\nthrottled_usec 12\nnr_bursts 0\n", 12_000),
        ("usage_usec 9\n", 0),
        ("throttled_usec many\n", 0),
        ("throttled_usec\n", 0),
    ],
)
def test_both_versions_say_for_how_long_a_quota_was_spent(tmp_path: Path, said: str, expected_ns: int) -> None:
    (tmp_path / "cpu.stat").write_text(said)

    assert throttled_ns(tmp_path) == expected_ns


def test_where_there_are_no_groups_nothing_was_spent(tmp_path: Path) -> None:
    assert control_group(os.getpid(), tmp_path) is None
    assert throttled_ns(None) == 0
    assert throttled_ns(tmp_path) == 0
