"""How tests start the JVMs of Spark."""

from __future__ import annotations

__all__ = ["QUICK_START"]

# One collector and one quick compiler: a JVM that lives for seconds only loses by compiling well. Halves its CPU time.
QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
