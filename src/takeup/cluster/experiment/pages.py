"""Pages of a controller over HTTP: `/metrics` for Prometheus, `/healthz` and `/readyz` for probes."""

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from takeup.errors import BadInput

READ_LIMIT_S = 5.0
Page = Callable[[], tuple[bool, str]]  # whether all is well, and the text


def serve_pages(address: str, pages: Mapping[str, Page]) -> ThreadingHTTPServer:
    """Serve pages by path on `HOST:PORT`, or on a port of the loopback address, until shut down."""
    host, _, port = address.rpartition(":")

    class Handler(BaseHTTPRequestHandler):
        timeout = READ_LIMIT_S

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            is_well, text = (False, "") if page is None else page()
            body = text.encode()
            self.send_response(404 if page is None else 200 if is_well else 503)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  the name it has there
            """Suppress request logging."""

    try:
        server = ThreadingHTTPServer((host or "127.0.0.1", int(port)), Handler)
    except (OSError, ValueError, OverflowError) as error:
        raise BadInput(f"no pages on {address!r}: {error}; give '--listen HOST:PORT', such as 0.0.0.0:9400") from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="takeup-cluster-pages", daemon=True).start()
    return server
