"""The shim before NCCL: a library with its names stands for NCCL here, and a small program for the job."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from takeup.training.stragglers.contract import Operation
from takeup.training.stragglers.watch import ring
from takeup.training.stragglers.watch.launch import SHIM_SOURCE
from takeup.training.stragglers.watch.ring_reader import RingCollector, RingReader

ROOT = Path(__file__).parents[4]
SHIM = ROOT / "native" / "nccl-shim"
HERE = Path(__file__).parent / "native"
MOST_CALL_NS = 1_000

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler, cc"),
    pytest.mark.xdist_group("shim"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shim, the library and the program, compiled."""
    folder = tmp_path_factory.mktemp("shim")
    commands = (
        [str(SHIM / "build"), str(folder / "shim.so")],
        ["cc", "-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-o", f"{folder}/libnccl.so.2", f"{HERE}/fake_nccl.c"],
        ["cc", "-rdynamic", "-O2", "-o", f"{folder}/job", f"{HERE}/fake_job.c", "-ldl"],
    )
    for command in commands:
        subprocess.run(command, check=True, capture_output=True)
    return folder


def run_job(built: Path, watched: Path, *arguments: str, rank: int = 0, every: int = 1, shim: bool = True) -> list[str]:
    """What the job printed; `every` says which calls are timed."""
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "4", "TAKEUP_SHIM_TIME_EVERY": str(every)}
    environment |= {"TAKEUP_WATCH_FOLDER": str(watched)} | ({"LD_PRELOAD": str(built / "shim.so")} if shim else {})
    command = [str(built / "job"), *arguments, str(built / "libnccl.so.2")]
    ran = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    assert ran.stderr == ""
    return ran.stdout.split()


def reader_of(watched: Path) -> RingReader:
    return RingReader(next(watched.glob("*.ring")))


def test_every_call_is_noted_and_reaches_nccl(built: Path, tmp_path: Path) -> None:
    (reached,) = run_job(built, tmp_path, "calls")
    calls = reader_of(tmp_path).read(give_up_before_ns=1 << 62)

    assert int(reached) == 10
    assert [Operation(kind).name for kind in calls["operation"]] == [
        "ALL_REDUCE",
        "BROADCAST",
        "BROADCAST",
        "ALL_GATHER",
        "REDUCE_SCATTER",
        "REDUCE",
        "SEND",
        "RECEIVE",
        "SEND",
    ]
    assert calls["size_bytes"].tolist() == [40, 12, 12, 10, 40, 1, 8, 8, 8]
    assert calls["number"].tolist() == [0, 1, 2, 3, 4, 5, 0, 0, 1]
    assert calls["peer"].tolist() == [-1] * 6 + [1] * 3


def test_nccl_is_found_also_where_its_names_are_not_global(built: Path, tmp_path: Path) -> None:
    (reached,) = run_job(built, tmp_path, "late")

    assert int(reached) == 10
    assert reader_of(tmp_path).word(ring.HeaderWord.HEAD) == 9


def test_calls_that_are_not_timed_are_read_at_once(built: Path, tmp_path: Path) -> None:
    run_job(built, tmp_path, "many", "50", every=0)

    calls = reader_of(tmp_path).read()

    assert len(calls) == 50
    assert not calls["ended_ns"].any()


def test_all_ranks_give_a_group_the_same_number_and_a_part_of_it_another(built: Path, tmp_path: Path) -> None:
    for rank in range(4):
        run_job(built, tmp_path, "calls", rank=rank)
    gather = RingCollector(tmp_path)
    gather.poll()

    world, part = list(gather.readers[0].places)

    assert gather.is_complete
    assert all(list(reader.places) == [world, part] for reader in gather.readers.values())
    assert gather.read()[2].groups[world] == (0, 1, 2, 3)


def test_events_of_the_device_tell_when_calls_ended(built: Path, tmp_path: Path) -> None:
    run_job(built, tmp_path, "calls", every=1)
    calls = reader_of(tmp_path).read(give_up_before_ns=1 << 62)

    durations_ms = (calls["ended_ns"] - calls["began_ns"])[calls["ended_ns"] > 0] * 1e-6

    # The device ticks with every event: one tick for a call alone, which is known once a later call looks.
    assert durations_ms[:6].round(3).tolist() == [1.0] * 6


def test_the_same_calls_are_timed_on_every_rank(built: Path, tmp_path: Path) -> None:
    timed = []
    for rank in range(2):
        folder = tmp_path / str(rank)
        folder.mkdir()
        run_job(built, folder, "many", "100", rank=rank, every=16)
        calls = reader_of(folder).read(give_up_before_ns=1 << 62)
        timed.append(calls["number"][calls["ended_ns"] > 0].tolist())

    assert timed[0] == timed[1] == list(range(0, 96, 16))


def test_all_calls_of_a_step_are_timed_or_of_every_second_if_they_are_many(built: Path, tmp_path: Path) -> None:
    run_job(built, tmp_path, "steps", "100", every=16)
    calls = reader_of(tmp_path).read(give_up_before_ns=1 << 62)

    steps = np.flatnonzero(calls["operation"] == Operation.STEP)
    timed = [int((part["ended_ns"] > 0).sum()) for part in np.split(calls, steps + 1)[:-1]]

    assert calls["number"][steps].tolist() == list(range(len(steps)))
    assert timed[0] == 1 + 100 // 16 + 1  # no step was made yet: every 16th call, and the step itself
    assert timed[1:] == [1, 101, 1, 101, 1, 101, 1]


def test_a_call_that_is_captured_into_a_graph_is_counted_and_not_recorded(built: Path, tmp_path: Path) -> None:
    run_job(built, tmp_path, "captured", every=0)
    reader = reader_of(tmp_path)

    assert len(reader.read()) == 1
    assert reader.word(ring.HeaderWord.NUM_CAPTURED) == 2


def test_a_call_costs_less_than_a_microsecond(built: Path, tmp_path: Path) -> None:
    """Processor time, and the least of some runs: where cores are shared, some of it goes to whoever shares them."""
    costs_ns = []
    for number in range(5):
        folder = tmp_path / str(number)
        folder.mkdir()
        noted_ns, _ = (float(each) for each in run_job(built, folder, "many", "200000", every=16))
        costs_ns.append(noted_ns)

    assert min(costs_ns) < MOST_CALL_NS
    assert reader_of(tmp_path / "0").word(ring.HeaderWord.HEAD) == 200_000


@pytest.mark.parametrize("name", ["no such folder", ""])
def test_without_a_place_to_write_the_job_goes_on(built: Path, tmp_path: Path, name: str) -> None:
    environment = {**os.environ, "RANK": "0", "LD_PRELOAD": str(built / "shim.so")}
    environment["TAKEUP_WATCH_FOLDER"] = str(tmp_path / name) if name else ""
    command = [str(built / "job"), "calls", str(built / "libnccl.so.2")]
    ran = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)

    assert ran.stdout.split() == ["10"]
    assert ("the job goes on" in ran.stderr) == bool(name)


def test_the_shim_and_the_reader_agree_on_the_layout() -> None:
    source = SHIM_SOURCE.read_text("utf-8")
    numbers = dict(re.findall(r"(CAPACITY|MOST_GROUPS|ROW_WORDS) = (\d+)", source))
    magic = re.search(r"#define MAGIC (0x\w+)LL", source)

    assert magic is not None
    assert int(magic[1], 16) == ring.MAGIC
    assert {name: int(value) for name, value in numbers.items()} == {
        name: getattr(ring, name) for name in ("CAPACITY", "MOST_GROUPS", "ROW_WORDS")
    }
    assert np.all(
        np.diff(
            [
                ring.HeaderWord.MAGIC,
                ring.HeaderWord.RANK,
                ring.HeaderWord.NUM_RANKS,
                ring.HeaderWord.PID,
                ring.HeaderWord.HEAD,
            ]
        )
        == 1
    )
