"""The jar with the plug-in: shipped with the package, or built from the sources of a checkout that have changed.

The package carries the jar, in git, in source distributions and in wheels, and the jar carries a hash of the sources it
was built from. In a checkout with other sources a jar is compiled against the installed Spark and kept in the user's
cache folder; `scripts/build-jar` brings the shipped one up to date.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from takeup.core.extras import remedy
from takeup.core.files import write_atomically
from takeup.errors import MissingEngine

SHIPPED_JAR = Path(__file__).parent / "takeup-spark.jar"
_CHECKOUT = Path(__file__).parents[5]
_STAMP = "META-INF/takeup-sources"  # the entry of the jar with the hash of its sources
_EPOCH = (1980, 1, 1, 0, 0, 0)  # fixed, so that equal sources give equal bytes


def jar() -> Path:
    """Where the plug-in's jar is; built first if need be."""
    sources = find_sources()
    if sources and not is_current(SHIPPED_JAR) and (_can_compile() or not SHIPPED_JAR.exists()):
        built = _cache_folder() / f"takeup-spark-{_hash(sources)}.jar"
        return built if built.exists() else build_jar(built)
    if SHIPPED_JAR.exists():
        return SHIPPED_JAR
    raise MissingEngine(
        f"the Spark plug-in is not in {SHIPPED_JAR.parent} and there are no sources to build it from; "
        "install a wheel of takeup, or run from a checkout with javac 17 and pyspark on the machine"
    )


def is_current(path: Path) -> bool:
    """Whether the jar is there and, in a checkout, was built from its sources."""
    if not find_sources():
        return path.exists()
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return _STAMP in archive.namelist() and archive.read(_STAMP).decode() == _hash(find_sources())


def why_not(spark_version: str) -> str:
    """Why the plug-in would not load into this version of Spark; empty if it would."""
    if not re.match(r"(3\.5|4)\.", spark_version):
        return f"Spark {spark_version} is not 3.5 or 4.x, so its own eviction stays"
    if SHIPPED_JAR.exists() or (find_sources() and _can_compile()):
        return ""
    return "there is neither the jar of the plug-in nor javac to build it"


def build_jar(target: Path, sources: Sequence[Path] | None = None) -> Path:
    """Compile the plug-in's Java sources, or other ones against it, into the jar `target`."""
    paths = list(sources or find_sources())
    compiler = shutil.which("javac")
    if compiler is None:
        raise MissingEngine("the Spark plug-in must be compiled and there is no javac; install a JDK of version 17")
    with tempfile.TemporaryDirectory() as folder:
        class_path = os.pathsep.join([f"{spark_jars()}{os.sep}*", *([] if sources is None else [str(jar())])])
        command = [compiler, "-nowarn", "-Xlint:none", "--release", "17", "-cp", class_path, "-d", folder]
        done = subprocess.run([*command, *map(str, paths)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingEngine(f"javac could not compile the Spark plug-in; it said:\n{done.stderr.strip()}")
        write_atomically(target, _pack(Path(folder), _hash(paths) if sources is None else ""))
    return target


def find_sources() -> list[Path]:
    """The Java sources of the plug-in, if this is a checkout."""
    return sorted((_CHECKOUT / "native" / "spark" / "src" / "main" / "java").rglob("*.java"))


def spark_jars() -> Path:
    """The folder with Spark's own jars: of `SPARK_HOME` if that is set, else of the package pyspark."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home) / "jars"
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise MissingEngine(f"engine 'spark' needs the package 'pyspark'; run {remedy(['spark'])}")
    return Path(found.submodule_search_locations[0]) / "jars"


def _can_compile() -> bool:
    try:
        return shutil.which("javac") is not None and spark_jars().exists()
    except MissingEngine:
        return False


def _hash(sources: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "takeup"


def _pack(folder: Path, stamp: str) -> bytes:
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        if stamp:
            archive.writestr(zipfile.ZipInfo(_STAMP, _EPOCH), stamp)
        for path in sorted(folder.rglob("*.class")):
            entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), _EPOCH)
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return content.getvalue()
