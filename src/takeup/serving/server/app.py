"""The app: routes, errors, the guard around them, and the document that describes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI

from takeup.serving.server import errors
from takeup.serving.server.errors import ErrorBody
from takeup.serving.server.guard import LimitsMiddleware
from takeup.serving.server.jobs import Backend
from takeup.serving.server.routes import adapters, health, images, models, page, templates
from takeup.serving.server.service import Service
from takeup.serving.server.settings import ServerSettings
from takeup.serving.server.tenants import ApiKeys

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
    for part in (images, adapters, templates, models):
        app.include_router(part.router, responses=ANSWERS)
    app.include_router(health.health_router, responses={status: ANSWERS[status] for status in (401, 403)})
    app.include_router(page.page_router)
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
