"""A controller whose clock is set while it runs: libfaketime changes it for the whole process, as an operator would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[3]
NOTICE_S = 600.0
CONTROLLER = """
import sys
from pathlib import Path
from cluster.engines.slurm.fake_slurm import FakeSlurm
from takeup.cluster.engines.slurm import Slurm, SlurmEngine
from takeup.cluster.engines.slurm.engine import StaleState
from takeup.cluster.model import Evict
fake = FakeSlurm()
job, high = fake.run("spot", 8, "n0", comment="takeup notice=USR1"), fake.submit("hp", 8)
engine = SlurmEngine(Path(sys.argv[1]), slurm=Slurm(fake), read_only=False)
engine.observe()
engine.apply(Evict(job, high, 0.0, "because", float(sys.argv[2])))
for _ in sys.stdin:
    try:
        engine.observe()
        print(fake.jobs[job]["job_state"], flush=True)
    except StaleState:
        print("SKIPPED", flush=True)
"""


class Controller:
    """The process, and the file from which libfaketime reads how far its clock is ahead."""

    def __init__(self, process: subprocess.Popen[str], offset: Path) -> None:
        self.process, self.offset = process, offset

    def job_at(self, ahead_s: int) -> str:
        """The state of the job that was given notice, after the clock was set and one further round."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.offset.write_text(f"{ahead_s:+d}\n")
        print("observe", file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()


@contextmanager
def controller(tmp_path: Path, *, all_clocks: bool) -> Iterator[Controller]:
    """One that gave a notice of ten minutes; `all_clocks` moves the monotonic clock too: time really passes."""
    package = find_spec("libfaketime")
    assert package is not None
    assert package.origin is not None
    offset = tmp_path / "offset"
    offset.write_text("+0\n")
    faked = {
        "LD_PRELOAD": str(Path(package.origin).parent / "vendor/libfaketime/src/libfaketime.so.1"),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": str(int(not all_clocks)),
        "PYTHONPATH": str(TESTS),
    }
    command = [sys.executable, "-c", CONTROLLER, str(tmp_path / "journal"), str(NOTICE_S)]
    with subprocess.Popen(
        command, env={**os.environ, **faked}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Controller(process, offset)
        process.kill()


LINUX_X86 = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="libfaketime's wheel is for Linux on x86-64"
)


@LINUX_X86
def test_a_wall_clock_that_is_set_neither_shortens_a_notice_nor_ends_the_controller(tmp_path: Path) -> None:
    with controller(tmp_path, all_clocks=False) as it:
        states = [it.job_at(ahead_s) for ahead_s in (0, 3600, 86400, -3600, -3600, 0)]

    assert states == ["RUNNING", "RUNNING", "RUNNING", "SKIPPED", "RUNNING", "RUNNING"]


@LINUX_X86
def test_the_notice_ends_when_its_time_has_really_passed(tmp_path: Path) -> None:
    with controller(tmp_path, all_clocks=True) as it:
        states = [it.job_at(ahead_s) for ahead_s in (0, 300, 3600)]

    assert states == ["RUNNING", "RUNNING", "COMPLETING"]
