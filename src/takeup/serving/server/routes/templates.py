"""`/v1/templates`: images that were edited, and can be named instead of sent again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from takeup.serving.server.callers import ServiceOf, TenantOf
from takeup.serving.server.schemas import TEMPLATE, Removed, TemplateList, TemplateObject

router = APIRouter(prefix="/v1/templates", tags=["templates"])
InPath = Annotated[str, Path(pattern=TEMPLATE)]


@router.get("")
async def list_templates(tenant: TenantOf, service: ServiceOf) -> TemplateList:
    """Yours, the last used first. Those that were not used for longest leave when there are too many."""
    kept = service.gallery.seen_by(tenant)
    data = [TemplateObject(id=one.template, used=int(one.used_s), bytes=one.size_bytes) for one in kept]
    return TemplateList(data=data)


@router.delete("/{template}")
async def delete_template(template: InPath, tenant: TenantOf, service: ServiceOf) -> Removed:
    """Take an image away, and all that was computed of it. Edits that use it finish with it."""
    await service.beside(service.gallery.remove, tenant, template)
    return Removed(id=template, object="template")
