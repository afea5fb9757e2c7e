"""Child processes, and the links of the devices: a rate for each, paced by the device or shaped by the kernel."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol

from takeup.core.namespaces import (
    FRAME_BYTES,
    LEFT,
    PAYLOAD_BYTES,
    ROOT,
    NetworkNamespace,
    check_commands,
    connect_namespaces,
)
from takeup.edge.engines.cloudlet.plan import CloudletJob, CloudletPlan
from takeup.errors import MissingEngine, UnknownName

# Child processes of the engine: Python in isolated mode, line-based standard input and output, ended on close ---------

WAIT_S = 5.0


class ChildProcess:
    """A program in this folder that reads lines and may answer with lines.

    It ends with its standard input, so none outlives this process, however that ends.
    """

    def __init__(self, program: str, *arguments: str) -> None:
        command = [sys.executable, "-I", "-S", str(Path(__file__).with_name(program)), *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def fileno(self) -> int:
        """The file descriptor to wait on for an answer."""
        return self._output.fileno()

    def tell(self, line: str) -> None:
        """Send a line; ignored if the process has exited, which the reader detects."""
        with suppress(BrokenPipeError):
            self._input.write(f"{line}\n".encode())

    def hear(self) -> list[str]:
        """The next output, split into words; empty if the process has exited. Lines are short: one read gets a line."""
        return self._output.read(4096).decode("ascii", "replace").split()

    def is_gone(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End it now."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(WAIT_S)
        self._input.close()
        self._output.close()


# The links of the devices: a rate for each, kept in one of two ways ---------------------------------------------------
#
# user-space      every device paces what it writes to a loopback socket; works everywhere
# namespaces      the kernel shapes a virtual link, with a token bucket for each device; needs root, `ip` and `tc`
# auto            namespaces where they work, else user-space

LINKS = ("auto", "namespaces", "user-space")
FIRST_CLASS = 0x10


class DeviceLinks(Protocol):
    """Where devices and the site meet."""

    name: str

    def listener(self, backlog: int) -> socket.socket:
        """A bound and listening socket for the site."""

    def device(self, *arguments: str) -> ChildProcess:
        """The process of a device, on the far side."""

    def priority(self, number: int) -> int:
        """What the socket of this job is marked with; 0 if the device itself keeps its rate."""


@contextmanager
def open_links(name: str, plan: CloudletPlan) -> Iterator[DeviceLinks]:
    """The links of this name for all jobs of a plan; they are removed on exit."""
    if name not in LINKS:
        raise UnknownName("link", name, LINKS)
    try:
        links = None if name == "user-space" else NamespaceLinks(plan.jobs)
    except MissingEngine:
        if name == "namespaces":
            raise
        links = None
    with links or nullcontext():
        yield links or UserSpaceLinks()


class UserSpaceLinks:
    """Loopback sockets; the devices keep their rates."""

    name = "user-space"

    def listener(self, backlog: int) -> socket.socket:
        return socket.create_server(("127.0.0.1", 0), backlog=backlog)

    def device(self, *arguments: str) -> ChildProcess:
        return ChildProcess("device.py", *arguments)

    def priority(self, number: int) -> int:
        del number
        return 0


class NamespaceLinks:
    """A namespace for the site and one for the devices, with a token bucket for each job on their side of the cable."""

    name = "namespaces"

    def __init__(self, jobs: tuple[CloudletJob, ...]) -> None:
        check_commands()
        self.site, self.devices = NetworkNamespace(), NetworkNamespace()
        try:
            connect_namespaces(self.site, self.devices)
            self.devices.command("tc qdisc add dev cable root handle 1: htb")
            for number, job in enumerate(jobs):
                self._shape(FIRST_CLASS + number, job)
        except BaseException:
            self.close()
            raise

    def _shape(self, minor: int, job: CloudletJob) -> None:
        """Rates of the kernel count whole frames, of which the last may be short, and the first one goes at once."""
        num_frames = math.ceil(job.num_bytes / PAYLOAD_BYTES)
        wire_bytes = job.num_bytes + num_frames * (FRAME_BYTES - PAYLOAD_BYTES)
        rate_bps = max(8_000, round(8 * (wire_bytes - FRAME_BYTES) / (job.upload_s - job.begin_s)))
        shape = f"rate {rate_bps}bit burst {FRAME_BYTES} cburst {FRAME_BYTES} quantum {FRAME_BYTES}"
        self.devices.command(f"tc class add dev cable parent 1: classid 1:{minor:x} htb {shape}")

    def listener(self, backlog: int) -> socket.socket:
        return self.site.do(lambda: socket.create_server((LEFT, 0), backlog=backlog))

    def device(self, *arguments: str) -> ChildProcess:
        return self.devices.do(lambda: ChildProcess("device.py", *arguments))

    def priority(self, number: int) -> int:
        return ROOT + FIRST_CLASS + number

    def close(self) -> None:
        self.site.close()
        self.devices.close()

    def __enter__(self) -> NamespaceLinks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
