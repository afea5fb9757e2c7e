"""One lab for all tests of Slurm: it takes half a minute to start."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pytest

from cluster.engines.slurm.slurm_lab import NUM_GPUS, NUM_NODES, SCRIPT, Lab, Nursery


@pytest.fixture(scope="session")
def whole_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("slurm") / "lab"
    began_s = time.monotonic()
    try:
        subprocess.run([SCRIPT, "start", folder, "--nodes", str(NUM_NODES), "--gpus", str(NUM_GPUS)], check=True)
        print(f"the lab took {time.monotonic() - began_s:.1f} s to start")
        yield Lab(folder)
    finally:
        subprocess.run([SCRIPT, "stop", folder], check=True)


@pytest.fixture
def lab(whole_lab: Lab) -> Iterator[Lab]:
    """A lab in which nothing runs."""
    whole_lab.clean()
    yield whole_lab
    whole_lab.clean()


@pytest.fixture(scope="session")
def shared_nursery(whole_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    nursery = Nursery(whole_lab, tmp_path_factory.mktemp("nursery"))
    yield nursery
    nursery.close()


@pytest.fixture
def nursery(lab: Lab, shared_nursery: Nursery) -> Iterator[Nursery]:
    """Controllers with a journal of their own for this test."""
    shared_nursery.journal.unlink(missing_ok=True)
    yield shared_nursery
    shared_nursery.kill()
    print(shared_nursery.log.read_text("utf-8")[-5_000:])  # shown if the test failed
