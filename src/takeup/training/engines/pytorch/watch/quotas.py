"""How long a quota kept processes from running, as the kernel counts it for the control group they are in."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["control_group", "throttled_ns"]

GROUPS = Path("/sys/fs/cgroup")
PROCESSES = Path("/proc")
IN_NS = {"throttled_time": 1, "throttled_usec": 1_000}  # as the first and the second version call it


def control_group(process: int, processes: Path = PROCESSES, groups: Path = GROUPS) -> Path | None:
    """The folder of the group that shares out cores to a process; none where that is not known."""
    with suppress(OSError, ValueError):
        lines = [line.split(":", 2) for line in (processes / str(process) / "cgroup").read_text("utf-8").splitlines()]
        found = {tuple(names.split(",")): place for _, names, place in lines}
        for names in sorted(found, key=lambda names: names == ("",)):  # the second version has no names, and comes last
            if "cpu" in names or names == ("",):
                return groups / ",".join(names) / found[names].lstrip("/")
    return None


def throttled_ns(group: Path | None) -> int:
    """For how long its quota was spent since it began; 0 where there is none."""
    if group is not None:
        with suppress(OSError, ValueError):
            for line in (group / "cpu.stat").read_text("ascii").splitlines():
                name, value = line.split()
                if name in IN_NS:
                    return IN_NS[name] * int(value)
    return 0
