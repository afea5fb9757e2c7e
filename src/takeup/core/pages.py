"""A few pages of text over HTTP, such as `/metrics` for Prometheus, that strangers cannot use up.

Further connections than MOST_CONNECTIONS are closed at once, and each is closed after LIMIT_S seconds, even if its
client sends one byte now and then.
"""

import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from takeup.errors import BadInput

MOST_CONNECTIONS, LIMIT_S = 8, 5.0
Page = Callable[[], tuple[bool, str]]  # whether all is well, and the text


class PageServer(ThreadingHTTPServer):
    """Serves pages by their paths on an address, in a thread of its own, until it is closed."""

    daemon_threads = True

    def __init__(self, address: str, pages: Mapping[str, Page]) -> None:
        """Listen on `HOST:PORT`, or on a port of the loopback address; port 0 is any that is free."""
        host, _, port = address.rpartition(":")
        self.pages = pages
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


def _shut(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)
    except OSError:  # closed already
        return


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path.partition("?")[0])
        is_well, text = (False, "") if page is None else page()
        body = text.encode()
        self.send_response(404 if page is None else 200 if is_well else 503)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  the name it has there
        """Suppress request logging."""
