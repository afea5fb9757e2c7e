"""A few pages of text over HTTP, such as `/metrics` for Prometheus, that strangers can neither read nor use up.

Beyond loopback a bearer token from the environment is required; without it, only the status of a probe is served.
Further connections than MOST_CONNECTIONS are closed at once, and each is closed after LIMIT_S seconds, even if its
client sends one byte now and then.
"""

import hmac
import os
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any

from takeup.errors import BadInput

MOST_CONNECTIONS, LIMIT_S = 8, 5.0
TOKEN_VARIABLE, MIN_TOKEN_CHARS = "TAKEUP_METRICS_TOKEN", 16
PROBES = ("/healthz", "/readyz")  # what starts and routes containers has no token
Page = Callable[[], tuple[bool, str]]  # whether all is well, and the text


class PageServer(ThreadingHTTPServer):
    """Serves pages by their paths on an address, in a thread of its own, until it is closed."""

    daemon_threads = True

    def __init__(self, address: str, pages: Mapping[str, Page]) -> None:
        """Listen on `HOST:PORT`, or on a port of the loopback address; port 0 is any that is free."""
        host, _, port = address.rpartition(":")
        self.pages, self.token = pages, os.environ.get(TOKEN_VARIABLE, "")
        if host and not is_loopback(host) and len(self.token) < MIN_TOKEN_CHARS:
            raise BadInput(
                f"other machines can read pages on {address!r}; set {TOKEN_VARIABLE} to a secret of {MIN_TOKEN_CHARS} "
                "characters or more, or give a loopback address such as 127.0.0.1"
            )
        self._slots = threading.BoundedSemaphore(MOST_CONNECTIONS)
        try:
            super().__init__((host or "127.0.0.1", int(port)), _Handler)
        except (OSError, ValueError, OverflowError) as error:
            raise BadInput(f"no pages on {address!r}: {error}; give HOST:PORT with a port that is free") from error
        threading.Thread(target=self.serve_forever, name="takeup-pages", daemon=True).start()

    def close(self) -> None:
        """Stop serving and free the port."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._slots.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        deadline = threading.Timer(LIMIT_S, _shut, (request,))
        deadline.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            deadline.cancel()
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away or was too slow."""


def is_loopback(host: str | None) -> bool:
    """Whether the name or address means this machine only."""
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:  # a name, and names can lead anywhere
        return False


def _shut(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:  # closed already
        return


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        code, text = self._answer(self.path.partition("?")[0])
        body = text.encode()
        self.send_response(code)
        if code == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, path: str) -> tuple[int, str]:
        """Status and text; without the token, the status of probes alone."""
        is_trusted, page = self._is_trusted(), self.server.pages.get(path)
        if not is_trusted and path not in PROBES:
            return 401, ""
        if page is None:
            return 404, ""
        is_well, text = page()
        return 200 if is_well else 503, text if is_trusted else ""

    def _is_trusted(self) -> bool:
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        is_same = hmac.compare_digest(given.strip().encode(), self.server.token.encode())
        return not self.server.token or (is_same and scheme.lower() == "bearer")

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  the name it has there
        """Suppress request logging."""
