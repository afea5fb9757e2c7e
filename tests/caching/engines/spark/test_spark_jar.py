"""Where the plug-in's jar comes from."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from takeup.caching.engines.spark import plugin_jar
from takeup.caching.engines.spark.plugin_jar import SHIPPED_JAR, build_jar, find_sources, is_current, jar, spark_jars
from takeup.errors import MissingEngine

needs_javac = pytest.mark.skipif(shutil.which("javac") is None, reason="needs javac of a JDK 17")


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of the jar in a wheel, empty yet; the cache folder is empty too."""
    place = tmp_path / "takeup-spark.jar"
    monkeypatch.setattr(plugin_jar, "SHIPPED_JAR", place)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return place


def test_the_package_carries_the_jar_of_these_sources() -> None:
    assert is_current(SHIPPED_JAR), "run scripts/build-jar and commit the jar"


def test_a_jar_of_other_sources_is_not_current(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "old.jar", "w") as archive:
        archive.writestr("META-INF/takeup-sources", "0123456789abcdef")

    assert not is_current(tmp_path / "old.jar")
    assert not is_current(tmp_path / "missing.jar")


def test_without_sources_the_jar_of_the_package_is_used(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_jar, "find_sources", list)
    shipped.write_bytes(b"jar")

    assert jar() == shipped


def test_a_checkout_without_a_compiler_uses_the_jar_that_is_there(
    shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)
    shipped.write_bytes(b"jar")

    assert jar() == shipped


def test_neither_jar_nor_sources_is_answered_with_the_next_step(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin_jar, "find_sources", list)

    with pytest.raises(MissingEngine, match="install a wheel of takeup"):
        jar()


def test_sources_without_a_compiler_are_answered_with_the_next_step(
    shipped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None)

    with pytest.raises(MissingEngine, match="install a JDK of version 17"):
        jar()


def test_without_spark_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(MissingEngine, match="pip install 'takeup\\[spark\\]'"):
        spark_jars()


def test_a_spark_of_the_users_own_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")

    assert spark_jars() == Path("/opt/spark/jars")


def test_the_checkout_has_the_sources() -> None:
    assert "TakeupPlugin.java" in {path.name for path in find_sources()}


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
