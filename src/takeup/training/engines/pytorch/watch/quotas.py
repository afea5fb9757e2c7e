"""CPU-quota throttling time of processes, from the kernel's statistics of their cgroup."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
PROCESSES = Path("/proc")
IN_NS = {"throttled_time": 1, "throttled_usec": 1_000}  # names in cgroup v1 and v2


def control_group(process: int, processes: Path = PROCESSES, groups: Path = GROUPS) -> Path | None:
    """Folder of the cgroup that controls the CPU of a process; None if unknown."""
    with suppress(OSError, ValueError):
        lines = [line.split(":", 2) for line in (processes / str(process) / "cgroup").read_text("utf-8").splitlines()]
        found = {tuple(names.split(",")): place for _, names, place in lines}
        for names in sorted(found, key=lambda names: names == ("",)):  # cgroup v2 has no names, and is tried last
            if "cpu" in names or names == ("",):
                return groups / ",".join(names) / found[names].lstrip("/")
    return None


def throttled_ns(group: Path | None) -> int:
    """Total throttled time of the cgroup in nanoseconds; 0 if there is no quota."""
    if group is not None:
        with suppress(OSError, ValueError):
            for line in (group / "cpu.stat").read_text("ascii").splitlines():
                name, value = line.split()
                if name in IN_NS:
                    return IN_NS[name] * int(value)
    return 0
