"""The jar with the plug-in: a file of the package, in git, in source distributions and in wheels."""

import re
from pathlib import Path

from takeup.errors import MissingEngine

JAR = Path(__file__).parent / "takeup-spark.jar"


def jar() -> Path:
    """Where the plug-in's jar is."""
    if not JAR.exists():
        raise MissingEngine(f"the Spark plug-in is not in {JAR.parent}; install takeup again, or run scripts/build-jar")
    return JAR


def why_not(spark_version: str) -> str:
    """Why the plug-in would not load into this version of Spark; empty if it would."""
    if not re.match(r"(3\.5|4)\.", spark_version):
        return f"Spark {spark_version} is not 3.5 or 4.x, so its own eviction stays"
    return "" if JAR.exists() else f"the jar of the plug-in is not in {JAR.parent}"
