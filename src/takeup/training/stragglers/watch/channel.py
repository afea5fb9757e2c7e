"""Authenticated frames between the agents of a watched job and its listener.

How it works. Both ends send a nonce, then prove with an HMAC of both nonces that they know the token, which itself is
never sent. The key that follows from token and nonces authenticates every frame together with its direction and number,
so that frames can be neither changed, repeated nor sent back. They are not encrypted. A frame is a length, its HMAC, a
line of JSON, and for calls their rows as bytes. Nothing of a peer is parsed before it has proved itself.
"""

import hmac
import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

MOST_FRAME = 4 << 20
GREETING_LIMIT_S = 10.0  # for all of it, however slowly its bytes arrive
LENGTH = struct.Struct(">I")
NUM_BYTES = 32  # of a nonce and of an HMAC
KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))  # a dead peer leaves


class Unauthenticated(Exception):
    """The peer does not know the token, or did not prove it in time."""


class Channel:
    """One end of a connection whose peer has proved that it knows the token."""

    def __init__(self, connection: socket.socket, token: str, *, is_listener: bool) -> None:
        self._connection = connection
        self._out, self._in = (b"to agent", b"to listener") if is_listener else (b"to listener", b"to agent")
        self._lock = threading.Lock()
        self._num_sent = self._num_received = 0
        until_s = time.monotonic() + GREETING_LIMIT_S
        mine = secrets.token_bytes(NUM_BYTES)
        connection.sendall(mine)
        theirs = _exactly(connection, NUM_BYTES, until_s)
        nonces = mine + theirs if is_listener else theirs + mine
        self._key = hmac.digest(token.encode(), b"takeup watch" + nonces, "sha256")
        connection.sendall(self._mac(self._out, 0, b""))
        if not hmac.compare_digest(_exactly(connection, NUM_BYTES, until_s), self._mac(self._in, 0, b"")):
            raise Unauthenticated
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def _mac(self, side: bytes, number: int, body: bytes) -> bytes:
        return hmac.digest(self._key, side + number.to_bytes(8) + body, "sha256")

    def send(self, values: dict[str, Any], rows: bytes = b"") -> None:
        """Send one frame."""
        body = json.dumps(values).encode() + b"\n" + rows
        with self._lock:
            self._num_sent += 1
            mac = self._mac(self._out, self._num_sent, body)
            self._connection.sendall(LENGTH.pack(len(body)) + mac + body)

    def frames(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield received frames until the peer closes the connection or sends an invalid frame."""
        with self._connection.makefile("rb") as stream:
            while len(head := stream.read(LENGTH.size)) == LENGTH.size:
                (length,) = LENGTH.unpack(head)
                if length > MOST_FRAME:
                    return
                mac, body = stream.read(NUM_BYTES), stream.read(length)
                self._num_received += 1
                if not hmac.compare_digest(mac, self._mac(self._in, self._num_received, body)):
                    return
                line, _, rows = body.partition(b"\n")
                try:
                    values = json.loads(line)
                except (ValueError, RecursionError):
                    return
                if not isinstance(values, dict):
                    return
                yield values, rows

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):  # the peer has disconnected
            self._connection.shutdown(socket.SHUT_RDWR)  # or it would stay open in the thread that reads it
        self._connection.close()


def _exactly(connection: socket.socket, length: int, until_s: float) -> bytes:
    """This many bytes before a deadline for all of them."""
    data = b""
    while len(data) < length:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise Unauthenticated
        connection.settimeout(left_s)
        part = connection.recv(length - len(data))
        if not part:
            raise Unauthenticated
        data += part
    return data
