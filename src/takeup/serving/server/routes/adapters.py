"""`/v1/adapters`: LoRAs that can be named in requests."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, File, Form, Path, UploadFile

from takeup.serving.server.callers import ServiceOf, TenantOf
from takeup.serving.server.schemas import AdapterList, AdapterObject, DeletionResult, Name
from takeup.serving.server.shelf import RegisteredAdapter
from takeup.serving.server.tenants import NAME

adapters_router = APIRouter(prefix="/v1/adapters", tags=["adapters"])
AdapterInPath = Annotated[str, Path(pattern=rf"^{NAME}$")]


@adapters_router.get("")
async def list_adapters(tenant: TenantOf, service: ServiceOf) -> AdapterList:
    """Your own LoRAs, and those that are shared."""
    return AdapterList(data=[_object(one) for one in service.adapter_registry.seen_by(tenant)])


@adapters_router.post("", status_code=201)
async def upload_adapter(
    name: Annotated[Name, Form()], file: Annotated[UploadFile, File()], tenant: TenantOf, service: ServiceOf
) -> AdapterObject:
    """Keep a LoRA in the safetensors format. It is read and checked as a whole before it can be named."""
    added = await service.run_in_thread(service.adapter_registry.add, tenant, name, file.file)
    assert isinstance(added, RegisteredAdapter)
    return _object(added)


@adapters_router.delete("/{name}")
async def delete_adapter(name: AdapterInPath, tenant: TenantOf, service: ServiceOf) -> DeletionResult:
    """Take a LoRA of yours away. Requests that use it finish with it."""
    await service.run_in_thread(service.adapter_registry.remove, tenant, name)
    return DeletionResult(id=name)


def _object(adapter: RegisteredAdapter) -> AdapterObject:
    return AdapterObject(
        id=adapter.name, created=int(adapter.created_s), bytes=adapter.size_bytes, shared=adapter.is_shared
    )
