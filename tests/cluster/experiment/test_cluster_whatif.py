"""`whatif`: records in, one table out, with the site's own policy first and ours last; `try` answers the same files."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest

from takeup.cluster.experiment import ClusterScenario, run
from takeup.cluster.experiment.whatif import FRONTIER, column_map
from takeup.cluster.file_kinds import answer_records
from takeup.core.file_kinds import rows_of, sample_of
from takeup.core.report import Report
from takeup.errors import BadInput
from takeup.tryfile import recognise

HEADER = "JobID|Account|QOS|Submit|Start|End|AllocTRES"


def sacct(folder: Path, num_days: float = 5) -> Path:
    """A fleet of 32 GPUs served first come, first served, with a spot job on most of what is left."""
    rng, lines, begin = np.random.default_rng(5), [HEADER], np.datetime64("2026-11-02T00:00:00")
    for number in range(int(24 * num_days)):
        when = begin + np.timedelta64(3600 * number, "s")
        qos, gpus, hours = ("spot", 8, 6) if number % 3 else ("normal", int(rng.choice([1, 2, 8])), 4)
        lines.append(
            f"{number}|lab|{qos}|{when}|{when}|{when + np.timedelta64(3600 * hours, 's')}|gres/gpu:a100={gpus}"
        )
    path = folder / "sacct.txt"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def report_of(path: Path | str, **values: object) -> Report:
    scenario = {"verb": "whatif", "records": str(path), "nodes": "a100=4x8", **values}
    return run(ClusterScenario.model_validate(scenario), quiet=True)


def test_the_sites_own_policy_comes_first_and_ours_last(tmp_path: Path) -> None:
    report = report_of(sacct(tmp_path), prices=("A100=2",))
    rows = rows_of(report)

    assert [row["policy"] for row in rows] == ["slurm", "fifo", "high_first", "kube", "gfs"]
    assert rows[0]["stands for"].startswith("the site's own policy")
    assert rows[0]["a month"] == 0
    assert rows[-1]["stands for"] == "takeup"
    assert rows[-1]["from"] <= rows[-1]["a month"] <= rows[-1]["to"]
    assert len(report.series) == 1
    assert "allocation on record" not in " ".join(report.notes)  # every start is its submission: that is no record


def test_the_price_of_a_model_doubles_the_money(tmp_path: Path) -> None:
    once, twice = (rows_of(report_of(sacct(tmp_path), prices=(f"a100={usd}",)))[-1]["a month"] for usd in (1, 2))

    assert twice == pytest.approx(2 * once)


def test_without_a_price_money_is_counted_in_gpu_hours_and_says_so(tmp_path: Path) -> None:
    assert "one USD is one GPU-hour" in " ".join(report_of(sacct(tmp_path)).notes)


def test_jobs_that_save_when_told_lose_less(tmp_path: Path) -> None:
    rows = rows_of(report_of(sacct(tmp_path), saves_s=60.0))

    assert rows[-1]["policy"] == "gfs_notice"
    assert rows[-1]["lost"] <= min(row["lost"] for row in rows if row["evictions"])


def test_the_frontier_begins_with_fifo(tmp_path: Path) -> None:
    rows = {row["policy"]: row for row in rows_of(report_of(sacct(tmp_path), frontier=True))}
    prices = [f"gfs at {price:g}" for price in FRONTIER]

    assert list(rows)[-len(prices) :] == prices
    assert rows["gfs at 0"]["useful GPU time"] == rows["fifo"]["useful GPU time"]
    assert rows["gfs at 0"]["evictions"] == 0
    assert rows["gfs at 100"]["high JQT"] <= rows["gfs at 0"]["high JQT"]


def test_records_are_read_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(sacct(tmp_path).read_bytes())))

    assert rows_of(report_of("-"))[0]["policy"] == "slurm"


def test_a_record_of_some_hours_has_no_month(tmp_path: Path) -> None:
    row = rows_of(report_of(sacct(tmp_path, num_days=0.5), nodes=None))[-1]

    assert row["a month"] is None
    assert row["useful GPU time"] > 0


def test_try_recognises_records_and_answers_in_three_sentences(tmp_path: Path) -> None:
    path = sacct(tmp_path)
    answer = answer_records(path, quiet=True)

    assert recognise(sample_of(path)).name == "job records of Slurm (sacct)"
    assert len(answer.sentences) == 3
    assert answer.next_command.startswith("takeup cluster whatif --sacct ")


def test_a_map_names_columns() -> None:
    assert column_map(("spot=best_effort=1,submit=when", "gpus=n")) == {
        "spot": "best_effort=1", "submit": "when", "gpus": "n",
    }  # fmt: skip
    with pytest.raises(BadInput, match="maps nothing"):
        column_map(("submit",))
