"""`/v1/images`: images from texts, images from images."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, File, Request
from fastapi.responses import Response

from takeup.serving.server.answers import EVENTS, complete_response, streaming_response
from takeup.serving.server.callers import CallerOf, ServiceOf
from takeup.serving.server.gallery import EditFiles
from takeup.serving.server.schemas import EditForm, Generation, ImagesResponse

images_router = APIRouter(prefix="/v1/images", tags=["images"])


@images_router.post("/generations", response_model=ImagesResponse, response_model_exclude_none=True, responses=EVENTS)
async def generate(
    asked: Generation, request: Request, caller: CallerOf, service: ServiceOf
) -> ImagesResponse | Response:
    """Make images from a text, with LoRAs and ControlNets of the request's own."""
    work = await service.accept(caller, asked)
    if asked.stream:
        return streaming_response(work, asked, caller.request, "image_generation")
    return await complete_response(request, work, asked, caller.request)


@images_router.post("/edits", response_model=ImagesResponse, response_model_exclude_none=True, responses=EVENTS)
async def edit(
    asked: Annotated[EditForm, File()], request: Request, caller: CallerOf, service: ServiceOf
) -> ImagesResponse | Response:
    """Change an image where its mask is transparent (an opaque one: where it is bright); without a mask, all of it."""
    image = None if asked.image is None or asked.template is not None else await asked.image.read()
    mask = None if asked.mask is None else await asked.mask.read()
    work = await service.accept(caller, asked, EditFiles(image, mask))
    if asked.stream:
        return streaming_response(work, asked, caller.request, "image_edit")
    return await complete_response(request, work, asked, caller.request)
