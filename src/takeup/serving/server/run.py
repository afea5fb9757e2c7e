"""Run a server: in this thread until it is stopped, or in a background thread for programs and tests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import uvicorn
from fastapi import FastAPI

from takeup.errors import BadInput

GRACE_S = 30


def listen_on(host: str, port: int) -> socket.socket:
    """Bind a socket early, so that the port stays reserved while the model is loaded; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as problem:
        listener.close()
        raise BadInput(f"cannot listen on {host}:{port} ({problem.strerror or problem}); choose another port") from None
    return listener


def serve(app: FastAPI, listener: socket.socket, log_config: dict[str, object] | None = None) -> None:
    """Serve until SIGINT or SIGTERM; what runs is given some time to finish."""
    with suppress(KeyboardInterrupt):  # raised again by uvicorn when all is done
        _server(app, log_config).run(sockets=[listener])


@contextmanager
def background_server(app: FastAPI, host: str = "127.0.0.1") -> Iterator[str]:
    """Serve in a thread on a free port; gives the address, and stops at the end of the block."""
    server = _server(app, None)
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


def _server(app: FastAPI, log_config: dict[str, object] | None) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        log_config=log_config,
        log_level="warning" if log_config is None else None,
        access_log=log_config is not None,
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
        backlog=2048,
    )
    return uvicorn.Server(config)
