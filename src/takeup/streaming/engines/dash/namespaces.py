"""The bottleneck in the kernel: two network namespaces, a virtual cable, and a class per download that share one rate.

Hierarchical token buckets share the rate: one parent with the whole rate, a leaf for each download with its equal part,
and leave to borrow what the others do not use. A socket's priority names its leaf.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from takeup.core.namespaces import (
    FRAME_BYTES,
    LEFT,
    PAYLOAD_BYTES,
    ROOT,
    NetworkNamespace,
    check_commands,
    connect_namespaces,
)

FIRST_LEAF = 0x10
SEND_BUFFER_BYTES = 256 * 1024  # enough in the leaf for the link not to fall idle while this process waits for a core


class NamespaceLink:
    """A shaped link between two namespaces; what `rate_bps` counts is payload."""

    name = "namespaces"

    def __init__(self, rate_bps: float, num_flows: int) -> None:
        check_commands()
        self._free_leaves = list(range(FIRST_LEAF, FIRST_LEAF + num_flows))
        self.server, self.players = NetworkNamespace(), NetworkNamespace()
        try:
            connect_namespaces(self.server, self.players)
            self._shape(rate_bps * FRAME_BYTES / PAYLOAD_BYTES)
        except BaseException:
            self.close()
            raise

    def _shape(self, rate_bps: float) -> None:
        whole, part = round(rate_bps), max(8000, round(rate_bps / len(self._free_leaves)))
        self.server.command("tc qdisc add dev cable root handle 1: htb")
        self.server.command(f"tc class add dev cable parent 1: classid 1:1 htb rate {whole}bit quantum {FRAME_BYTES}")
        for leaf in self._free_leaves:
            name = f"1:{leaf:x} htb rate {part}bit ceil {whole}bit quantum {FRAME_BYTES}"
            self.server.command(f"tc class add dev cable parent 1:1 classid {name}")

    def listener(self) -> socket.socket:
        return self.server.do(lambda: socket.create_server((LEFT, 0), backlog=128))

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
    def reserve(self, writer: asyncio.StreamWriter) -> Iterator[None]:
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
