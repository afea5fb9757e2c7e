"""The bottleneck that all downloads share: this process paces what it writes to loopback sockets."""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

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


QUANTUM_BYTES = 4096  # a full round among ten users of a 50 Mbit/s link is then over in 7 ms


@dataclass(slots=True)
class _PendingSend:
    """The bytes left to send on one connection, and what to notify when none are left."""

    payload: memoryview
    sent: asyncio.Future[None]


class UserSpaceLink:
    """Loopback sockets, paced by processor sharing in this process."""

    def __init__(self, rate_bytes_per_s: float, quantum_bytes: int = QUANTUM_BYTES) -> None:
        self._sharing: ProcessorSharing[asyncio.StreamWriter] = ProcessorSharing(rate_bytes_per_s, quantum_bytes)
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
        """A bound and listening socket for the server."""
        return socket.create_server(("127.0.0.1", 0), backlog=128)

    async def send(self, writer: asyncio.StreamWriter, payload: memoryview) -> None:
        """Send at this connection's share of the rate; done when all is handed to the kernel."""
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
