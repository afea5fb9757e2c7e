"""The whole way from the command line on: a rank that is slow from the first step is named, with its host and cause."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the package torch")
pytest.importorskip("transformers", reason="needs the package transformers")

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("pytorch")]
JOB = Path(__file__).with_name("slow_start_jobs.py")
NUM_STEPS = 90  # two comparisons of ranks, which take place every 32 steps
NUM_TRIES = 3  # on a busy machine ranks may wait for cores instead


def watched(kind: str, out: Path) -> tuple[list[dict[str, object]], str]:
    """The events, and what was said at the end."""
    command = [sys.executable, "-m", "takeup", "training", "watch", "--json", "--", sys.executable, "-m"]
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(JOB), kind, str(NUM_STEPS)]
    quiet = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "OUT": str(out), "TAKEUP_HOST": "node-7"}
    done = subprocess.run([*command, *torchrun], env=quiet, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.parametrize(
    ("kind", "cause"),
    [("fsdp2", "in its data loader"), ("hf", "in its data loader"), ("1f1b", "in its data loader")],
)
def test_a_rank_that_is_slow_from_the_first_step_is_named_with_host_and_cause(
    kind: str, cause: str, tmp_path: Path
) -> None:
    named = []
    for _ in range(NUM_TRIES):
        events, said = watched(kind, tmp_path)
        suspects = [each for event in events if event["is_slow"] for each in event["suspects"]]  # type: ignore[attr-defined]
        named = [(each["ranks"], each["cause"]) for each in suspects if each["kind"] in ("compute", "pause")]
        if ([2], cause) in named:
            break

    assert ([2], cause) in named, said
    assert all(ranks == [2] for ranks, _ in named), said
    assert any(line.split()[1:2] == ["2"] and "local rank 2 of node-7" in line for line in said.splitlines()), said
