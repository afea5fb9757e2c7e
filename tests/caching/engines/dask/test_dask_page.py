"""The guide's code runs as it stands, from the first block to the last, and its tables name what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="needs the package 'distributed': pip install 'takeup[dask]'")

from takeup.caching.engines.dask.spill_guide import SpillOptions
from takeup.caching.policies import DEPLOYABLE

PAGE = (Path(__file__).parents[4] / "docs" / "guides" / "dask.md").read_text("utf-8")


@pytest.mark.engine
def test_the_code_of_the_guide_runs(tmp_path: Path) -> None:
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    # In a process of its own: workers that are threads count the memory of the whole process as theirs.
    threads = code.replace("LocalCluster(", "LocalCluster(processes=False, ")
    settings = {
        "DASK_TEMPORARY_DIRECTORY": str(tmp_path),
        "DASK_DISTRIBUTED__ADMIN__LARGE_GRAPH_WARNING_THRESHOLD": "1GB",
    }
    ran = subprocess.run(
        [sys.executable, "-c", threads],
        env=os.environ | settings,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )

    assert re.match(r"2 workers, \d+ hits, 0 misses\n0 bytes written, 0 not written again\n", ran.stdout)
    stock, ours = ([int(number) for number in re.findall(r"\d+", line)] for line in ran.stdout.splitlines()[-2:])
    assert ours[0] < stock[0]
    assert ours[1] < 0.5 * stock[1]


def test_every_policy_and_option_is_in_the_guide() -> None:
    names = re.findall(r"`(\w+)`", "\n".join(line for line in PAGE.splitlines() if line.startswith("| `")))

    assert {*DEPLOYABLE, *(field.name for field in fields(SpillOptions))} <= set(names)
