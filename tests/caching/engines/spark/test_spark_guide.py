"""The guide for Spark: its programs run as they stand there, in one go."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from caching.engines.spark.quick_start import QUICK_START
from takeup.caching.policies import DEPLOYABLE

GUIDE = Path(__file__).parents[4] / "docs" / "guides" / "spark.md"
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_guide_names_every_policy() -> None:
    text = GUIDE.read_text("utf-8")

    assert [policy for policy in DEPLOYABLE if f"\n| `{policy}` | " not in text] == []


@pytest.mark.engine
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("javac") is None, reason="needs java and javac of a JDK 17")
def test_the_programs_of_the_guide_run(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs pyspark: pip install 'takeup[spark]'")
    program = "\n".join(PYTHON.findall(GUIDE.read_text("utf-8")))
    quick = {"SPARK_SUBMIT_OPTS": QUICK_START}
    environment = {**os.environ, **quick, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}

    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, env=environment
    )

    assert ran.returncode == 0, ran.stderr
    assert "332833500 998001" in ran.stdout
    assert "dag+admission: 100% hits, 100% effective" in ran.stdout
    stock, ours = (int(re.findall(rf"{name}: (\d+) values made", ran.stdout)[0]) for name in ("stock", "dag"))
    assert 2_240 <= ours < 0.8 * stock
    assert len(json.loads((tmp_path / "nightly.profile").read_text())["jobs"]) == 1
