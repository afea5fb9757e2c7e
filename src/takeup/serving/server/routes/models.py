"""`/v1/models`: the model that is served, and `/v1/requests`: how far requests are."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import Response

from takeup.serving.server.answers import EVENTS, progress_response
from takeup.serving.server.callers import REQUEST_ID, ServiceOf, TenantOf
from takeup.serving.server.errors import ApiError
from takeup.serving.server.schemas import ModelList, ModelObject
from takeup.serving.server.service import Service

models_router = APIRouter(prefix="/v1", tags=["models"])


@models_router.get("/models")
async def list_models(_: TenantOf, service: ServiceOf) -> ModelList:
    """The model."""
    return ModelList(data=[_model(service)])


@models_router.get("/models/{model:path}")
async def show_model(model: str, _: TenantOf, service: ServiceOf) -> ModelObject:
    """The model, if this is its name."""
    if model != service.settings.model:
        message = f"the model {model!r} is not served here; this is {service.settings.model!r}"
        raise ApiError(404, message, param="model", code="model_not_found")
    return _model(service)


@models_router.get("/requests/{id}/events", response_class=Response, responses=EVENTS)
async def watch(
    identity: Annotated[str, Path(alias="id", pattern=REQUEST_ID)], tenant: TenantOf, service: ServiceOf
) -> Response:
    """The progress of a request of yours, as server-sent events, from its beginning to its end."""
    return progress_response(service.progress_hub.find(tenant, identity), identity)


def _model(service: Service) -> ModelObject:
    card = service.backend.card
    created = int(service.started_s)
    return ModelObject(id=service.settings.model, created=created, family=card.family, controls=list(card.controls))
