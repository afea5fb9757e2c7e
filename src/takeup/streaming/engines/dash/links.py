"""The bottleneck that all downloads share: one interface, two ways to make it, chosen by name.

user-space      this process paces what it writes to loopback sockets; works everywhere
namespaces      the kernel shapes a virtual link between two network namespaces; needs root, `ip` and `tc`
auto            namespaces where they work, else user-space
"""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from takeup.core.namespaces import (
    FRAME_BYTES,
    LEFT,
    PAYLOAD_BYTES,
    ROOT,
    NetworkNamespace,
    check_commands,
    connect_namespaces,
)
from takeup.errors import BadInput, MissingEngine, UnknownName

Sender = TypeVar("Sender", bound=Hashable)

# Processor sharing as arithmetic: round-robin of small quanta over all backlogged senders, at one total rate ----------
#
# It knows no clock; times are arguments. A link that was late makes up for it, also when the next request follows the
# last byte within `pause_s`. Longer idle time, without any backlog, is lost.


class ProcessorSharing(Generic[Sender]):
    """Distributes `rate_bytes_per_s` round-robin, `quantum_bytes` at a time."""

    def __init__(self, rate_bytes_per_s: float, quantum_bytes: int, pause_s: float = 0.005) -> None:
        self.rate_bytes_per_s, self.quantum_bytes, self.pause_s = rate_bytes_per_s, quantum_bytes, pause_s
        self._due_s = self._empty_since_s = float("-inf")
        self._owed_bytes: OrderedDict[Sender, int] = OrderedDict()

    @property
    def due_s(self) -> float | None:
        """When the next quantum may be sent; None without backlog."""
        return self._due_s if self._owed_bytes else None

    def set_rate(self, rate_bytes_per_s: float, now_s: float) -> None:
        """Change the rate from now on, also for the quantum that was sent last."""
        if self._due_s > now_s:
            self._due_s = now_s + (self._due_s - now_s) * self.rate_bytes_per_s / rate_bytes_per_s
        self.rate_bytes_per_s = rate_bytes_per_s

    def enqueue(self, sender: Sender, num_bytes: int, now_s: float) -> None:
        """Add `num_bytes` to the backlog of this sender."""
        if not self._owed_bytes and now_s - self._empty_since_s > self.pause_s:
            self._due_s = max(self._due_s, now_s)
        self._owed_bytes[sender] = self._owed_bytes.get(sender, 0) + num_bytes

    def drop(self, sender: Sender) -> None:
        """Remove a sender and its backlog; its share goes to the others."""
        self._owed_bytes.pop(sender, None)

    def dequeue(self, now_s: float) -> Iterator[tuple[Sender, int]]:
        """The senders and byte counts that may be sent by now, quantum by quantum, in order."""
        while self._owed_bytes and self._due_s <= now_s:
            sender, owed_bytes = self._owed_bytes.popitem(last=False)
            num_bytes = min(self.quantum_bytes, owed_bytes)
            if owed_bytes > num_bytes:
                self._owed_bytes[sender] = owed_bytes - num_bytes
            self._due_s += num_bytes / self.rate_bytes_per_s
            self._empty_since_s = now_s  # if this was the last of all
            yield sender, num_bytes


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

    def set_rate(self, rate_bytes_per_s: float) -> None:
        """Change the rate of everything that is sent from now on."""
        loop = asyncio.get_running_loop()
        self._sharing.set_rate(rate_bytes_per_s, loop.time())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake_when_due(loop)

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


# The bottleneck in the kernel: two network namespaces, a virtual cable, and a class per download that share one rate
#
# Hierarchical token buckets share the rate: one parent with the whole rate, a leaf for each download with its equal
# part, and leave to borrow what the others do not use. A socket's priority names its leaf.

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
