"""Starting the laboratory: what comes back, what it needs, and that a trial that fails says why."""

from __future__ import annotations

import sys

import pytest

from support.pipeline_lab import trials as launch
from support.pipeline_lab.trials import LabTrial, TrialOutcome, run_trials
from takeup.errors import MissingEngine, TakeupError
from takeup.training.pipelines.profile import Profile

TRUTH = Profile.uniform(2, 2, 0.001)
FINE = """
import pickle, sys
from pathlib import Path
from support.pipeline_lab.trials import TrialOutcome
folder = Path(sys.argv[1])
for number, trial in enumerate(pickle.loads((folder / "trials").read_bytes())):
    (folder / str(number)).mkdir()
    (folder / str(number) / "outcome").write_bytes(pickle.dumps({answer}))
    print(number, flush=True)
"""


def use_program(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Run this instead of the program with PyTorch."""
    monkeypatch.setattr(launch, "_command", lambda folder: [sys.executable, "-c", text, str(folder)])


def trials(*names: str) -> list[LabTrial]:
    return [LabTrial(name, "stock_1f1b", TRUTH, timeout_s=1.0) for name in names]


def test_outcomes_come_back_in_order_with_a_tick_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    use_program(monkeypatch, FINE.replace("{answer}", "TrialOutcome(trial.name, (1.0, 2.0), 0.0)"))
    ticks: list[int] = []

    found = run_trials(trials("a", "b"), lambda: ticks.append(1))

    assert [outcome.name for outcome in found] == ["a", "b"]
    assert len(ticks) == 2


def test_a_trial_that_fails_is_told_by_its_name_and_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    use_program(monkeypatch, FINE.replace("{answer}", "'Traceback\\n  File\\nValueError: three'"))

    with pytest.raises(TakeupError, match="the trial 'a' failed: ValueError: three; try it with"):
        run_trials(trials("a"))


def test_a_program_that_ends_early_is_told_by_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    use_program(monkeypatch, "raise SystemExit('no room on the machine')")

    with pytest.raises(TakeupError, match="the trial 'a' failed: no room on the machine"):
        run_trials(trials("a"))


def test_a_program_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "START_S", 0.0)
    use_program(monkeypatch, "import time; time.sleep(600)")

    with pytest.raises(TakeupError, match="the trial 'a' failed: it was silent"):
        run_trials(trials("a"))


def test_without_torch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("takeup.core.extras.find_spec", lambda name: None)

    with pytest.raises(MissingEngine, match=r"needs the package 'torch'; run pip install 'takeup\[torch\]'"):
        run_trials(trials("a"))


def test_where_processes_do_not_fork_the_laboratory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "platform", "win32")

    with pytest.raises(MissingEngine, match="needs processes that fork"):
        run_trials(trials("a"))


def test_what_is_settled_is_the_median_after_the_last_change() -> None:
    plain = TrialOutcome("a", (9.0, 1.0, 2.0, 6.0), 0.0)
    changed = TrialOutcome("a", (9.0, 8.0, 7.0, 1.0, 2.0, 6.0), 0.0, changed_after=(2, 3))

    assert plain.settled_s == 2.0
    assert changed.settled_s == 2.0
