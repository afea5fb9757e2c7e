"""Authenticated frames between the agents of a watched job and its listener.

How it works. Both ends send a nonce, then prove with an HMAC of both nonces that they know the token, which itself is
never sent. The key that follows from token and nonces authenticates every frame together with its direction and number,
so that frames can be neither changed, repeated nor sent back. They are encrypted only with TLS, inside which all this
happens. A frame is a length, its HMAC, a line of JSON, and for calls their rows as bytes. Nothing of a peer is parsed
before it has proved itself.
"""

import hmac
import json
import secrets
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from takeup.errors import BadInput

MOST_FRAME = 4 << 20
GREETING_LIMIT_S = 10.0  # for all of it, however slowly its bytes arrive
LENGTH = struct.Struct(">I")
NUM_BYTES = 32  # of a nonce and of an HMAC
KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))  # a dead peer leaves


Result = TypeVar("Result")


class Unauthenticated(Exception):
    """The peer does not know the token, or did not prove it in time."""


# TLS ------------------------------------------------------------------------------------------------------------------


class Tls:
    """Certificates in a PEM file: of a listener its own with the private key, of an agent those that it trusts."""

    def __init__(self, path: Path, *, is_listener: bool) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_listener else ssl.PROTOCOL_TLS_CLIENT)
        try:
            if is_listener:
                self._context.load_cert_chain(path, password=lambda: "")  # or OpenSSL asks on the terminal
            else:
                self._context.load_verify_locations(path)
        except OSError as error:
            expected = (
                "the certificate and private key of the listener" if is_listener else "the listener's certificate"
            )
            raise BadInput(
                f"{path} is of no use for TLS ({error.strerror or error}); give {expected} as PEM"
            ) from error

    def wrapped(self, connection: socket.socket, host: str | None = None) -> "TlsConnection":
        """The connection after its handshake; an agent gives the `host` that the certificate must be of."""
        is_listener = host is None
        made = self._context.wrap_socket(
            connection, server_side=is_listener, server_hostname=host, do_handshake_on_connect=False
        )
        try:
            return TlsConnection(made)
        except OSError:
            made.close()
            raise


class TlsConnection:
    """A connection that one thread reads while another writes, though OpenSSL allows one call at a time."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        connection.setblocking(False)
        self._connection, self._lock, self._limit_s = connection, threading.Lock(), GREETING_LIMIT_S
        self.setsockopt, self.shutdown, self.close = connection.setsockopt, connection.shutdown, connection.close
        self._call(connection.do_handshake)

    def settimeout(self, limit_s: float | None) -> None:
        """How long each of the following calls may take."""
        self._limit_s = inf if limit_s is None else limit_s

    def recv(self, length: int) -> bytes:
        """Some bytes, or none at the end."""
        return self._call(lambda: self._connection.recv(length))

    def sendall(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._call(partial(self._connection.send, left)) :]

    def _call(self, act: Callable[[], Result]) -> Result:
        until_s = time.monotonic() + self._limit_s
        while True:
            try:
                with self._lock:
                    return act()
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN, until_s)
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT, until_s)

    def _wait(self, event: int, until_s: float) -> None:
        poll = select.poll()
        poll.register(self._connection, event)
        if not poll.poll(None if until_s == inf else 1000 * max(0.0, until_s - time.monotonic())):
            raise TimeoutError


# Frames ---------------------------------------------------------------------------------------------------------------


class Channel:
    """One end of a connection whose peer has proved that it knows the token."""

    def __init__(self, connection: socket.socket | TlsConnection, token: str, *, is_listener: bool) -> None:
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
        body = json.dumps(values).encode() + b"\n" + rows
        with self._lock:
            self._num_sent += 1
            mac = self._mac(self._out, self._num_sent, body)
            self._connection.sendall(LENGTH.pack(len(body)) + mac + body)

    def frames(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        """Yield received frames until the peer closes the connection or sends an invalid frame."""
        while True:
            try:
                (length,) = LENGTH.unpack(_exactly(self._connection, LENGTH.size))
                if length > MOST_FRAME:
                    return
                mac, body = _exactly(self._connection, NUM_BYTES), _exactly(self._connection, length)
                self._num_received += 1
                if not hmac.compare_digest(mac, self._mac(self._in, self._num_received, body)):
                    return
                line, _, rows = body.partition(b"\n")
                values = json.loads(line)
            except (Unauthenticated, ValueError, RecursionError):
                return
            if not isinstance(values, dict):
                return
            yield values, rows

    def close(self) -> None:
        with suppress(OSError):  # the peer has disconnected
            self._connection.shutdown(socket.SHUT_RDWR)  # or it would stay open in the thread that reads it
        self._connection.close()


def _exactly(connection: socket.socket | TlsConnection, length: int, until_s: float = inf) -> bytes:
    """This many bytes before a deadline for all of them."""
    data = bytearray()
    while len(data) < length:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise Unauthenticated
        connection.settimeout(None if until_s == inf else left_s)
        part = connection.recv(length - len(data))
        if not part:
            raise Unauthenticated
        data += part
    return bytes(data)
