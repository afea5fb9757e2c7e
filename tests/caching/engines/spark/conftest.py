"""Fixtures of tests of the Spark plug-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from native.spark.jar import build_jar, spark_jars
from takeup.caching.engines.spark.plugin_jar import jar

TEST_SOURCES = Path(__file__).parents[4] / "native" / "spark" / "src" / "test" / "java"


@pytest.fixture(scope="session")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the Java programs of the tests are, compiled once for all of them; with the plug-in and with Spark."""
    pytest.importorskip("pyspark", reason="needs pyspark: pip install 'takeup[spark]'")
    target = build_jar(tmp_path_factory.mktemp("spark") / "tests.jar", sorted(TEST_SOURCES.rglob("*.java")))
    return f"{target}:{jar()}:{spark_jars()}/*"
