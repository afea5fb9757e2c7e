"""Compile the plug-in into the package: `python -m native.spark.jar`, which is `scripts/build-jar`.

The jar is a file of the source tree, so that source distributions and wheels carry it. It holds a hash of the sources
it was built from: a test and the build of a wheel compare them.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from takeup.caching.engines.spark.plugin_jar import JAR
from takeup.core.extras import remedy
from takeup.core.files import write_atomically
from takeup.errors import MissingEngine

SOURCES = sorted((Path(__file__).parent / "src" / "main" / "java").rglob("*.java"))
_STAMP = "META-INF/takeup-sources"  # the entry of the jar with the hash of its sources
_EPOCH = (1980, 1, 1, 0, 0, 0)  # fixed, so that equal sources give equal bytes


def is_current(path: Path) -> bool:
    """Whether the jar is there and was built from the sources."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return _STAMP in archive.namelist() and archive.read(_STAMP).decode() == _hash(SOURCES)


def build_jar(target: Path, sources: Sequence[Path] | None = None) -> Path:
    """Compile the plug-in's Java sources, or other ones against it, into the jar `target`."""
    paths = list(sources or SOURCES)
    compiler = shutil.which("javac")
    if compiler is None:
        raise MissingEngine("the Spark plug-in must be compiled and there is no javac; install a JDK of version 17")
    with tempfile.TemporaryDirectory() as folder:
        class_path = os.pathsep.join([f"{spark_jars()}{os.sep}*", *([] if sources is None else [str(JAR)])])
        command = [compiler, "-nowarn", "-Xlint:none", "--release", "17", "-cp", class_path, "-d", folder]
        done = subprocess.run([*command, *map(str, paths)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingEngine(f"javac could not compile the Spark plug-in; it said:\n{done.stderr.strip()}")
        write_atomically(target, _pack(Path(folder), _hash(paths) if sources is None else ""))
    return target


def spark_jars() -> Path:
    """The folder with Spark's own jars: of `SPARK_HOME` if that is set, else of the package pyspark."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home) / "jars"
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise MissingEngine(f"engine 'spark' needs the package 'pyspark'; run {remedy(['spark'])}")
    return Path(found.submodule_search_locations[0]) / "jars"


def _hash(sources: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _pack(folder: Path, stamp: str) -> bytes:
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        if stamp:
            archive.writestr(zipfile.ZipInfo(_STAMP, _EPOCH), stamp)
        for path in sorted(folder.rglob("*.class")):
            entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), _EPOCH)
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return content.getvalue()


if __name__ == "__main__":
    print(f"build-jar: {build_jar(JAR)}")
