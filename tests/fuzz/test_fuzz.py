"""Every reader, with inputs damaged at random: an error for users or a result, and neither a hang nor a full memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs traces: pip install 'takeup[traces]'")
pytest.importorskip("fastapi", reason="needs web: pip install 'takeup[web]'")

TESTS = Path(__file__).parents[1]
NUM_INPUTS = 400  # of each reader; `make fuzz` runs for an hour


def test_damaged_inputs_are_read_or_refused_with_a_sentence(tmp_path: Path) -> None:
    paths = {"PYTHONPATH": os.pathsep.join(map(str, (TESTS, TESTS.parent / "src", TESTS.parent)))}
    program = [sys.executable, "-m", "fuzz.fuzzer", "--inputs", str(NUM_INPUTS), "--kept", str(tmp_path)]
    found = subprocess.run(program, env={**os.environ, **paths}, capture_output=True, text=True, check=False)

    assert found.returncode == 0, found.stderr[-4000:]
    rows = re.findall(r"^\| (.+?) \| (\d+) \| (\d+) \| \d", found.stdout, re.MULTILINE)
    assert len(rows) > 30
    assert all(int(inputs) == NUM_INPUTS and int(accepted) > 0 for _, inputs, accepted in rows), found.stdout
    assert list(tmp_path.iterdir()) == []
