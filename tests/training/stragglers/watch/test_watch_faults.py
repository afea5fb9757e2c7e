"""Faults of whole jobs that are watched: the watch is killed, a rank dies in a pause, the clocks of machines differ."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from takeup.training.stragglers.detect.detector import StragglerDetector
from takeup.training.stragglers.watch import launch
from takeup.training.stragglers.watch.ring import HeaderWord
from takeup.training.stragglers.watch.ring_reader import RingCollector
from takeup.training.stragglers.watch.session import ring_passes
from training.stragglers.watch.deadly_pause import DeadlyPauses

torch = pytest.importorskip("torch", reason="needs the package torch")

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("watch")]

NUM_STEPS = 120
JOB = [sys.executable, str(Path(__file__).parent / "reducing_job.py"), str(NUM_STEPS), "0.03"]
WATCH = [sys.executable, "-m", "takeup", "training", "watch"]
PLAIN = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
LIMIT_S = 150
HOURS_S = 100 * 3_600
has_clocks = shutil.which("unshare") is not None and not subprocess.call(
    ["unshare", "--time", "--monotonic", "1", "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
)


@cache
def digest(num_ranks: int = 2) -> str:
    """What comes out, by hand."""
    from training.stragglers.watch.reducing_job import digest_of, part_of

    return digest_of(NUM_STEPS, lambda step: torch.stack([part_of(rank, step) for rank in range(num_ranks)]).sum(0))


def digest_in(said: str) -> str:
    (found,) = re.findall(r"digest (\w+)", said)
    return str(found)


def wait_until(is_so: Callable[[], object]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def machine(
    rank: int, num_ranks: int, folder: Path, words: Sequence[str] = (), before: Sequence[str] = (), **more: str
) -> subprocess.Popen[str]:
    """A machine with one of the ranks, which is watched."""
    ranks = {"RANK": str(rank), "WORLD_SIZE": str(num_ranks), "REDUCING_MEETING": str(folder / "meeting")}
    ranks["TAKEUP_WATCH_TOKEN"] = "a secret"
    return subprocess.Popen(
        [*before, *WATCH, *words, "--", *JOB],
        env={**os.environ, **PLAIN, **ranks, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# The watch is killed --------------------------------------------------------------------------------------------------


def test_a_job_whose_watch_is_killed_goes_on_to_the_same_result(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    watch = machine(0, 1, tmp_path, TMPDIR=str(tmp_path), REDUCING_GATE=str(gate))
    wait_until(lambda: list(tmp_path.glob("takeup-watch-*/*.ring")))
    watch.kill()
    gate.touch()

    said, _ = watch.communicate(timeout=LIMIT_S)  # until the job has ended, too

    assert watch.returncode == -signal.SIGKILL
    assert digest_in(said) == digest(1)


# A rank dies ----------------------------------------------------------------------------------------------------------


def processes(gather: RingCollector) -> dict[int, int]:
    """By rank."""
    return {rank: reader.word(HeaderWord.PID) for rank, reader in gather.readers.items()}


def given_rank(process: int) -> str:
    """What torchrun said when it started the process."""
    environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    return next(each.decode() for each in environment if each.startswith(b"RANK="))


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_after_a_rank_died_in_a_pause_torchrun_starts_all_again_in_the_roles_that_were_ordered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in PLAIN.items():
        monkeypatch.setenv(name, value)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--max-restarts", "1", "--nproc-per-node", "2"]
    rings, said, gate = tmp_path / "rings", tmp_path / "said", tmp_path / "gate"
    monkeypatch.setenv("REDUCING_GATE", str(gate))
    rings.mkdir()
    gather, watcher, pauses = RingCollector(rings), StragglerDetector(), DeadlyPauses(rings)

    def are_iterations_known() -> bool:
        gather.poll()
        if gather.is_complete:
            watcher.see(gather.read())
        return len(watcher.anchors) == 2

    def has_died_in_a_pause() -> bool:  # a pause may come to nothing on a machine that is busy
        return pauses.confirm(gather.readers, watcher.anchors, ring_passes(2)).problem.endswith(" has ended")

    with said.open("w", encoding="utf-8") as file:
        job = launch.start([sys.executable, *torchrun, *JOB[1:]], rings, stdout=file)
    wait_until(are_iterations_known)
    launch.write_rank_order(rings, (1, 0))
    wait_until(has_died_in_a_pause)
    before = processes(gather)
    wait_until(lambda: gather.poll() or set(before.values()).isdisjoint(processes(gather).values()))
    wait_until(lambda: gather.poll() or gather.is_complete)
    given = {rank: given_rank(process) for rank, process in processes(gather).items()}
    gate.touch()

    assert job.wait(LIMIT_S) == 0
    assert given == {0: "RANK=1", 1: "RANK=0"}
    assert digest_in(said.read_text("utf-8")) == digest()


# Clocks differ --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not has_clocks, reason="needs Linux, root and unshare, for another clock")
def test_ranks_of_machines_whose_clocks_differ_by_days_are_watched_as_one_job(tmp_path: Path) -> None:
    first = machine(0, 2, tmp_path, ["--listen", "127.0.0.1:0"])
    assert first.stderr is not None
    address = first.stderr.readline().rpartition(" ")[2].strip()
    another_clock = ["unshare", "--time", "--monotonic", str(HOURS_S), "--fork"]
    second = machine(1, 2, tmp_path, ["--report-to", address], another_clock)

    (said, told), (_, errors) = (each.communicate(timeout=LIMIT_S) for each in (first, second))

    assert (first.returncode, second.returncode) == (0, 0), told + errors
    assert digest_in(said) == digest()
    counted = re.findall(r"watched (\d+) iterations", told)
    assert NUM_STEPS - 10 <= int(counted[0]) <= NUM_STEPS
    assert "made no sense" not in told
