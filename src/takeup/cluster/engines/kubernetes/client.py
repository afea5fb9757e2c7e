"""A small client of the Kubernetes API: plain HTTP on kept-alive connections, one for each thread.

An answer is always read to its end, or its connection could not be used again. A server that answers 5xx or not at all
is `ApiUnreachable`; one that says no is `RequestRefused`, with the status and the reason it gave.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from takeup.cluster.engines.kubernetes.access import ApiAccess
from takeup.errors import TakeupError

Json = dict[str, Any]

CONTENT_TYPES = {
    "POST": "application/json",
    "PUT": "application/json",
    "DELETE": "application/json",
    "PATCH": "application/merge-patch+json",
}


class ApiUnreachable(TakeupError):
    """The API server does not answer, or says that it cannot."""


class RequestRefused(TakeupError):
    """The API server said no."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"the API server answered {status} {reason}: {message}")
        self.status = status
        self.reason = reason


@dataclass(slots=True)
class Client:
    """Speaks to one API server; any thread may use it, and closes what it used."""

    access: ApiAccess
    timeout_s: float = 10.0
    _local: threading.local = field(default_factory=threading.local)

    def get(self, path: str, **query: object) -> Json:
        """One object or one list."""
        return self.request("GET", path + (f"?{urlencode(query)}" if query else ""))

    def request(self, method: str, path: str, body: Json | None = None, content_type: str = "") -> Json:
        """What the server answers; a connection that went stale while it was idle is opened once more."""
        data = None if body is None else json.dumps(body)
        headers = self._headers(content_type or CONTENT_TYPES.get(method, ""))
        is_kept = getattr(self._local, "connection", None) is not None
        try:
            status, content = self._exchange(method, path, data, headers)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            if not is_kept:
                raise ApiUnreachable(self._lost("it hung up")) from None
            status, content = self._exchange_once_more(method, path, data, headers)
        except (OSError, http.client.HTTPException) as error:
            raise ApiUnreachable(self._lost(error)) from error
        return _checked(status, content)

    def watch(self, path: str, timeout_s: float, **query: object) -> WatchStream:
        """Watch a path from now on, over a dedicated connection."""
        asked = urlencode({**query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": int(timeout_s)})
        return WatchStream(self, f"{path}?{asked}", self._connect(timeout_s + self.timeout_s))

    def close(self) -> None:
        """Close this thread's connection."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def _exchange_once_more(self, method: str, path: str, data: str | None, headers: Json) -> tuple[int, bytes]:
        try:
            return self._exchange(method, path, data, headers)
        except (OSError, http.client.HTTPException) as error:
            raise ApiUnreachable(self._lost(error)) from error

    def _exchange(self, method: str, path: str, data: str | None, headers: Json) -> tuple[int, bytes]:
        if getattr(self._local, "connection", None) is None:
            self._local.connection = self._connect(self.timeout_s)
        connection: http.client.HTTPConnection = self._local.connection
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except BaseException:
            self.close()  # what is left of this answer must not be taken for the next one
            raise

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        parts = urlsplit(self.access.server)
        assert parts.hostname is not None
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout_s, context=self.access.tls)

    def _headers(self, content_type: str) -> dict[str, str]:
        token = self.access.token()
        headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        return headers | ({"Content-Type": content_type} if content_type else {})

    def _lost(self, error: object) -> str:
        return f"{self.access.server} does not answer ({error or type(error).__name__}); waiting for it"


@dataclass(slots=True)
class WatchStream:
    """Events until the server ends the watch; the first one says that it has begun."""

    client: Client
    path: str
    connection: http.client.HTTPConnection

    def __iter__(self) -> Iterator[Json]:
        with closing(self.connection):
            try:
                self.connection.request("GET", self.path, headers=self.client._headers(""))
                answer = self.connection.getresponse()
                if answer.status != http.client.OK:
                    _checked(answer.status, answer.read())
                yield {"type": "BEGUN"}
                for line in answer:
                    yield json.loads(line)
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise ApiUnreachable(self.client._lost(error)) from error

    def end(self) -> None:
        """Shut the socket down, so that a thread blocked on the next event wakes up; no more events follow."""
        sock: socket.socket | None = self.connection.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def _checked(status: int, content: bytes) -> Json:
    """The answer as an object; errors as exceptions."""
    try:
        answer = json.loads(content) if content else {}
    except ValueError:
        answer = {"message": content[:200].decode("utf-8", "replace")}
    if status < http.client.BAD_REQUEST:
        assert isinstance(answer, dict)
        return answer
    message = str(answer.get("message", "")) if isinstance(answer, Mapping) else ""
    if status >= http.client.INTERNAL_SERVER_ERROR:
        raise ApiUnreachable(f"the API server answered {status}: {message}; waiting for it")
    raise RequestRefused(status, str(answer.get("reason", "")), message)
