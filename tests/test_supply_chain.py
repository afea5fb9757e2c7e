"""What is installed is known by its hash, and a release can say what it is made of."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text("utf-8")


def test_every_package_of_the_constraints_is_locked_in_that_version_with_hashes() -> None:
    wanted = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE))
    locked = {name: (number, hashes) for name, number, hashes in re.findall(
        r"^([\w.-]+)==([^\s;\\]+)[^\n]*((?:\n    --hash=sha256:[0-9a-f]{64}[ \\]*)*)", LOCK, re.MULTILINE
    )}  # fmt: skip

    assert all("--hash=sha256:" in hashes for _, hashes in locked.values())
    both = wanted.keys() & locked.keys()
    assert {name: wanted[name].partition("+")[0] for name in both} == {name: locked[name][0] for name in both}
    assert len(both) > 140


def test_the_bill_of_materials_lists_all_of_them_and_the_players_and_is_the_same_each_time() -> None:
    program = [sys.executable, str(ROOT / "scripts" / "sbom")]
    first, second = (subprocess.run(program, capture_output=True, text=True, check=True).stdout for _ in range(2))
    parts = json.loads(first)["components"]

    assert first == second
    assert len(parts) == len(re.findall(r"^[\w.-]+==", LOCK, re.MULTILINE)) + 3
    assert all(part["hashes"] for part in parts)
    assert {"hls.js", "dashjs", "shaka-player"} <= {part["name"] for part in parts}


def test_tools_that_set_up_the_project_are_pinned() -> None:
    assert re.search(r"\buv==\d+\.\d+\.\d+", (ROOT / "scripts" / "setup").read_text("utf-8"))
