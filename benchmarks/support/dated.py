"""What every benchmark shares: its options, the machine and the versions it states, and where its dated result goes."""

from __future__ import annotations

import argparse
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.support.markdown import to_markdown
from takeup import __version__
from takeup.core.files import write_atomically
from takeup.core.render import to_text
from takeup.core.report import Report


def options_of(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has; the description is the first line of a module's text."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="also write the report there as dated markdown")
    return parser


def publish(report: Report, topic: str, options: argparse.Namespace) -> int:
    """Date the report, print it, write it where it was asked for; the exit code is 1 if a bar is missed."""
    report = dated(report)
    print(report.to_json() if options.json else to_text(report))
    if options.out:
        write_atomically(options.out / result_name(topic, report), to_markdown(report))
    return 0 if report.holds else 1


def dated(report: Report) -> Report:
    """The report with the version, the time and the machine that made it."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return replace(report, version=__version__, created=now, machine=machine())


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
