"""Restarts: when they are due, what they cost, and ranks that come back with other roles."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

from takeup.training.stragglers.contract import CALL, CallLog, Confirmation, Operation, SlowdownEvent, Suspect
from takeup.training.stragglers.remedy.remediation import WatchSettings
from takeup.training.stragglers.remedy.restart import RestartRule, wait_before_restart_s
from takeup.training.stragglers.watch.confirmation import PauseController
from takeup.training.stragglers.watch.launch import (
    GIVEN,
    ORDER,
    apply_rank_order,
    environment_of,
    will_be_restarted,
    write_rank_order,
)
from takeup.training.stragglers.watch.ring import HeaderWord, RingBuffer
from takeup.training.stragglers.watch.session import WatchSession
from training.stragglers.watch.watched_rings import GROUP, SLOW_LINK, Scripted, new_ring, sharing

INJECTOR = Path(__file__).parent / "injector"
EXAMPLE = Path(__file__).parents[4] / "examples" / "train_ddp.py"


# When -----------------------------------------------------------------------------------------------------------------


def test_a_restart_is_due_after_the_loss_that_was_asked_for() -> None:
    restarts = RestartRule(after_s=10.0)

    assert not restarts.is_due(100.0, 9.0)
    assert restarts.is_due(100.0, 10.0)


def test_without_a_limit_or_a_cost_there_is_none() -> None:
    assert not RestartRule().is_due(1e6, 1e6)


def test_with_a_cost_it_is_due_when_the_event_has_lasted_as_long_as_the_policy_waits() -> None:
    asked: list[tuple[float, float, list[float]]] = []

    def wait(loss_share: float, cost_s: float, durations_s: Sequence[float]) -> float:
        asked.append((loss_share, cost_s, list(durations_s)))
        return 50.0

    restarts = RestartRule(cost_s=30.0, wait=wait, durations_s=[7.0])

    assert not restarts.is_due(40.0, 10.0)
    assert restarts.is_due(50.0, 10.0)
    assert asked == [(0.25, 30.0, [7.0]), (0.2, 30.0, [7.0])]


def test_nothing_more_is_due_until_ranks_have_come_back_and_their_absence_is_the_new_cost() -> None:
    restarts = RestartRule(cost_s=30.0, wait=lambda *_: 0.0)
    restarts.requested(100.0)

    assert restarts.is_under_way
    assert not restarts.is_due(1e6, 1e6)
    assert restarts.completed(112.0) == 12.0
    assert restarts.cost_s == 12.0
    assert restarts.completed(120.0) is None  # nobody had asked for that
    assert restarts.is_due(1e6, 1e6)


def test_a_cheap_restart_comes_sooner_than_a_dear_one_and_short_events_are_waited_out() -> None:
    cheap_s, dear_s = (wait_before_restart_s(0.35, cost_s, ()) for cost_s in (30.0, 1800.0))

    assert cheap_s < dear_s
    assert wait_before_restart_s(0.35, 1e9, ()) > 1e6
    assert wait_before_restart_s(0.0, 30.0, ()) == math.inf
    assert wait_before_restart_s(0.35, 30.0, [5.0] * 200) > 0  # here events end by themselves after five seconds


@pytest.mark.parametrize(
    ("most", "number", "expected"),
    [("3", "0", True), ("3", "2", True), ("3", "3", False), ("0", "0", False), ("", "", True), ("many", "0", True)],
)
def test_torchrun_starts_ranks_again_as_often_as_it_was_told_and_others_are_trusted(
    most: str, number: str, expected: bool
) -> None:
    found = {"TORCHELASTIC_MAX_RESTARTS": most, "TORCHELASTIC_RESTART_COUNT": number}

    assert will_be_restarted({name: value for name, value in found.items() if value}) is expected


# Other roles ----------------------------------------------------------------------------------------------------------


def environment(rank: int, number: int = 4, **more: str) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(number), "TORCHELASTIC_RUN_ID": "x", **more}


def taken(folder: Path, found: dict[str, str]) -> str:
    apply_rank_order(folder, found)
    return found["RANK"]


def test_a_process_takes_the_rank_that_was_ordered_and_its_children_the_same(tmp_path: Path) -> None:
    write_rank_order(tmp_path, (0, 3, 2, 1))
    found = environment(1)

    assert taken(tmp_path, found) == "3"
    assert found[GIVEN] == "1"
    assert taken(tmp_path, found) == "3"  # as a child that inherits all this
    assert taken(tmp_path, environment(2)) == "2"


def test_orders_follow_each_other_and_the_same_exchange_again_undoes_it(tmp_path: Path) -> None:
    restarts = RestartRule()
    for order in ((0, 3, 2, 1), (3, 1, 2, 0)):
        write_rank_order(tmp_path, restarts.swapped(order))

    assert [taken(tmp_path, environment(rank)) for rank in range(4)] == ["3", "0", "2", "1"]
    for order in ((3, 1, 2, 0), (0, 3, 2, 1)):
        write_rank_order(tmp_path, restarts.swapped(order))
    assert [taken(tmp_path, environment(rank)) for rank in range(4)] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("text", ["", "nonsense", "[0, 1]", "[0, 0, 1, 2]", '{"0": 1}', "[0, 1, 2, 9]"])
def test_an_order_that_makes_no_sense_changes_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / ORDER).write_text(text)

    assert taken(tmp_path, environment(1)) == "1"


def test_without_an_order_or_torchrun_ranks_stay_as_they_are(tmp_path: Path) -> None:
    assert taken(tmp_path, environment(1)) == "1"
    write_rank_order(tmp_path, (1, 0))
    by_hand = {"RANK": "1", "WORLD_SIZE": "2"}
    assert taken(tmp_path, by_hand) == "1"


def test_a_python_that_starts_as_a_rank_has_the_other_one_before_any_script_runs(tmp_path: Path) -> None:
    write_rank_order(tmp_path, (1, 0))
    found = environment_of(tmp_path, {**os.environ, **environment(0, 2)})

    ran = subprocess.run(
        [sys.executable, "-c", "import os; print(os.environ['RANK'])"],
        env=found,
        capture_output=True,
        text=True,
        check=True,
    )

    assert (ran.stdout, ran.stderr) == ("1\n", "")


# In a session ---------------------------------------------------------------------------------------------------------


class Timed(Scripted):
    """Iterations take as long as they are told to; ranks 0 and 2 send each other nothing."""

    def __init__(self, events: list[list[SlowdownEvent]], time_s: float) -> None:
        super().__init__(events)
        self._time_s = time_s

    def see(self, logs: Sequence[CallLog]) -> list[SlowdownEvent]:
        events = super().see(logs)
        self.iterations_s.extend([self._time_s] * 10)
        return events

    def logs(self) -> list[CallLog]:
        return [sends(rank, peers) for rank, peers in enumerate([(1, 3), (2, 3), (3,), ()])]


def sends(rank: int, peers: Sequence[int]) -> CallLog:
    """One message of 64 bytes to each of these ranks."""
    rows = [(Operation.SEND, peer, GROUP, 0, 64, 1, 2) for peer in peers]
    return CallLog(rank, np.array(rows, CALL), {GROUP: (0, 1, 2, 3)})


def moving(folder: Path, *times_s: float) -> tuple[WatchSession, list[RingBuffer]]:
    """A session that exchanges ranks 1 and 2 for a slow link; with every restart, iterations take another time."""
    left = list(times_s)
    made = WatchSession(
        folder,
        WatchSettings(restart_after_s=0.05),
        new_detector=lambda: Timed([[SLOW_LINK]] if len(left) == len(times_s) else [], left.pop(0)),
    )
    return made, restarted(folder, 1)


def restarted(folder: Path, pid: int) -> list[RingBuffer]:
    rings = [new_ring(folder, rank, 4, pid=pid) for rank in range(4)]
    sharing(rings, 16, [5.0] * 4, can_restart=True)
    return rings


def ordered(folder: Path) -> list[int]:
    found: list[int] = json.loads((folder / ORDER).read_text("utf-8"))
    return found


def test_ranks_are_exchanged_with_a_prediction_and_what_keeps_it_stays(tmp_path: Path) -> None:
    session, rings = moving(tmp_path, 0.028, 0.021)

    said = [finding.action for _ in range(2) for finding in session.poll()]

    assert said[-1].endswith("with ranks 1 and 2 exchanged, 20 ms predicted")
    assert [ring.words[HeaderWord.PLAN_RESTART] for ring in rings] == [1, 1, 1, 1]
    assert ordered(tmp_path) == [0, 2, 1, 3]

    restarted(tmp_path, 2)
    back, *said = [finding.action for _ in range(4) for finding in session.poll()]
    assert back.startswith("ranks came back after ")
    assert said == ["ranks exchanged, 21 ms as predicted"]
    assert ordered(tmp_path) == [0, 2, 1, 3]


def test_an_exchange_that_does_not_help_is_undone_by_another_restart(tmp_path: Path) -> None:
    session, _ = moving(tmp_path, 0.028, 0.027, 0.028)
    for _ in range(2):
        session.poll()

    rings = restarted(tmp_path, 2)
    _, *said = [finding.action for _ in range(4) for finding in session.poll()]

    assert said == ["saved and restarted as before: 27 ms is not what was predicted"]
    assert ordered(tmp_path) == [0, 1, 2, 3]
    assert [ring.words[HeaderWord.PLAN_RESTART] for ring in rings] == [1, 1, 1, 1]


def test_a_busy_machine_is_no_reason_to_restart(tmp_path: Path) -> None:
    host = Suspect("host", (0, 1, 2, 3), 1.4, 0.0, "")
    busy = replace(SLOW_LINK, suspects=(host,), after_s=0.0392)  # more than iterations usually take
    rings = restarted(tmp_path, 1)
    session = WatchSession(tmp_path, WatchSettings(restart_after_s=0.05), new_detector=lambda: Scripted([[busy]]))

    for _ in range(4):
        session.poll()

    assert session.remedies.lost_s > 0.05
    assert [ring.words[HeaderWord.PLAN_RESTART] for ring in rings] == [0, 0, 0, 0]


def confirming(
    folder: Path, monkeypatch: pytest.MonkeyPatch, confirmed: Confirmation
) -> tuple[WatchSession, list[RingBuffer]]:
    """A session whose pause shows this of a link; every look is a loss of 80 ms."""
    monkeypatch.setattr(PauseController, "confirm", lambda *arguments: confirmed)
    settings = WatchSettings(confirm=True, restart_after_s=0.1)
    rings = restarted(folder, 1)
    return WatchSession(folder, settings, new_detector=lambda: Scripted([[SLOW_LINK]])), rings


def num_looks_until_restart(session: WatchSession, rings: list[RingBuffer]) -> int:
    for number in range(1, 20):
        session.poll()
        if rings[0].words[HeaderWord.PLAN_RESTART]:
            return number
    return 20


def test_what_had_vanished_in_a_pause_is_no_reason_to_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = confirming(tmp_path, monkeypatch, Confirmation({}, {}, 0.4))

    assert num_looks_until_restart(*found) == 20
    assert found[0].remedies.slow == ()


@pytest.mark.parametrize(("pause_s", "num_looks"), [(0.0, 2), (0.4, 7)])
def test_what_a_pause_took_is_not_the_loss_of_which_a_job_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause_s: float, num_looks: int
) -> None:
    found = confirming(tmp_path, monkeypatch, Confirmation({}, {(0, 1): 7.0}, pause_s))

    assert num_looks_until_restart(*found) == num_looks


def test_ranks_are_exchanged_for_the_link_that_tests_have_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = replace(SLOW_LINK, suspects=(Suspect("link", (0, 1, 2, 3), 2.0, 1.0, "it carries"),))
    monkeypatch.setattr(PauseController, "confirm", lambda *arguments: Confirmation({}, {(2, 3): 7.0}))
    restarted(tmp_path, 1)
    settings = WatchSettings(confirm=True, restart_after_s=0.05)
    session = WatchSession(tmp_path, settings, new_detector=lambda: Timed([[group]], 0.028))

    for _ in range(2):
        session.poll()

    assert ordered(tmp_path) == [3, 1, 2, 0]  # then rank 2 has the place of the link's other end no more
    assert session.findings[0].event == group  # what was said without a pause stays as it was said


# For real -------------------------------------------------------------------------------------------------------------


def loss_without_ranks(num_steps: int) -> float:
    """What the example must come to: its model, trained on whole batches in one process."""
    import torch

    spec = spec_from_file_location("train_ddp", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = module_from_spec(spec)
    spec.loader.exec_module(example)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(num_steps):
        optimizer.zero_grad()
        inputs, targets = example.make_batch(step, 32)
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        torch.autograd.backward(loss)
        optimizer.step()
    return loss.item()


@pytest.mark.engine
@pytest.mark.xdist_group("watch")
def test_torchrun_restarts_a_slow_job_which_goes_on_from_its_checkpoint_to_the_same_result(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the package torch")
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(INJECTOR)}
    injected = {"INJECTED_RANK": "1", "INJECTED_FACTOR": "4", "INJECTED_AFTER": "240"}
    job = ["-m", "torch.distributed.run", "--standalone", "--max-restarts", "1", "--nproc-per-node", "2", str(EXAMPLE)]
    options = ["--steps", "70", "--microbatch-ms", "8", "--checkpoint"]
    watch = ["-m", "takeup", "training", "watch", "--no-action", "--restart-after", "0.5", "--", sys.executable]

    for number in range(2):  # on a busy machine it may look as if all ranks were slow
        watched = subprocess.run(
            [sys.executable, *watch, *job, *options, str(tmp_path / str(number))],
            env={**os.environ, **environment, **injected},
            capture_output=True,
            text=True,
            check=False,
            timeout=140,
        )
        if "rank 1 computes" in watched.stderr:
            break

    assert watched.returncode == 0, watched.stderr
    assert re.findall(r"70 steps, 2 ranks, loss (.*)", watched.stdout) == [f"{loss_without_ranks(70):.6f}"]
    assert "rank 1 computes" in watched.stderr
    assert "action: saved and restarted after a loss of" in watched.stderr
    assert (tmp_path / str(number)).exists()
