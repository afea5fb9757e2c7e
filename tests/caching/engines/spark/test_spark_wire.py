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


def answer(class_path: str, program: str, argument: str) -> list[str]:
    command = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", class_path, f"io.takeup.spark.{program}"]
    return subprocess.run([*command, argument], capture_output=True, text=True, check=True).stdout.split()


def test_messages_come_back_as_they_were(class_path: str) -> None:
    assert answer(class_path, "WireMain", "500") == ["500"]


def test_driver_and_messages_stay_small(class_path: str) -> None:
    """Over ten thousand jobs without a profile, and for two hundred thousand tasks of two blocks."""
    growth_bytes, message_bytes, _ = map(int, answer(class_path, "SteadyMain", "10000"))

    assert growth_bytes < 5_000_000
    assert message_bytes < 100_000
