"""Four real ranks over Gloo: gradients are exact under every order, slow links are found, failures end the job."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from takeup.training.pipelines.schedule import Schedule

PROGRAM = Path(__file__).parent / "pipeline_ranks.py"
GUIDE = Path(__file__).parents[4] / "docs/guides/adaptive-pipeline.md"
FENCE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
EXACT = 1e-12  # in double precision, with gradients around 1e-3
LOOPBACK = {"linux": "lo", "darwin": "lo0"}
CUT = "breaks"
HEALTHY, BROKEN = "swaps,unsplit,adapts,pretends,chunks,delegates,recovers,few,quarrels,confuses,disagrees", "fails"
STRUCK = [f"{word}_while_{when}" for word in ("killed", "stopped") for when in ("computing", "planning")]
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: pip install 'takeup[torch]'"),
    pytest.mark.skipif(sys.platform not in LOOPBACK, reason="needs processes that fork"),
    pytest.mark.xdist_group("pytorch"),
]


class Jobs(NamedTuple):
    """Where the jobs wrote to, and what they said."""

    folder: Path
    stderr: str

    def written(self, job: str) -> list[dict[str, Any]]:
        """What every rank of the job found."""
        return [json.loads(path.read_text("utf-8")) for path in sorted((self.folder / job).glob("[0-3].json"))]

    def codes(self, job: str) -> list[int]:
        """With which code every rank of the job ended."""
        codes: list[int] = json.loads((self.folder / job / "codes.json").read_text("utf-8"))
        return codes


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """All jobs, run to their end; one that hangs is a failure."""
    folder = tmp_path_factory.mktemp("jobs")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": LOOPBACK[sys.platform], "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(PROGRAM.parents[3])
    (folder / "train.py").write_text(FENCE.findall(GUIDE.read_text("utf-8"))[0])
    command = [sys.executable, str(PROGRAM), str(folder), HEALTHY, BROKEN, CUT, *STRUCK, str(folder / "train.py")]
    ran = subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True, timeout=280, env=environment)
    return Jobs(folder, ran.stderr)


@pytest.fixture(scope="module")
def ranks(jobs: Jobs) -> list[dict[str, Any]]:
    """What the ranks of the healthy job found."""
    assert jobs.codes(HEALTHY) == [0, 0, 0, 0], jobs.stderr
    return jobs.written(HEALTHY)


def test_gradients_are_those_of_a_single_process_under_every_order(ranks: list[dict[str, Any]]) -> None:
    errors = [error for rank in ranks for error in rank["swaps"]["errors"].values()]

    assert len(errors) == 4 * 7
    assert max(errors) < EXACT
    assert all(rank["swaps"]["smallest"] > 1e6 * EXACT for rank in ranks)


def test_schedules_that_are_given_count_as_versions_and_not_as_changes(ranks: list[dict[str, Any]]) -> None:
    assert [(rank["swaps"]["version"], rank["swaps"]["changes"]) for rank in ranks] == [(6, 0)] * 4


def test_a_slow_link_is_measured_and_the_others_are_not_blamed(ranks: list[dict[str, Any]]) -> None:
    delays_s = ranks[0]["adapts"]["delays_s"]

    assert delays_s[2] > 0.1  # 150 ms were added
    assert delays_s[2] == max(delays_s)


def test_operations_are_measured_on_every_stage(ranks: list[dict[str, Any]]) -> None:
    assert all(forward_s >= 0.004 for forward_s in ranks[0]["adapts"]["forwards_s"])


def test_ranks_switch_together_to_an_order_with_more_warm_up(ranks: list[dict[str, Any]]) -> None:
    found = [rank["adapts"] for rank in ranks]
    before, after = (Schedule.from_csv(found[0][name]).warmups() for name in ("before", "order"))

    assert found[0]["changes"]
    assert after[2] > before[2]
    assert all(each["changes"] == found[0]["changes"] and each["order"] == found[0]["order"] for each in found)
    assert all(each["version"] == len(each["changes"]) for each in found)


def test_gradients_stay_exact_while_ranks_switch_by_themselves(ranks: list[dict[str, Any]]) -> None:
    assert max(error for rank in ranks for error in rank["adapts"]["errors"]) < EXACT


def test_stages_on_a_card_are_measured_by_its_marks_and_adapt_as_others(ranks: list[dict[str, Any]]) -> None:
    found = [rank["pretends"] for rank in ranks]

    assert max(error for each in found for error in each["errors"]) < EXACT
    assert found[0]["delays_s"][2] == max(found[0]["delays_s"]) > 0.1
    assert all(forward_s >= 0.004 for forward_s in found[0]["forwards_s"])
    assert found[0]["changes"]
    assert all(each["changes"] == found[0]["changes"] and each["order"] == found[0]["order"] for each in found)


def test_schedules_with_several_stages_on_a_rank_run_on_stock_pytorch(ranks: list[dict[str, Any]]) -> None:
    found = [rank["chunks"] for rank in ranks]

    assert [*found[0]] == ["interleaved_1f1b", "zbv", "adaptra as interleaved_1f1b", "adaptra as zbv"]
    assert max(error for each in found for error in each.values()) < EXACT


def test_a_backward_that_cannot_be_split_stays_whole_and_within_memory(ranks: list[dict[str, Any]]) -> None:
    schedule = Schedule.from_csv(ranks[0]["unsplit"]["order"])

    assert max(error for rank in ranks for error in rank["unsplit"]["errors"]) < EXACT
    assert "B" in schedule.to_csv()
    assert "I" not in schedule.to_csv()
    assert max(schedule.warmups()) <= 5
    assert len({rank["unsplit"]["order"] for rank in ranks}) == 1


def test_what_cannot_have_been_measured_changes_nothing(ranks: list[dict[str, Any]]) -> None:
    assert [rank["confuses"]["version"] for rank in ranks] == [0] * 4
    assert max(error for rank in ranks for error in rank["confuses"]["errors"]) < EXACT


def test_a_rank_with_another_version_is_refused_by_all(ranks: list[dict[str, Any]]) -> None:
    refused = [rank["disagrees"]["refused"] for rank in ranks]

    assert len(refused) == 4
    assert all("rank 2 follows version 1 of the schedule and the first rank another" in each for each in refused)


def test_a_rank_that_fails_ends_the_job_with_an_error_on_all_ranks(jobs: Jobs) -> None:
    assert jobs.codes(BROKEN) == [1, 1, 1, 1]
    assert jobs.written(BROKEN) == []
    assert "ZeroDivisionError" in jobs.stderr


def test_gradients_are_exact_whichever_links_have_delegates(ranks: list[dict[str, Any]]) -> None:
    errors = [error for rank in ranks for error in rank["delegates"]["errors"]]

    assert len(errors) == 4 * 5
    assert max(errors) < EXACT


def test_a_slow_link_gets_delegates_and_loses_them_when_it_recovers(ranks: list[dict[str, Any]]) -> None:
    found = [rank["recovers"] for rank in ranks]

    assert 2 in found[0]["delegated"][3]
    assert 2 not in found[0]["delegated"][-1]
    assert all(each["delegated"] == found[0]["delegated"] for each in found)
    assert max(error for each in found for error in each["errors"]) < EXACT


def test_fewer_micro_batches_than_stages_are_trained_on(ranks: list[dict[str, Any]]) -> None:
    assert max(error for rank in ranks for error in rank["few"]["errors"]) < EXACT


@pytest.mark.parametrize("odd", ["1", "2"])
def test_ranks_that_plan_differently_all_keep_what_they_have(ranks: list[dict[str, Any]], odd: str) -> None:
    found = [rank["quarrels"][odd] for rank in ranks]

    assert all(each["same"] and each["version"] == 0 for each in found)
    assert max(error for each in found for error in each["errors"]) < EXACT


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc to find the connection")
def test_a_link_whose_connection_breaks_is_replaced_and_no_gradient_is_wrong(jobs: Jobs) -> None:
    assert jobs.codes(CUT) == [0, 0, 0, 0], jobs.stderr
    found = [rank[CUT] for rank in jobs.written(CUT)]

    assert [rank["failed"] for rank in found] == [[], [1], [1], []]
    assert max(error for rank in found for error in rank["errors"]) < EXACT
    assert [len(rank["errors"]) for rank in found] == [6] * 4


@pytest.mark.parametrize("job", STRUCK)
def test_nobody_waits_for_ever_for_a_rank_that_is_gone_or_silent(jobs: Jobs, job: str) -> None:
    errors = {
        path.stem: json.loads(path.read_text("utf-8"))[job]["error"] for path in (jobs.folder / job).glob("[0-3].json")
    }

    assert sorted(errors) == ["0", "1", "3"]
    assert jobs.codes(job)[2] == -9
    assert all("start the job again" in error for error in errors.values())
    assert any(("stage 2 sends" in error) == job.endswith("computing") for error in errors.values())


def test_the_program_of_the_guide_trains_on_every_rank(jobs: Jobs) -> None:
    said = [(jobs.folder / f"train.{rank}.out").read_text("utf-8") for rank in range(4)]

    assert jobs.codes("train") == [0, 0, 0, 0], jobs.stderr
    assert said[:3] == ["", "", ""]
    assert re.search(r"^loss \d\.\d+ after 30 steps, version \d+ of the schedule$", said[3], re.MULTILINE)
