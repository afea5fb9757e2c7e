"""The bottleneck in the kernel: two network namespaces, a virtual cable, and a class per download that share one rate.

How it works. A thread enters a new, nameless network namespace and stays in it: sockets it makes, and commands it
starts, belong there. Nobody else holds the namespace, so the kernel removes it with the process, however that ends.
Hierarchical token buckets share the rate: one parent with the whole rate, a leaf for each download with its equal part,
and leave to borrow what the others do not use. A socket's priority names its leaf.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

from takeup.errors import MissingEngine

__all__ = ["Namespace", "NamespaceLink"]

Result = TypeVar("Result")

CLONE_NEWNET = 0x40000000
SERVER, PLAYER = "198.18.0.1", "198.18.0.2"  # the addresses reserved for benchmarks
PAYLOAD_BYTES, FRAME_BYTES = 1448, 1514  # of a full TCP segment with timestamps
ROOT = 0x10000  # handle 1:
FIRST_LEAF = 0x10
SEND_BUFFER_BYTES = 256 * 1024  # enough in the leaf for the link not to fall idle while this process waits for a core
COMMAND_LIMIT_S = 10


class Namespace:
    """A network of its own, as long as this object is open."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        try:
            self.path = self.do(_leave_the_network)
        except BaseException:
            self.close()
            raise

    def do(self, action: Callable[[], Result]) -> Result:
        """Call `action` inside."""
        return self._thread.submit(action).result()

    def command(self, line: str) -> None:
        """Run an `ip` or `tc` command inside."""
        self.do(lambda: _run(line.split()))

    def close(self) -> None:
        """Leave the network; the kernel removes it once its sockets are closed."""
        self._thread.shutdown()


def _leave_the_network() -> str:
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise MissingEngine(f"this process may not make a network namespace ({reason}); use bottleneck 'user-space'")
    return f"/proc/{os.getpid()}/task/{threading.get_native_id()}/ns/net"


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMMAND_LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        reason = str(getattr(error, "stderr", None) or error).strip()
        raise MissingEngine(f"'{' '.join(command)}' failed: {reason}; use bottleneck 'user-space'") from error


class NamespaceLink:
    """A shaped link between two namespaces; what `rate_bps` counts is payload."""

    name = "namespaces"

    def __init__(self, rate_bps: float, num_flows: int) -> None:
        for command in ("ip", "tc"):
            if shutil.which(command) is None:
                raise MissingEngine(f"bottleneck 'namespaces' needs the command '{command}'; install iproute2")
        self._free_leaves = list(range(FIRST_LEAF, FIRST_LEAF + num_flows))
        self.server, self.players = Namespace(), Namespace()
        try:
            self._lay_cable()
            self._shape(rate_bps * FRAME_BYTES / PAYLOAD_BYTES)
        except BaseException:
            self.close()
            raise

    def _lay_cable(self) -> None:
        self.server.command(f"ip link add cable type veth peer name cable netns {self.players.path}")
        for namespace, address in ((self.server, SERVER), (self.players, PLAYER)):
            namespace.command(f"ip address add {address}/30 dev cable")
            namespace.command("ip link set lo up")
            namespace.command("ip link set cable gso_max_segs 1 up")  # no super-packets: the leaves take small turns

    def _shape(self, rate_bps: float) -> None:
        whole, part = round(rate_bps), max(8000, round(rate_bps / len(self._free_leaves)))
        self.server.command("tc qdisc add dev cable root handle 1: htb")
        self.server.command(f"tc class add dev cable parent 1: classid 1:1 htb rate {whole}bit quantum {FRAME_BYTES}")
        for leaf in self._free_leaves:
            name = f"1:{leaf:x} htb rate {part}bit ceil {whole}bit quantum {FRAME_BYTES}"
            self.server.command(f"tc class add dev cable parent 1:1 classid {name}")

    def listener(self) -> socket.socket:
        return self.server.do(lambda: socket.create_server((SERVER, 0), backlog=128))

    async def dial(self, address: tuple[str, int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection = self.players.do(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP))
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, address)
        except BaseException:
            connection.close()
            raise
        return await asyncio.open_connection(sock=connection)

    @contextmanager
    def accepted(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        if not self._free_leaves:
            raise ConnectionRefusedError("more connections than places on the link")
        leaf = self._free_leaves.pop(0)
        try:
            connection: socket.socket = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, ROOT + leaf)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            yield
        finally:
            self._free_leaves.append(leaf)

    async def send(self, writer: asyncio.StreamWriter, payload: memoryview) -> None:
        writer.write(payload)
        await writer.drain()

    def close(self) -> None:
        self.server.close()
        self.players.close()

    def __enter__(self) -> NamespaceLink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
