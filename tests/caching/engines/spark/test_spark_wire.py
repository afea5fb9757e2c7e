"""Messages between driver and executors, packed and unpacked in a Java process of its own."""

from __future__ import annotations

import shutil
import subprocess

import pytest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(shutil.which("javac") is None, reason="needs java and javac of a JDK 17"),
    pytest.mark.xdist_group("spark-java"),  # so that one worker compiles the programs
]


def test_messages_come_back_as_they_were(class_path: str) -> None:
    answer = subprocess.run(
        ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", class_path, "io.takeup.spark.WireMain", "500"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert answer.stdout.strip() == "500"
