"""Build hook: a wheel carries the Spark plug-in's jar if it can be compiled here or was compiled before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILD = """
import sys
sys.path.insert(0, "src")
from takeup.caching.engines.spark.plugin_jar import SHIPPED_JAR, build_jar
build_jar(SHIPPED_JAR)
"""


class JarBuildHook(BuildHookInterface[Any]):
    """Compiles the jar before a wheel is packed; `artifacts` in pyproject.toml puts it in."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Without javac or pyspark the wheel is still good for everything else, so that is no error."""
        if version == "editable":
            return
        done = subprocess.run([sys.executable, "-c", BUILD], cwd=self.root, capture_output=True, text=True, check=False)
        jar = Path(self.root) / "src/takeup/caching/engines/spark/takeup-spark.jar"
        if done.returncode and not jar.exists():
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            self.app.display_warning(f"this wheel has no Spark plug-in: {reason}")
