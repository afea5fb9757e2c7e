"""Where the plug-in's jar comes from."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from native.spark.jar import build_jar, is_current, spark_jars
from takeup.caching.engines.spark import plugin_jar
from takeup.errors import MissingEngine

needs_javac = pytest.mark.skipif(shutil.which("javac") is None, reason="needs javac of a JDK 17")


def test_the_package_carries_the_jar_of_these_sources() -> None:
    assert is_current(plugin_jar.JAR), "run scripts/build-jar and commit the jar"


def test_a_jar_of_other_sources_is_not_current(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "old.jar", "w") as archive:
        archive.writestr("META-INF/takeup-sources", "0123456789abcdef")

    assert not is_current(tmp_path / "old.jar")
    assert not is_current(tmp_path / "missing.jar")


def test_a_package_without_the_jar_is_answered_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_jar, "JAR", tmp_path / "takeup-spark.jar")

    with pytest.raises(MissingEngine, match="install takeup again"):
        plugin_jar.jar()
    assert "is not in" in plugin_jar.why_not("4.3.0")


def test_sources_without_a_compiler_are_answered_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)

    with pytest.raises(MissingEngine, match="install a JDK of version 17"):
        build_jar(tmp_path / "plugin.jar")


def test_without_spark_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(MissingEngine, match="pip install 'takeup\\[spark\\]'"):
        spark_jars()


def test_a_spark_of_the_users_own_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")

    assert spark_jars() == Path("/opt/spark/jars")


@needs_javac
@pytest.mark.engine
def test_other_sources_are_compiled_against_the_plug_in(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs pyspark: pip install 'takeup[spark]'")
    source = tmp_path / "Names.java"
    source.write_text("class Names { Object plugin = new io.takeup.spark.TakeupPlugin(); }")

    first = build_jar(tmp_path / "one.jar", [source]).read_bytes()
    second = build_jar(tmp_path / "two.jar", [source]).read_bytes()

    assert zipfile.ZipFile(tmp_path / "one.jar").namelist() == ["Names.class"]
    assert first == second


@needs_javac
@pytest.mark.engine
def test_what_the_compiler_says_is_shown(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="needs pyspark: pip install 'takeup[spark]'")
    source = tmp_path / "Broken.java"
    source.write_text("class Broken {")

    with pytest.raises(MissingEngine, match="reached end of file"):
        build_jar(tmp_path / "broken.jar", [source])

    assert not (tmp_path / "broken.jar").exists()
