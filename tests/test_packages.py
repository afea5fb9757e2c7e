"""The sdist and the wheel, installed into an empty environment outside the tree, do what the README says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
UV = ROOT / ".venv" / "bin" / "uv"
JAR = "takeup/caching/engines/spark/takeup-spark.jar"
SPARK_JOB = """
from pyspark.sql import SparkSession
from takeup.caching.engines.spark import configure, counters

session = configure(SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false"), "lrc").getOrCreate()
data = session.range(1000).cache()
assert data.count() + data.count() == 2000
print("installed", counters(session).installed)
session.stop()
"""


def other_pythons() -> list[str]:
    """The supported versions that are on this machine, without the one that runs the tests."""
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = {version: _path(version) for version in ("3.11", "3.12", "3.13") if version != ours and UV.exists()}
    return [path for path in found.values() if path]


def _path(version: str) -> str:
    words = [str(UV), "python", "find", "--offline", "--no-project", version]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    return done.stdout.strip() if done.returncode == 0 else str(pyenv[-1]) if pyenv else ""


pytestmark = [
    pytest.mark.engine,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(1800),  # installs the packages, and compiles kernels for the tour
    pytest.mark.skipif(not UV.exists(), reason="needs uv in .venv, which scripts/setup installs"),
]


def ran(*command: object, cwd: Path, **environment: str) -> str:
    """What a command prints; its errors are the message if it fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env={**kept, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel made from it."""
    folder = tmp_path_factory.mktemp("dist")
    ran(UV, "build", "--quiet", "--out-dir", folder, ROOT, cwd=folder)
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with nothing but the wheel and its extras for Spark and the tour."""
    folder = tmp_path_factory.mktemp("environment")
    ran(UV, "venv", "--quiet", "--python", sys.executable, folder / "venv", cwd=folder)
    programs = folder / "venv" / "bin"
    links = {"UV_FIND_LINKS": os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS", "")}
    wheel, constraints = f"takeup[spark,tour] @ {built[1].as_uri()}", ROOT / "constraints.txt"
    ran(UV, "pip", "install", "--quiet", "--python", programs / "python", wheel, "-c", constraints, cwd=folder, **links)
    return programs


def test_sdist_and_wheel_carry_the_jar_and_the_sources(built: tuple[Path, Path]) -> None:
    sdist, wheel = built

    assert JAR in zipfile.ZipFile(wheel).namelist()
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{JAR}", "src/takeup/py.typed", "native/spark/src/main/java/io/takeup/spark/TakeupStore.java"} <= names


def test_the_command_works_in_an_empty_environment(installed: Path, tmp_path: Path) -> None:
    assert ran(installed / "takeup", "--help", cwd=tmp_path).startswith("Usage: takeup ")
    assert "lrc" in ran(installed / "takeup", "tour", "--quiet", "--out", tmp_path / "tour", cwd=tmp_path).lower()
    assert (tmp_path / "tour" / "index.html").exists()


@pytest.mark.parametrize("python", other_pythons())
def test_the_light_core_works_on_other_versions_of_python(
    python: str, built: tuple[Path, Path], tmp_path: Path
) -> None:
    programs = tmp_path / "venv" / "bin"
    ran(UV, "venv", "--quiet", "--python", python, tmp_path / "venv", cwd=tmp_path)
    words = ("--quiet", "--python", programs / "python", built[1], "-c", ROOT / "constraints.txt")
    ran(UV, "pip", "install", *words, cwd=tmp_path)

    assert ran(programs / "takeup", "--help", cwd=tmp_path).startswith("Usage: takeup ")
    assert "lrc" in ran(programs / "takeup", "caching", "compare", "lru,lrc", "--workload", "zip", cwd=tmp_path)


@pytest.mark.skipif(shutil.which("java") is None, reason="needs the program 'java'")
def test_a_spark_job_runs_with_the_plug_in_of_the_wheel(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SPARK_JOB)

    assert "installed 1" in ran(installed / "python", "job.py", cwd=tmp_path, SPARK_LOCAL_IP="127.0.0.1")
