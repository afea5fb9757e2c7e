"""Ranks on other machines: an agent there forwards their records, and a listener presents them like local ranks.

How it works. One connection carries authenticated frames in both directions (channel.py). Received data is never
executed or unpickled; an invalid frame closes the connection, and the job on that machine continues unwatched.
Strangers, agents, ranks and unread rows have limits, and a rank belongs to the connection that reported it first, as
long as that is open. Clocks are not compared: an agent decides by its own clock which calls have timed out waiting for
their end.
"""

import os
import re
import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.errors import BadInput
from takeup.training.stragglers.contract import CALL
from takeup.training.stragglers.watch.channel import Channel, Tls, TlsConnection, Unauthenticated
from takeup.training.stragglers.watch.ring import HEADER_WORDS, MOST_GROUPS, HeaderWord
from takeup.training.stragglers.watch.ring_reader import LAST_OPERATION, MOST_BYTES, GroupPosition, RingCollector
from takeup.training.stragglers.watch.run_queue import record_run_queue_waits

MOST_RANK = 1 << 20
MOST_STRANGERS = 32  # connections that have not authenticated yet
MOST_AGENTS, MOST_RANKS = 1024, 64  # connections, and ranks of one
MOST_ROWS = 1 << 18  # of a rank that nothing has read yet
TIMEOUT_S = 10.0
START_S, RETRY_S = 3.0, 5.0  # how long an agent waits for its listener at first, and between attempts later
PAUSE_S = 0.1
LOOPBACK = "127.0.0.1"
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
HOST_VARIABLES = ("TAKEUP_HOST", "SLURMD_NODENAME", "NODE_NAME")  # names of the node outside of a container
# Header words that a remote controller may write.
ASKED = frozenset(
    {HeaderWord.PLAN, HeaderWord.PLAN_FIRST, HeaderWord.PLAN_COUNT, HeaderWord.PLAN_RESTART, HeaderWord.ADAPT}
    | {HeaderWord.COSTLY_RANK, HeaderWord.COST_PPM, HeaderWord.NUM_EVENTS}
)
INVALID = (OverflowError, ValueError, KeyError, TypeError)  # what the values of a frame may lead to
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


# On the machine of the ranks ------------------------------------------------------------------------------------------


class Agent:
    """Forwards the records of this machine's ranks; each call of `poll` is one polling round."""

    def __init__(self, gather: RingCollector, address: tuple[str, int], token: str, tls: Tls | None = None) -> None:
        self._gather, self._address, self._token, self._tls = gather, address, token, tls
        self._try_at_s = 0.0
        self._connect(time.monotonic() + START_S)

    def _connect(self, until_s: float) -> None:
        """Connect to the listener, which at the start of a job may come up a little later."""
        address, token, tls = self._address, self._token, self._tls
        where = f"the listener at {address[0]}:{address[1]}"
        try:
            connection: socket.socket | TlsConnection = (plain := self._reached(until_s))
        except OSError as error:
            raise BadInput(f"no {where[4:]} ({error.strerror or error}); start one with --listen") from error
        try:
            connection = plain if tls is None else tls.wrapped(plain, address[0])
            self._channel = Channel(connection, token, is_listener=False)
        except ssl.SSLError as error:
            connection.close()
            found = f"{where} is not the one that --tls trusts ({getattr(error, 'verify_message', '') or error.reason})"
            raise BadInput(f"{found}; give its certificate, made for the address of --report-to") from error
        except (OSError, Unauthenticated) as error:
            connection.close()
            same = "set TAKEUP_WATCH_TOKEN to the same secret on all machines, and --tls on all or none"
            raise BadInput(f"{where} does not know this token; {same}") from error
        self.is_connected = True
        threading.Thread(target=self._apply_requests, name="takeup-watch-agent", daemon=True).start()

    def _reached(self, until_s: float) -> socket.socket:
        while True:
            try:
                return socket.create_connection(self._address, TIMEOUT_S)
            except OSError:
                if time.monotonic() >= until_s:
                    raise
                time.sleep(PAUSE_S)

    def poll(self) -> None:
        """Send new records; connect again now and then once the listener is gone."""
        self._gather.poll()
        record_run_queue_waits(self._gather.readers)
        if not self.is_connected and time.monotonic() >= self._try_at_s:
            self._try_at_s = time.monotonic() + RETRY_S
            self._channel.close()
            with suppress(BadInput):
                self._connect(0.0)
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
        self._channel.send(values, calls.tobytes())

    def _apply_requests(self) -> None:
        """Write the controller's requests into the headers of the rings."""
        with suppress(OSError):
            for values, _ in self._channel.frames():
                reader = self._gather.readers.get(values.get("rank", -1))
                place, value = values.get("word"), values.get("value")
                if reader is not None and place in ASKED and isinstance(value, int):
                    reader.ask(place, value)
        self.is_connected = False

    def close(self) -> None:
        self._channel.close()


# On the machine of the controller -------------------------------------------------------------------------------------


@dataclass(slots=True)
class RemoteRank:
    """A rank on another machine, with the interface of a local `Reader`."""

    rank: int
    channel: Channel
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
            self.channel.send({"rank": self.rank, "word": place, "value": value})

    def add(self, calls: Calls) -> None:
        """Append calls, dropping and counting invalid ones, and those for which there is no space left."""
        sane = _is_valid(calls)
        with self._lock:
            self.num_bad += int(np.count_nonzero(~sane))
            kept = calls[sane][: max(0, MOST_ROWS - sum(map(len, self._rows)))]
            self.num_lost += int(np.count_nonzero(sane)) - len(kept)
            self._rows.append(kept.copy())

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

    def __init__(self, address: tuple[str, int], token: str, tls: Tls | None = None) -> None:
        if not token:
            raise BadInput("any user of this machine can reach a port; set TAKEUP_WATCH_TOKEN to a secret")
        self._token, self._tls = token, tls
        self.ranks: dict[int, RemoteRank] = {}
        self._strangers = threading.BoundedSemaphore(MOST_STRANGERS)
        self._hearing: list[threading.Thread] = []
        self._open: set[Channel] = set()
        self._lock = threading.Lock()
        try:
            self._server = socket.create_server(address)
        except OSError as error:
            raise BadInput(
                f"cannot listen at {address[0]}:{address[1]}: {error.strerror}; give another port"
            ) from error
        threading.Thread(target=self._accept, name="takeup-watch-listener", daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._server.getsockname()[:2]
        return host, port

    def _accept(self) -> None:
        while self._server.fileno() >= 0:
            try:
                connection, _ = self._server.accept()
            except OSError:  # closed, or no descriptor is left
                time.sleep(PAUSE_S)
                continue
            if len(self._open) >= MOST_AGENTS or not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            self._hear(connection)

    def _hear(self, connection: socket.socket) -> None:
        hears = threading.Thread(target=self._serve_agent, args=(connection,), name="takeup-watch-far", daemon=True)
        try:
            hears.start()
        except RuntimeError:  # no thread is left
            self._strangers.release()
            connection.close()
        self._hearing = [*(each for each in self._hearing if each.is_alive()), hears]

    def _serve_agent(self, plain: socket.socket) -> None:
        connection: socket.socket | TlsConnection = plain
        try:
            connection = plain if self._tls is None else self._tls.wrapped(plain)
            channel = Channel(connection, self._token, is_listener=True)
        except (OSError, Unauthenticated):
            connection.close()
            return
        finally:
            self._strangers.release()
        self._open.add(channel)
        try:
            for values, rows in channel.frames():
                self._take(channel, values, rows)
        except (OSError, *INVALID):
            return
        finally:
            self._open.discard(channel)
            connection.close()

    def _take(self, channel: Channel, values: dict[str, Any], rows: bytes) -> None:
        rank, header = int(values["rank"]), [int(word) for word in values["header"]]
        places = {
            int(group): GroupPosition(int(place), int(size)) for group, place, size in values["places"][:MOST_GROUPS]
        }
        if not 0 <= rank < MOST_RANK or len(header) != HEADER_WORDS or max(map(abs, header)) >= 2**63:
            raise ValueError
        with self._lock:
            far = self._owned(channel, rank)
            if far is None or far.header[HeaderWord.PID] != header[HeaderWord.PID]:
                far = RemoteRank(rank, channel, header, places)
            far.channel, far.header, far.places = channel, header, places
            far.host = str(values.get("host", "")) if HOST.fullmatch(str(values.get("host", ""))) else ""
            far.add(np.frombuffer(rows, CALL))
            self.ranks[rank] = far  # published last, so that its first calls are already there

    def _owned(self, channel: Channel, rank: int) -> RemoteRank | None:
        """What is known of a rank; one of another open connection is not taken over."""
        far = self.ranks.get(rank)
        if far is not None and far.channel is not channel and far.channel in self._open:
            raise ValueError
        if far is None and sum(each.channel is channel for each in self.ranks.values()) >= MOST_RANKS:
            raise ValueError
        return far

    def drain(self, limit_s: float) -> None:
        """Wait at most `limit_s` until all agents have sent everything and disconnected."""
        until_s = time.monotonic() + limit_s
        for hears in self._hearing:
            if hears.is_alive():
                hears.join(max(0.0, until_s - time.monotonic()))

    def close(self) -> None:
        self._server.close()
