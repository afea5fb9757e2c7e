"""`/v1/templates`: images that were edited, and can be named instead of sent again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from takeup.serving.server.callers import ServiceOf, TenantOf
from takeup.serving.server.schemas import TEMPLATE, DeletionResult, TemplateList, TemplateObject

templates_router = APIRouter(prefix="/v1/templates", tags=["templates"])
TemplateInPath = Annotated[str, Path(pattern=TEMPLATE)]


@templates_router.get("")
async def list_templates(tenant: TenantOf, service: ServiceOf) -> TemplateList:
    """Yours, the last used first. Those that were not used for longest leave when there are too many."""
    kept = service.edit_inputs.seen_by(tenant)
    data = [TemplateObject(id=one.template, used=int(one.used_s), bytes=one.size_bytes) for one in kept]
    return TemplateList(data=data)


@templates_router.delete("/{template}")
async def delete_template(template: TemplateInPath, tenant: TenantOf, service: ServiceOf) -> DeletionResult:
    """Take an image away, and all that was computed of it. Edits that use it finish with it."""
    await service.run_in_thread(service.edit_inputs.remove, tenant, template)
    return DeletionResult(id=template, object="template")
