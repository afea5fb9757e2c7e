"""Messages between driver and executors, packed and unpacked in a Java process of its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from takeup.caching.engines.spark.plugin_jar import build_jar, jar, spark_jars

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs java and javac of a JDK 17"),
]
PROGRAM = Path(__file__).parents[3] / "native" / "spark" / "src" / "test" / "java" / "io/takeup/spark/WireMain.java"


def test_messages_come_back_as_they_were(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs pyspark: pip install 'takeup[spark]'")
    class_path = f"{build_jar(tmp_path / 'tests.jar', [PROGRAM])}:{jar()}:{spark_jars()}/*"

    answer = subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", "-cp", class_path, "io.takeup.spark.WireMain", "500"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert answer.stdout.strip() == "500"
