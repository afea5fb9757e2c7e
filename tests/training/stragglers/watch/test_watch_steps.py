"""Iterations are steps of the optimizer, whatever a job communicates: counted exactly on fourteen real jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the package torch")
pytest.importorskip("accelerate", reason="needs the package accelerate")
pytest.importorskip("transformers", reason="needs the package transformers")

from takeup.training.stragglers.detect.detector import StragglerDetector
from takeup.training.stragglers.watch.ring_reader import RingReader, logs_of

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("pytorch")]
PROGRAM = Path(__file__).with_name("step_jobs.py")
NUM_STEPS = 20
KINDS = [
    "ddp", "accumulation", "fsdp2", "fsdp2 accumulation", "hsdp", "zero3", "tensor parallel", "functional", "1f1b",
    "gpipe", "interleaved", "experts", "accelerate", "hf trainer",
]  # fmt: skip


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every job was run; PyTorch is imported once for all."""
    folder = tmp_path_factory.mktemp("jobs")
    program = [sys.executable, "-W", "ignore", str(PROGRAM), str(folder), str(NUM_STEPS), *KINDS]
    quiet = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_iterations_of_a_job_are_the_steps_of_its_optimizer(jobs: Path, kind: str) -> None:
    readers = {reader.rank: reader for reader in map(RingReader, sorted((jobs / kind).glob("*.ring")))}
    calls = {rank: reader.read() for rank, reader in sorted(readers.items())}
    logs, num_unplaced = logs_of(calls, {rank: reader.places for rank, reader in readers.items()})
    detector = StragglerDetector()
    detector.see(logs)

    assert (jobs / kind / "codes").read_text("utf-8") == "0 0 0 0"
    assert len(logs) == 4
    assert num_unplaced == 0
    assert detector.num_iterations == NUM_STEPS - 1  # the last step has no successor that would end it
