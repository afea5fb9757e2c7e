"""The HTTP app: routes, errors, middleware and its OpenAPI document; the listener and the log it runs with."""

import asyncio
import ctypes
import gc
import json
import logging
import math
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, ClassVar

import uvicorn
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol

from takeup.errors import BadInput
from takeup.serving.server import errors
from takeup.serving.server.access import ApiKeys, LimitsMiddleware
from takeup.serving.server.backends import Backend
from takeup.serving.server.errors import ErrorBody
from takeup.serving.server.image_routes import images_router, page_router
from takeup.serving.server.resource_routes import adapters_router, health_router, models_router, templates_router
from takeup.serving.server.service import Service
from takeup.serving.server.settings import ServerLimits, ServerSettings

# The log of a server: plain lines, or one JSON object per line. Headers, and so keys, are never written


class JsonLines(logging.Formatter):
    """One object per line: time, level, message, and the traceback if there is one."""

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


# Run a server in this thread until it is stopped ----------------------------------------------------------------------

GRACE_S = 30.0
STOP_S = 1.0


class _Server(uvicorn.Server):
    """Drains before it stops: after the first signal new requests get 503, and running ones have `grace_s` to finish.

    The listener stays open meanwhile, so that a load balancer sees /ready fail. What is still running at the end of the
    grace is answered with 503. The process ends `STOP_S` later, even if a thread is stuck in a computation.
    """

    def __init__(self, config: uvicorn.Config, service: Callable[[], Service | None], grace_s: float) -> None:
        super().__init__(config)
        self._service, self._grace_s, self._until_s = service, grace_s, math.inf

    def handle_exit(self, sig: int, frame: Any) -> None:
        service = self._service()
        if service is None or self._until_s < math.inf:
            super().handle_exit(sig, frame)  # not started yet, or the second signal
            return
        self._captured_signals.append(sig)
        service.is_stopping = True
        self._until_s = time.monotonic() + self._grace_s
        hard_stop = threading.Timer(self._grace_s + STOP_S, _end_process)
        hard_stop.daemon = True
        hard_stop.start()

    async def on_tick(self, counter: int) -> bool:
        service = self._service()
        if service is not None and self._until_s < math.inf and not self.should_exit:
            is_late = time.monotonic() >= self._until_s
            for work in list(service.works) if is_late else ():
                work.stop()
            self.should_exit = is_late or not service.works
        return await super().on_tick(counter)


def _end_process() -> None:
    """End this process and its workers without waiting for their threads."""
    for process in multiprocessing.active_children():
        process.kill()
    logging.getLogger("takeup").warning("stopped before all threads had finished")
    os._exit(0)


def _protocol(limits: ServerLimits) -> type[H11Protocol]:
    """The HTTP protocol, with a limit on the time until the headers are complete and on the number of connections."""

    class TimedProtocol(H11Protocol):
        waiting: ClassVar[dict[H11Protocol, asyncio.TimerHandle]] = {}

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._follow()
            if len(self.connections) > limits.max_connections:
                oldest = next(iter(self.waiting), self)
                oldest.transport.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._follow()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._forget()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._forget()  # uvicorn closes idle connections itself

        def _follow(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                self._forget()
            elif self not in self.waiting:
                self.waiting[self] = self.loop.call_later(limits.header_s, self.transport.abort)

        def _forget(self) -> None:
            if self in self.waiting:
                self.waiting.pop(self).cancel()

    return TimedProtocol


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


def serve(
    app: FastAPI, listener: socket.socket, log_config: dict[str, object] | None = None, grace_s: float = GRACE_S
) -> None:
    """Serve until SIGINT or SIGTERM; running requests have `grace_s` seconds to finish."""
    with suppress(KeyboardInterrupt):  # raised again by uvicorn when all is done
        make_server(app, log_config, grace_s).run(sockets=[listener])


def make_server(app: FastAPI, log_config: dict[str, object] | None, grace_s: float) -> uvicorn.Server:
    """The server of this app; without `log_config` it logs warnings only."""
    config = uvicorn.Config(
        app,
        http=_protocol(app.state.limits),
        log_config=log_config,
        log_level="warning" if log_config is None else None,
        access_log=log_config is not None,
        timeout_graceful_shutdown=math.ceil(STOP_S if log_config is not None else grace_s),
        server_header=False,
        backlog=2048,
    )
    return _Server(config, lambda: getattr(app.state, "service", None), grace_s)


# The app: routes, errors, the middleware around them, and the OpenAPI document ----------------------------------------

ANSWERS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": what}
    for status, what in {
        400: "A field, file or image that cannot be used.",
        401: "No valid key.",
        403: "Not yours, or from a foreign page.",
        404: "No such model, adapter, ControlNet, template or request.",
        408: "The body arrives too slowly.",
        409: "The name is taken.",
        413: "A body above the limit.",
        429: "The queue is full, or the deadline too near; come again after `Retry-After` seconds.",
        500: "The server failed on this request.",
        503: "No worker is ready, or the server is stopping.",
        504: "Not ready by its deadline.",
        507: "The disk of the server is full.",
    }.items()
}


def make_app(
    settings: ServerSettings, backend: Backend, keys: ApiKeys, on_start: Callable[[], None] = lambda: None
) -> FastAPI:
    """The app for a backend that is ready; it closes the backend when it stops."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        app.state.service = service = Service(settings, backend, keys.tenants)
        on_start()
        trimming = asyncio.create_task(_trim_memory(service))
        try:
            yield
        finally:
            trimming.cancel()
            service.close()

    app = FastAPI(
        title="takeup serve",
        version=version("takeup"),
        description="Images from diffusion models, where every request brings its own LoRAs and ControlNets.",
        lifespan=life,
        docs_url=None,  # its page fetches scripts from elsewhere
        redoc_url=None,
    )
    app.state.keys, app.state.limits = keys, settings.limits
    for router in (images_router, adapters_router, templates_router, models_router):
        app.include_router(router, responses=ANSWERS)
    app.include_router(health_router, responses={status: ANSWERS[status] for status in (401, 403)})
    app.include_router(page_router)
    errors.install(app)
    app.add_middleware(LimitsMiddleware, cors=frozenset(settings.cors), limits=settings.limits, keys=keys)
    if settings.cors:
        app.add_middleware(CORSMiddleware, allow_origins=[*settings.cors], allow_methods=["*"], allow_headers=["*"])
    app.openapi = lambda: _document(app)  # type: ignore[method-assign]
    return app


TRIM_EVERY_S = 60.0


async def _trim_memory(service: Service) -> None:
    """Collect what requests leave in cycles, and give its pages and those of freed images back to the system.

    Python would collect it when there is a quarter as much as of the libraries' own objects, which are many; these are
    taken out of its account once, so that a collection is short.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)  # of glibc
    gc.freeze()
    while True:
        await asyncio.sleep(TRIM_EVERY_S)
        await service.run_in_thread(gc.collect)
        await service.run_in_thread(trim, 0)


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
