"""The guide's code runs as it stands, from the first block to the last, and its tables name what there is."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("distributed", reason="needs the package 'distributed': pip install 'takeup[dask]'")

from takeup.caching.engines.dask.client import POLICIES
from takeup.caching.engines.dask.guide import Options

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "dask.md").read_text("utf-8")


@pytest.mark.engine
def test_the_code_of_the_guide_runs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import dask

    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    with dask.config.set(
        {"temporary-directory": str(tmp_path), "distributed.admin.large-graph-warning-threshold": "1GB"}
    ):
        exec(compile(code.replace("LocalCluster(", "LocalCluster(processes=False, "), "dask.md", "exec"), {})
    printed = capsys.readouterr().out

    assert re.match(r"2 workers, \d+ hits, 0 misses\n0 bytes written, 0 not written again\n", printed)


def test_every_policy_and_option_is_in_the_guide() -> None:
    names = re.findall(r"`(\w+)`", "\n".join(line for line in PAGE.splitlines() if line.startswith("| `")))

    assert {*POLICIES, *(field.name for field in fields(Options))} <= set(names)
