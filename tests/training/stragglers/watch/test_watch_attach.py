"""Attaching without a change to the job: the environment, the start of Python, and the whole way from torchrun on."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import Run, assert_one_sentence
from takeup.errors import BadInput, MissingEngine
from takeup.training.stragglers.watch import launch
from takeup.training.stragglers.watch.launch import ATTACH, FOLDER, FRESH_STORE, SHIM, compiled_shim, environment_of

ROOT = Path(__file__).parents[4]
INJECTOR = Path(__file__).parent / "injector"
EXAMPLE = ROOT / "examples" / "train_ddp.py"


def python(tmp_path: Path, code: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run this, attached."""
    environment = environment_of(tmp_path, {**os.environ, **more})
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_the_job_keeps_its_environment_and_our_folder_comes_first(tmp_path: Path) -> None:
    found = environment_of(tmp_path, {"HOME": "/root", "PYTHONPATH": "/theirs"})

    paths = f"{ATTACH}{os.pathsep}/theirs"
    assert found == {"HOME": "/root", "PYTHONPATH": paths, FOLDER: str(tmp_path), **FRESH_STORE}


def test_what_the_user_says_of_the_store_of_torchrun_is_kept(tmp_path: Path) -> None:
    (name,) = FRESH_STORE

    assert environment_of(tmp_path, {name: "0"})[name] == "0"


def test_a_shim_is_loaded_before_all_else_and_takes_the_place_of_the_hook(tmp_path: Path) -> None:
    found = environment_of(tmp_path, {"LD_PRELOAD": "/lib/other.so"}, tmp_path / "shim.so")

    assert found["LD_PRELOAD"] == f"{(tmp_path / 'shim.so').resolve()}:/lib/other.so"
    assert found[SHIM] == "1"


def test_without_a_card_calls_are_recorded_in_python(tmp_path: Path) -> None:
    assert compiled_shim(tmp_path, tmp_path / "no driver") is None


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc")
def test_with_a_card_the_shim_is_compiled_for_the_job(tmp_path: Path) -> None:
    found = compiled_shim(tmp_path, Path(__file__))

    assert found is not None
    assert found.read_bytes().startswith(b"\x7fELF")


def test_a_python_that_never_trains_starts_as_ever(tmp_path: Path) -> None:
    ran = python(tmp_path, "import sys; print('torch' in sys.modules, 'numpy' in sys.modules)")

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "False False\n", "")
    assert list(tmp_path.iterdir()) == []


def test_the_sitecustomize_that_was_there_is_run_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = __name__\n")

    ran = python(tmp_path, "print(theirs)", PYTHONPATH=str(tmp_path))

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "sitecustomize\n", "")


def test_what_goes_wrong_in_attaching_is_one_line_and_the_program_starts(tmp_path: Path) -> None:
    broken = tmp_path / "takeup"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('another takeup')\n")

    ran = python(tmp_path, "print('here')", PYTHONPATH=str(tmp_path))

    assert (ran.returncode, ran.stdout) == (0, "here\n")
    assert ran.stderr == "takeup cannot watch this process, which goes on: ImportError: another takeup\n"


def test_without_torch_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("takeup.core.extras.find_spec", lambda name: None)

    with pytest.raises(MissingEngine, match=r"needs the package 'torch'; run pip install 'takeup\[torch\]'"):
        launch.start(["torchrun"], tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ("there is no job to watch", "after --")),
        (("--", "torchrunn", "x.py"), ("no program 'torchrunn'", "after --")),
        (("--shim", "none.so", "--", "true"), ("no shim none.so", "native/nccl-shim/build")),
        (("--listen", "70000", "--", "true"), ("'70000' is no address",)),
        (("--report-to", "127.0.0.1:1", "--", "true"), ("no listener at 127.0.0.1:1", "--listen")),
    ],
)
def test_a_mistake_is_one_sentence(run: Run, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    pytest.importorskip("torch", reason="needs the package torch")

    assert_one_sentence(run("training", "watch", *options), *words)


def test_a_job_without_ranks_is_run_and_its_exit_code_is_ours(run: Run) -> None:
    pytest.importorskip("torch", reason="needs the package torch")

    fine = run("training", "watch", "--", sys.executable, "-c", "pass")
    failed = run("training", "watch", "--quiet", "--", sys.executable, "-c", "raise SystemExit(7)")

    assert (fine.code, fine.out) == (0, "")
    assert "not watched, because no rank made a collective call" in fine.err
    assert (failed.code, failed.err) == (1, "")


def test_a_listener_that_others_can_reach_asks_for_a_token(tmp_path: Path) -> None:
    from takeup.training.stragglers.watch.job import WatchOptions, watch

    with pytest.raises(BadInput, match="TAKEUP_WATCH_TOKEN"):
        watch(["true"], WatchOptions(listen="0.0.0.0:0"), print, print)


# The whole way --------------------------------------------------------------------------------------------------------


def events_of_a_job_with_a_slow_rank(out: Path) -> list[dict[str, Any]]:
    """What is told of a job whose rank 2 computes three times as long from step 50 on."""
    injected = {"INJECTED_RANK": "2", "INJECTED_FACTOR": "3", "INJECTED_AFTER": "200", "PYTHONPATH": str(INJECTOR)}
    alone = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "takeup", "training", "watch", "--json", "--out", str(out), "--"]
    command += [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(EXAMPLE)]
    command += ["--steps", "110", "--microbatch-ms", "20"]
    ran = subprocess.run(
        command, env={**os.environ, **alone, **injected}, capture_output=True, text=True, check=False, timeout=280
    )
    assert ran.returncode == 0, ran.stderr
    assert "110 steps, 4 ranks, loss" in ran.stderr  # what the job prints
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.engine
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("watch")
def test_a_slow_rank_of_an_unknown_job_is_named_with_factor_cost_and_action(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs the package torch")
    for number in range(3):  # where others take the cores in the same moment, they may be blamed instead
        out = tmp_path / str(number)
        told = events_of_a_job_with_a_slow_rank(out)
        if slow := [event for event in told if [2] in [suspect["ranks"] for suspect in event["suspects"]]]:
            break

    assert slow, told
    worst = max(slow, key=lambda event: event["lost_share"])
    assert worst["began"] >= 40
    assert worst["lost_share"] > 0.2
    assert "rank 2 computes" in worst["sentence"]
    shares = re.search(r"action: micro-batches of ranks ([\d ]+) -> ([\d ]+)", worst["sentence"])
    assert shares is not None
    before, after = (list(map(int, each.split())) for each in shares.groups())
    assert sum(before) == sum(after) == 16
    assert after[2] < before[2]
    assert json.loads((out / "event-001.json").read_text("utf-8"))["number"] == 1
    assert json.loads((out / "event-001.trace.json").read_text("utf-8"))["traceEvents"]


SHARDED = Path(__file__).parent / "sharded_job.py"
NUM_STEPS = 110


@pytest.mark.engine
@pytest.mark.timeout(1200)
@pytest.mark.xdist_group("watch")
@pytest.mark.parametrize("kind", ["fsdp", "1f1b"])
def test_steps_of_sharded_and_staged_jobs_are_counted_and_a_rank_slow_from_the_start_is_named(kind: str) -> None:
    pytest.importorskip("torch", reason="needs the package torch")
    alone = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "takeup", "training", "watch", "--", sys.executable, "-m", "torch.distributed.run"]
    command += ["--standalone", "--nproc-per-node", "2", str(SHARDED), kind, str(NUM_STEPS)]
    for _ in range(4):  # where others take the cores, the machine may be blamed instead
        ran = subprocess.run(
            command, env={**os.environ, **alone}, capture_output=True, text=True, check=False, timeout=280
        )
        if "since iteration 0, rank 1 computes" in ran.stderr:
            break

    assert ran.returncode == 0, ran.stderr
    assert f"watched {NUM_STEPS - 1} iterations" in ran.stderr
    assert "since iteration 0, rank 1 computes" in ran.stderr
