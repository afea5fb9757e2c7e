"""The pages of a controller: metrics for Prometheus, and probes of the controller and of what it sees."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from takeup.cluster.experiment.live import HEALTHY_S, _LiveRun
from takeup.cluster.experiment.scenario import ClusterScenario
from takeup.cluster.model import Decision, Node, State
from takeup.errors import BadInput, TakeupError


@dataclass
class Engine:
    """A cluster of one node, which may be silent."""

    problem: str = ""

    def observe(self) -> State:
        if self.problem:
            raise TakeupError(self.problem)
        return State(0.0, (Node("n0", "a100", 8),), (), ())

    def apply(self, decision: Decision) -> None:
        """Nothing to do."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[_LiveRun]:
    monkeypatch.setattr("takeup.cluster.experiment.live._engine", lambda scenario: Engine())
    scenario = ClusterScenario(verb="run", policies=("kube",), engine="slurm", dry_run=True, listen="127.0.0.1:0")
    made = _LiveRun(scenario, lambda text: None)
    yield made
    made.close()


def read(run: _LiveRun, path: str) -> tuple[int, str]:
    assert run.pages is not None
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{run.pages.server_address[1]}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_are_those_of_the_last_round(run: _LiveRun) -> None:
    run.loop.step()
    code, text = read(run, "/metrics")

    assert code == 200
    assert 'takeup_cluster_gpus{pool="a100"} 8' in text.splitlines()


def test_a_controller_is_ready_when_it_has_seen_the_cluster_and_not_while_it_is_silent(run: _LiveRun) -> None:
    engine: Any = run.engine
    assert read(run, "/readyz")[0] == 503
    run.loop.step()
    assert read(run, "/readyz")[0] == 200

    engine.problem = "no answer"
    run.loop.step()
    assert read(run, "/readyz") == (503, "no answer\n")
    assert read(run, "/healthz")[0] == 200


def test_a_controller_that_stands_by_is_ready(run: _LiveRun) -> None:
    engine: Any = run.engine
    engine.problem = "other holds the lease; waiting until it runs out"
    run.loop.step()

    assert read(run, "/readyz")[0] == 200


def test_a_controller_without_rounds_is_not_healthy(run: _LiveRun) -> None:
    run.watched.looked_s -= HEALTHY_S + 11 * run.loop.period_s

    assert read(run, "/healthz")[0] == 503


def test_other_pages_are_not_found_and_a_query_changes_nothing(run: _LiveRun) -> None:
    assert read(run, "/secrets")[0] == 404
    assert read(run, "/metrics?x=1")[0] == 200


def test_a_controller_does_not_start_on_pages_that_other_machines_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("takeup.cluster.experiment.live._engine", lambda scenario: Engine())
    scenario = ClusterScenario(verb="run", policies=("kube",), engine="slurm", dry_run=True, listen="0.0.0.0:0")

    with pytest.raises(BadInput, match="set TAKEUP_METRICS_TOKEN to a secret"):
        _LiveRun(scenario, lambda text: None)
