"""Routes other than images: `/v1/models`, `/v1/requests`, `/v1/adapters`, `/v1/templates`, health and metrics."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, File, Form, Path, UploadFile
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from takeup.serving.server.access import NAME
from takeup.serving.server.adapter_registry import RegisteredAdapter
from takeup.serving.server.adapter_sources import opened
from takeup.serving.server.errors import ApiError, ErrorBody
from takeup.serving.server.image_routes import EVENTS, REQUEST_ID, ServiceOf, TenantOf, progress_response
from takeup.serving.server.schemas import (
    TEMPLATE,
    AdapterObject,
    DeletionResult,
    JobObject,
    Listing,
    ModelObject,
    Name,
    TemplateObject,
)
from takeup.serving.server.service import Service

# `/v1/models`: the model that is served, and `/v1/requests`: how far requests are -------------------------------------

models_router = APIRouter(prefix="/v1", tags=["models"])
PICTURES: dict[int | str, dict[str, Any]] = {200: {"content": {"image/*": {}}}}


@models_router.get("/models")
async def list_models(_: TenantOf, service: ServiceOf) -> Listing[ModelObject]:
    """List the served model."""
    return Listing(data=[_model(service)])


@models_router.get("/models/{model:path}")
async def show_model(model: str, _: TenantOf, service: ServiceOf) -> ModelObject:
    """The model, if this is its name."""
    if model != service.settings.model:
        message = f"the model {model!r} is not served here; this is {service.settings.model!r}"
        raise ApiError(404, message, param="model", code="model_not_found")
    return _model(service)


Identity = Annotated[str, Path(alias="id", pattern=REQUEST_ID)]


@models_router.get("/jobs/{id}", response_model_exclude_none=True)
async def show_job(identity: Identity, tenant: TenantOf, service: ServiceOf) -> JobObject:
    """The state of a job that was sent with `Prefer: respond-async` or a webhook, and its images when it is done."""
    return JobObject(**service.jobs.find(tenant, identity).facts())


@models_router.delete("/jobs/{id}", response_model_exclude_none=True)
async def cancel_job(identity: Identity, tenant: TenantOf, service: ServiceOf) -> JobObject:
    """Cancel a job; one that has ended stays as it is."""
    return JobObject(**(await service.jobs.cancel(tenant, identity)).facts())


@models_router.get("/files/{name}", response_class=Response, responses=PICTURES)
async def show_file(name: Annotated[str, Path(max_length=100)], service: ServiceOf) -> Response:
    """An image by the URL of an answer, until it expires."""
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "private, max-age=3600"}
    return Response(service.files.find(name), media_type=f"image/{name.rpartition('.')[2]}", headers=headers)


@models_router.get("/requests/{id}/events", response_class=Response, responses=EVENTS)
async def watch(identity: Identity, tenant: TenantOf, service: ServiceOf) -> Response:
    """The progress of one of your requests as server-sent events, from its beginning to its end."""
    return progress_response(service.progress_hub.find(tenant, identity), identity)


def _model(service: Service) -> ModelObject:
    card = service.backend.card
    created = int(service.started_s)
    return ModelObject(id=service.settings.model, created=created, family=card.family, controls=list(card.controls))


# `/v1/adapters`: LoRAs that can be named in requests ------------------------------------------------------------------

adapters_router = APIRouter(prefix="/v1/adapters", tags=["adapters"])
SOURCE = "Instead of a file: a path, a URL, or owner/name of the hub, as far as the operator allows it."
AdapterInPath = Annotated[str, Path(pattern=rf"^{NAME}$")]


@adapters_router.get("")
async def list_adapters(tenant: TenantOf, service: ServiceOf) -> Listing[AdapterObject]:
    """Your own LoRAs and the shared ones."""
    return Listing(data=[_object(one, service) for one in service.adapter_registry.seen_by(tenant)])


@adapters_router.post("", status_code=201)
async def upload_adapter(
    name: Annotated[Name, Form()],
    tenant: TenantOf,
    service: ServiceOf,
    file: Annotated[UploadFile | None, File()] = None,
    source: Annotated[str | None, Form(max_length=2000, description=SOURCE)] = None,
    replace: Annotated[bool, Form(description="Take the place of the LoRA of this name.")] = False,
) -> AdapterObject:
    """Store a LoRA in the safetensors format. The whole file is checked before requests can use it."""
    if (file is None) == (source is None):
        raise ApiError(400, "send either a file or a source", param="file", code="invalid_value")
    return _object(await service.run_in_thread(_add, service, tenant, name, file or source, replace), service)


Action = Literal["load", "unload", "pin", "unpin"]


def _add(service: Service, tenant: str, name: str, given: UploadFile | str, replaces: bool) -> RegisteredAdapter:
    registry = service.adapter_registry
    if not isinstance(given, str):
        return registry.add(tenant, name, given.file, replaces=replaces)
    settings = service.settings
    with opened(given, settings.sources, settings.limits.max_adapter_bytes) as file:
        return registry.add(tenant, name, file, replaces=replaces)


@adapters_router.post("/{name}/{action}")
async def act_on_adapter(name: AdapterInPath, action: Action, tenant: TenantOf, service: ServiceOf) -> AdapterObject:
    """Load one of your LoRAs into memory, drop it from there, or pin it there until it is unpinned."""
    registry, backend = service.adapter_registry, service.backend
    path = str(registry.own(tenant, name).path)
    if action in ("pin", "unpin"):
        registry.mark_pinned(tenant, name, is_pinned=action == "pin")
        backend.pin(path, is_pinned=action == "pin")
    elif action == "load":
        backend.pin(path, is_pinned=True)
        backend.pin(path, is_pinned=registry.own(tenant, name).is_pinned)
    else:
        registry.mark_pinned(tenant, name, is_pinned=False)
        backend.forget(path)
    return _object(registry.own(tenant, name), service)


@adapters_router.delete("/{name}")
async def delete_adapter(name: AdapterInPath, tenant: TenantOf, service: ServiceOf) -> DeletionResult:
    """Delete one of your LoRAs. Requests that use it can finish."""
    await service.run_in_thread(service.adapter_registry.remove, tenant, name)
    return DeletionResult(id=name)


def _object(adapter: object, service: Service) -> AdapterObject:
    assert isinstance(adapter, RegisteredAdapter)
    return AdapterObject(
        id=adapter.name,
        created=int(adapter.created_s),
        bytes=adapter.size_bytes,
        shared=adapter.is_shared,
        pinned=adapter.is_pinned,
        loaded=str(adapter.path) in service.backend.loras,
    )


# `/v1/templates`: images that were edited, and can be named instead of sent again -------------------------------------

templates_router = APIRouter(prefix="/v1/templates", tags=["templates"])
TemplateInPath = Annotated[str, Path(pattern=TEMPLATE)]


@templates_router.get("")
async def list_templates(tenant: TenantOf, service: ServiceOf) -> Listing[TemplateObject]:
    """Your templates, most recently used first. The least recently used ones are deleted when there are too many."""
    kept = service.edit_inputs.seen_by(tenant)
    data = [TemplateObject(id=one.template, used=int(one.used_s), bytes=one.size_bytes) for one in kept]
    return Listing(data=data)


@templates_router.delete("/{template}")
async def delete_template(template: TemplateInPath, tenant: TenantOf, service: ServiceOf) -> DeletionResult:
    """Delete an image and all that was computed from it. Edits that use it can finish."""
    await service.run_in_thread(service.edit_inputs.remove, tenant, template)
    return DeletionResult(id=template, object="template")


# Whether the server lives, whether it can take requests, and its metrics ----------------------------------------------

health_router = APIRouter(tags=["health"])
NOT_READY: dict[int | str, dict[str, Any]] = {503: {"model": ErrorBody}}
PAGE: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


class Health(BaseModel):
    """It does."""

    status: Literal["ok"] = "ok"


@health_router.get("/health")
async def health() -> Health:
    """Answers while the process runs."""
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
