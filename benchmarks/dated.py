"""What every dated result states: the machine, the versions, and a file name made of topic, machine and day."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from takeup.core.report import Report

__all__ = ["machine", "result_name", "versions"]


def versions(names: Sequence[str]) -> str:
    """The interpreter and the packages that do the work."""
    return ", ".join([f"Python {platform.python_version()}", *(f"{name} {version(name)}" for name in names)])


def machine() -> str:
    """The processor by name, and how many cores this process may use."""
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text()) if cpuinfo.exists() else None
    name = found.group(1).strip() if found else platform.machine()
    return f"{name}, {os.cpu_count()} cores, {platform.system()}"


def result_name(topic: str, report: Report) -> str:
    """`<topic>_<machine>_<date>.md`."""
    processor = re.sub(r"[^a-z0-9]+", "-", report.machine.partition(",")[0].lower()).strip("-")
    return f"{topic}_{processor}-{os.cpu_count()}-cores_{report.created[:10]}.md"
