"""Ranks on other machines: an agent there forwards their records, and a listener presents them like local ranks.

How it works. One connection carries frames in both directions: a length, a line of JSON, and for calls their rows as
bytes. Clients authenticate with a token. Received data is never executed or unpickled; an oversized or invalid frame
closes the connection, and the job on that machine continues unwatched. Clocks are not compared: an agent decides by its
own clock which calls have timed out waiting for their end.
"""

import hmac
import json
import os
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.errors import BadInput
from takeup.training.stragglers.contract import CALL
from takeup.training.stragglers.watch.ring import HEADER_WORDS, MOST_GROUPS, HeaderWord
from takeup.training.stragglers.watch.ring_reader import LAST_OPERATION, MOST_BYTES, GroupPosition, RingCollector
from takeup.training.stragglers.watch.run_queue import record_run_queue_waits

MOST_FRAME = 4 << 20
MOST_RANK = 1 << 20
TIMEOUT_S = 10.0
LENGTH = struct.Struct(">I")
LOOPBACK = "127.0.0.1"
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
HOST_VARIABLES = ("TAKEUP_HOST", "SLURMD_NODENAME", "NODE_NAME")  # names of the node outside of a container
# Header words that a remote controller may write.
ASKED = frozenset(
    {HeaderWord.PLAN, HeaderWord.PLAN_FIRST, HeaderWord.PLAN_COUNT, HeaderWord.PLAN_RESTART, HeaderWord.ADAPT}
)
Calls = npt.NDArray[np.void]


def address_of(text: str) -> tuple[str, int]:
    """Parse HOST:PORT, or a port on the loopback address."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65_535:
        raise BadInput(f"{text!r} is no address; give HOST:PORT, such as 10.0.0.1:7070")
    return host or LOOPBACK, int(port)


def host_name() -> str:
    """Name of this machine for its cluster: from the environment, else from the operating system."""
    return next((os.environ[name] for name in HOST_VARIABLES if os.environ.get(name)), socket.gethostname())


# Frames ---------------------------------------------------------------------------------------------------------------


def send(connection: socket.socket, values: dict[str, Any], rows: bytes = b"") -> None:
    """Send one frame."""
    body = json.dumps(values).encode() + b"\n" + rows
    connection.sendall(LENGTH.pack(len(body)) + body)


def frames(connection: socket.socket) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield received frames until the peer closes the connection or sends an invalid frame."""
    with connection.makefile("rb") as stream:
        while len(head := stream.read(LENGTH.size)) == LENGTH.size:
            (length,) = LENGTH.unpack(head)
            if length > MOST_FRAME:
                return
            line, _, rows = stream.read(length).partition(b"\n")
            try:
                values = json.loads(line)
            except ValueError:
                return
            if not isinstance(values, dict):
                return
            yield values, rows


# On the machine of the ranks ------------------------------------------------------------------------------------------


class Agent:
    """Forwards the records of this machine's ranks; each call of `poll` is one polling round."""

    def __init__(self, gather: RingCollector, address: tuple[str, int], token: str) -> None:
        self._gather = gather
        try:
            self._connection = socket.create_connection(address, TIMEOUT_S)
        except OSError as error:
            raise BadInput(
                f"no listener at {address[0]}:{address[1]} ({error.strerror or error}); start one with --listen"
            ) from error
        send(self._connection, {"token": token})
        self._connection.settimeout(None)
        self.is_connected = True
        threading.Thread(target=self._apply_requests, name="takeup-watch-agent", daemon=True).start()

    def poll(self) -> None:
        """Send new records; stop sending once the listener is gone."""
        self._gather.poll()
        record_run_queue_waits(self._gather.readers)
        if not self.is_connected:
            return
        try:
            for rank, calls in self._gather.read_rows().items():
                self._send(rank, calls)
        except OSError:
            self.is_connected = False

    def _send(self, rank: int, calls: Calls) -> None:
        reader = self._gather.readers[rank]
        places = [[group, place.place, place.size] for group, place in reader.places.items()]
        header = [reader.word(place) for place in range(HEADER_WORDS)]
        values = {"rank": rank, "host": host_name(), "places": places, "header": header}
        send(self._connection, values, calls.tobytes())

    def _apply_requests(self) -> None:
        """Write the controller's requests into the headers of the rings."""
        with suppress(OSError):
            for values, _ in frames(self._connection):
                reader = self._gather.readers.get(values.get("rank", -1))
                place, value = values.get("word"), values.get("value")
                if reader is not None and place in ASKED and isinstance(value, int):
                    reader.ask(place, value)
        self.is_connected = False

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):  # the peer has disconnected
            self._connection.shutdown(socket.SHUT_RDWR)  # or it would stay open in the thread of `_apply_requests`
        self._connection.close()


# On the machine of the controller -------------------------------------------------------------------------------------


@dataclass(slots=True)
class RemoteRank:
    """A rank on another machine, with the interface of a local `Reader`."""

    rank: int
    connection: socket.socket
    header: list[int]
    places: dict[int, GroupPosition]
    num_bad: int = 0
    num_lost: int = 0
    path: None = None
    host: str = ""  # as its agent reports it; empty if unknown or not a host name
    _rows: list[Calls] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def word(self, place: int) -> int:
        """A word of the header, as last received."""
        return self.header[place]

    def ask(self, place: int, value: int) -> None:
        """Ask the agent to write a word of the header."""
        with suppress(OSError):
            send(self.connection, {"rank": self.rank, "word": place, "value": value})

    def add(self, calls: Calls) -> None:
        """Append calls, dropping and counting invalid ones."""
        sane = _is_valid(calls)
        with self._lock:
            self.num_bad += int(np.count_nonzero(~sane))
            self._rows.append(calls[sane])

    def read(self, *, give_up_before_ns: int = 0) -> Calls:
        """Calls since the last read; timeouts were already applied by the agent."""
        with self._lock:
            rows, self._rows = self._rows, []
        return np.concatenate([np.zeros(0, CALL), *rows])


def _is_valid(calls: Calls) -> npt.NDArray[np.bool_]:
    operation, size, began, ended = (calls[name] for name in ("operation", "size_bytes", "began_ns", "ended_ns"))
    possible = (operation >= 1) & (operation <= LAST_OPERATION) & (size >= 0) & (size < MOST_BYTES)
    sane: npt.NDArray[np.bool_] = possible & (began > 0) & ((ended == 0) | (ended >= began)) & (calls["number"] >= 0)
    return sane


class Listener:
    """Receives the records of agents; `ranks` are the remote ranks known so far."""

    def __init__(self, address: tuple[str, int], token: str) -> None:
        if not token and address[0] != LOOPBACK:
            raise BadInput("others can reach this address; set TAKEUP_WATCH_TOKEN to a secret on all machines")
        self._token = token
        self.ranks: dict[int, RemoteRank] = {}
        self._hearing: list[threading.Thread] = []
        try:
            self._server = socket.create_server(address)
        except OSError as error:
            raise BadInput(
                f"cannot listen at {address[0]}:{address[1]}: {error.strerror}; give another port"
            ) from error
        threading.Thread(target=self._accept, name="takeup-watch-listener", daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port it listens on."""
        host, port = self._server.getsockname()[:2]
        return host, port

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                hears = threading.Thread(
                    target=self._serve_agent, args=(connection,), name="takeup-watch-far", daemon=True
                )
                self._hearing = [*(each for each in self._hearing if each.is_alive()), hears]
                hears.start()

    def _serve_agent(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError, KeyError, TypeError):
            connection.settimeout(TIMEOUT_S)
            coming = frames(connection)
            hello, _ = next(coming, ({}, b""))
            if not hmac.compare_digest(str(hello.get("token", "")).encode(), self._token.encode()):
                return
            connection.settimeout(None)
            for values, rows in coming:
                self._take(connection, values, rows)

    def _take(self, connection: socket.socket, values: dict[str, Any], rows: bytes) -> None:
        rank, header = int(values["rank"]), [int(word) for word in values["header"]]
        places = {
            int(group): GroupPosition(int(place), int(size)) for group, place, size in values["places"][:MOST_GROUPS]
        }
        if not 0 <= rank < MOST_RANK or len(header) != HEADER_WORDS:
            raise ValueError
        far = self.ranks.get(rank)
        if far is None or far.header[HeaderWord.PID] != header[HeaderWord.PID]:
            far = RemoteRank(rank, connection, header, places)
        far.header, far.places = header, places
        far.host = str(values.get("host", "")) if HOST.fullmatch(str(values.get("host", ""))) else ""
        far.add(np.frombuffer(rows, CALL))
        self.ranks[rank] = far  # published last, so that its first calls are already there

    def drain(self, limit_s: float) -> None:
        """Wait at most `limit_s` until all agents have sent everything and disconnected."""
        until_s = time.monotonic() + limit_s
        for hears in self._hearing:
            if hears.is_alive():
                hears.join(max(0.0, until_s - time.monotonic()))

    def close(self) -> None:
        """Stop accepting connections."""
        self._server.close()
