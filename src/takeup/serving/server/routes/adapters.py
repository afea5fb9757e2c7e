"""`/v1/adapters`: LoRAs that can be named in requests."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, File, Form, Path, UploadFile

from takeup.serving.server.callers import ServiceOf, TenantOf
from takeup.serving.server.schemas import AdapterList, AdapterObject, Name, Removed
from takeup.serving.server.shelf import Adapter
from takeup.serving.server.tenants import NAME

router = APIRouter(prefix="/v1/adapters", tags=["adapters"])
InPath = Annotated[str, Path(pattern=rf"^{NAME}$")]


@router.get("")
async def list_adapters(tenant: TenantOf, service: ServiceOf) -> AdapterList:
    """Your own LoRAs, and those that are shared."""
    return AdapterList(data=[_object(one) for one in service.shelf.seen_by(tenant)])


@router.post("", status_code=201)
async def upload_adapter(
    name: Annotated[Name, Form()], file: Annotated[UploadFile, File()], tenant: TenantOf, service: ServiceOf
) -> AdapterObject:
    """Keep a LoRA in the safetensors format. It is read and checked as a whole before it can be named."""
    added = await service.beside(service.shelf.add, tenant, name, file.file)
    assert isinstance(added, Adapter)
    return _object(added)


@router.delete("/{name}")
async def delete_adapter(name: InPath, tenant: TenantOf, service: ServiceOf) -> Removed:
    """Take a LoRA of yours away. Requests that use it finish with it."""
    await service.beside(service.shelf.remove, tenant, name)
    return Removed(id=name)


def _object(adapter: Adapter) -> AdapterObject:
    return AdapterObject(
        id=adapter.name, created=int(adapter.created_s), bytes=adapter.size_bytes, shared=adapter.is_shared
    )
