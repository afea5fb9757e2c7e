"""The HTTP app: routes, errors, middleware and its OpenAPI document; the listener and the log it runs with."""

import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import uvicorn
from fastapi import FastAPI

from takeup.errors import BadInput
from takeup.serving.server import errors
from takeup.serving.server.access import ApiKeys, LimitsMiddleware
from takeup.serving.server.backends import Backend
from takeup.serving.server.errors import ErrorBody
from takeup.serving.server.image_routes import images_router, page_router
from takeup.serving.server.resource_routes import adapters_router, health_router, models_router, templates_router
from takeup.serving.server.service import Service
from takeup.serving.server.settings import ServerSettings

# What a server writes to its log: lines for people, or one JSON object for each. Headers, so keys, are never in it


class JsonLines(logging.Formatter):
    """One object a line: time, level, what, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told)


def log_config(as_json: bool) -> dict[str, Any]:
    """The configuration of the standard library's logging: everything to stderr."""
    plain = {"format": "%(asctime)s %(levelname)s %(message)s"}
    lines = {"()": "takeup.serving.server.app.JsonLines"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"lines": lines if as_json else plain},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "lines", "stream": "ext://sys.stderr"}},
        "loggers": {
            name: {"handlers": ["stderr"], "level": "INFO", "propagate": False} for name in ("uvicorn", "takeup")
        },
    }


# Run a server: in this thread until it is stopped, or in a background thread for programs and tests -------------------

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


# The app: routes, errors, the middleware around them, and the OpenAPI document ----------------------------------------

ANSWERS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "A field, file or image that cannot be used."},
    401: {"model": ErrorBody, "description": "No valid key."},
    403: {"model": ErrorBody, "description": "Not yours, or from a foreign page."},
    404: {"model": ErrorBody, "description": "No such model, adapter, ControlNet, template or request."},
    409: {"model": ErrorBody, "description": "The name is taken."},
    413: {"model": ErrorBody, "description": "A body above the limit."},
    429: {
        "model": ErrorBody,
        "description": "The queue is full, or the deadline too near; come again after `Retry-After` seconds.",
    },
    500: {"model": ErrorBody, "description": "The server failed on this request."},
    503: {"model": ErrorBody, "description": "No worker is ready."},
    504: {"model": ErrorBody, "description": "Not ready by its deadline."},
}


def make_app(
    settings: ServerSettings, backend: Backend, keys: ApiKeys, on_start: Callable[[], None] = lambda: None
) -> FastAPI:
    """The app for a backend that is ready; it closes the backend when it stops."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        app.state.service = service = Service(settings, backend)
        on_start()
        try:
            yield
        finally:
            service.close()

    app = FastAPI(
        title="takeup serve",
        version=version("takeup"),
        description="Images from diffusion models, where every request brings its own LoRAs and ControlNets.",
        lifespan=life,
        docs_url=None,  # its page fetches scripts from elsewhere
        redoc_url=None,
    )
    app.state.keys = keys
    for router in (images_router, adapters_router, templates_router, models_router):
        app.include_router(router, responses=ANSWERS)
    app.include_router(health_router, responses={status: ANSWERS[status] for status in (401, 403)})
    app.include_router(page_router)
    errors.install(app)
    app.add_middleware(LimitsMiddleware, limits=settings.limits, only_loopback=not keys)
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    """The usual document without status 422, which this server does not send."""
    if app.openapi_schema is None:
        document = FastAPI.openapi(app)
        for methods in document["paths"].values():
            for operation in methods.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        app.openapi_schema = document
    return app.openapi_schema
