"""Whether the server lives, whether it can take requests, and its metrics."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from takeup.serving.server.callers import ServiceOf, TenantOf
from takeup.serving.server.errors import ApiError, ErrorBody

health_router = APIRouter(tags=["health"])
NOT_READY: dict[int | str, dict[str, Any]] = {503: {"model": ErrorBody}}
PAGE: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


class Health(BaseModel):
    """It does."""

    status: Literal["ok"] = "ok"


@health_router.get("/health")
async def health() -> Health:
    """Answers as long as the process does."""
    return Health()


@health_router.get("/ready", responses=NOT_READY)
async def ready(service: ServiceOf) -> Health:
    """Answers 200 if images can be made now."""
    if not service.is_ready:
        raise ApiError(503, "no worker is ready", kind="server_error", code="not_ready", headers={"Retry-After": "5"})
    return Health()


@health_router.get("/metrics", response_class=Response, responses=PAGE)
async def metrics(_: TenantOf, service: ServiceOf) -> Response:
    """Counts and times in the text format of Prometheus."""
    return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)
