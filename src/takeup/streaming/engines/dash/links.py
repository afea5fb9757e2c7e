"""The bottleneck that all downloads share: one interface, two ways to make it, chosen by name.

user-space      this process paces what it writes to loopback sockets; works everywhere
namespaces      the kernel shapes a virtual link between two network namespaces; needs root, `ip` and `tc`
auto            namespaces where they work, else user-space
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from takeup.errors import BadInput, MissingEngine, UnknownName
from takeup.streaming.engines.dash.sharing import ProcessorSharing

LINKS = ("auto", "namespaces", "user-space")
MOST_BPS = 400e6  # what one Python process carries on one core without falling behind
QUANTUM_BYTES = 4096  # a full round among ten users of a 50 Mbit/s link is then over in 7 ms


class BottleneckLink(Protocol):
    """Where all downloads share one rate."""

    name: str

    def listener(self) -> socket.socket:
        """A bound and listening socket for the server."""

    async def dial(self, address: tuple[str, int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A player's connection to the server."""

    def reserve(self, writer: asyncio.StreamWriter) -> AbstractContextManager[None]:
        """Reserve a slot on the link for this connection of the server."""

    async def send(self, writer: asyncio.StreamWriter, payload: memoryview) -> None:
        """Send at this connection's share of the rate; done when all is handed to the kernel."""


@contextmanager
def open_link(name: str, rate_bps: float, num_flows: int) -> Iterator[BottleneckLink]:
    """The link of this name for at most `num_flows` at a time; it is removed on exit."""
    if name not in LINKS:
        raise UnknownName("bottleneck", name, LINKS)
    if rate_bps > MOST_BPS:
        raise BadInput(
            f"the link would carry {rate_bps / 1e6:.0f} Mbit/s, this engine at most {MOST_BPS / 1e6:.0f}; "
            "lower the speed-up, or the capacity and bitrate of the cell together"
        )
    with _namespace_link(name, rate_bps, num_flows) as link:
        yield link or UserSpaceLink(rate_bps / 8)


@contextmanager
def _namespace_link(name: str, rate_bps: float, num_flows: int) -> Iterator[BottleneckLink | None]:
    from takeup.streaming.engines.dash.namespaces import NamespaceLink

    try:
        link = None if name == "user-space" else NamespaceLink(rate_bps, num_flows)
    except MissingEngine:
        if name == "namespaces":
            raise
        link = None
    with link or nullcontext():
        yield link


@dataclass(slots=True)
class _PendingSend:
    """The bytes left to send on one connection, and what to notify when none are left."""

    payload: memoryview
    sent: asyncio.Future[None]


class UserSpaceLink:
    """Loopback sockets, paced by processor sharing in this process."""

    name = "user-space"

    def __init__(self, rate_bytes_per_s: float) -> None:
        self._sharing: ProcessorSharing[asyncio.StreamWriter] = ProcessorSharing(rate_bytes_per_s, QUANTUM_BYTES)
        self._outgoing: dict[asyncio.StreamWriter, _PendingSend] = {}
        self._timer: asyncio.TimerHandle | None = None

    def listener(self) -> socket.socket:
        return socket.create_server(("127.0.0.1", 0), backlog=128)

    async def dial(self, address: tuple[str, int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*address)

    def reserve(self, writer: asyncio.StreamWriter) -> AbstractContextManager[None]:
        del writer  # round-robin over all connections; there are no slots to reserve
        return nullcontext()

    async def send(self, writer: asyncio.StreamWriter, payload: memoryview) -> None:
        loop = asyncio.get_running_loop()
        outgoing = self._outgoing[writer] = _PendingSend(payload, loop.create_future())
        try:
            self._sharing.enqueue(writer, len(payload), loop.time())
            self._wake_when_due(loop)
            await outgoing.sent
            await writer.drain()
        finally:
            self._sharing.drop(writer)
            self._outgoing.pop(writer, None)

    def _wake_when_due(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None and self._sharing.due_s is not None:
            self._timer = loop.call_at(self._sharing.due_s, self._deal, loop)

    def _deal(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        for writer, num_bytes in self._sharing.dequeue(loop.time()):
            self._write(writer, num_bytes)
        self._wake_when_due(loop)

    def _write(self, writer: asyncio.StreamWriter, num_bytes: int) -> None:
        outgoing = self._outgoing[writer]
        if outgoing.sent.done():
            return
        if writer.is_closing():
            outgoing.sent.set_exception(ConnectionResetError("the player has gone"))
            return
        writer.write(outgoing.payload[:num_bytes])
        outgoing.payload = outgoing.payload[num_bytes:]
        if not outgoing.payload:
            outgoing.sent.set_result(None)
