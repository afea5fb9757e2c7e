"""Build hook: a wheel always carries the Spark plug-in's jar, and one that was built from its sources."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CHECK = """
import sys
sys.path[:0] = [".", "src"]
from native.spark.jar import JAR, build_jar, is_current
is_current(JAR) or build_jar(JAR)
"""


class JarBuildHook(BuildHookInterface[Any]):
    """The jar is a file of the source tree. One of other sources is compiled again, which needs javac and pyspark."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fails rather than packing a wheel without the plug-in, or with an old one."""
        if version == "editable":
            return
        done = subprocess.run([sys.executable, "-c", CHECK], cwd=self.root, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise RuntimeError(
                f"the jar of the Spark plug-in is not up to date; run scripts/build-jar first ({reason})"
            )
