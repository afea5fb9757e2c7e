"""A server of the HTTP app in a background thread, for benchmarks and tests."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import FastAPI

from takeup.errors import BadInput
from takeup.serving.server.app import GRACE_S, listen_on, make_server


@contextmanager
def background_server(app: FastAPI, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve in a thread on a free port; gives the address, and stops at the end of the block."""
    server = make_server(app, None, GRACE_S)
    with listen_on(host, 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="http", daemon=True)
        thread.start()
        try:
            while not server.started:
                if not thread.is_alive():
                    raise BadInput("the server did not start; its log says why")
                thread.join(0.01)
            yield f"http://{host}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
