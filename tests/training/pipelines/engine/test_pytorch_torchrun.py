"""The program of the guide, started by torchrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[4] / "docs/guides/adaptive-pipeline.md"
FENCE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.engine
@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: pip install 'takeup[torch]'")
@pytest.mark.xdist_group("pytorch")
def test_the_program_of_the_guide_runs_on_every_rank_and_ends_well(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(FENCE.findall(GUIDE.read_text("utf-8"))[0], encoding="utf-8")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

    done = subprocess.run(
        [*launcher, str(program)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr  # also what is left to do when a process ends
    assert "after 30 steps" in done.stdout
