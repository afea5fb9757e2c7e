"""`/v1/images` and the editing page: generation, edits, and their responses, in one piece or as server-sent events."""

import asyncio
import base64
import hashlib
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable
from functools import cache
from html import escape
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, File, Header, Request, Security
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.types import Receive, Scope, Send

from takeup.serving.server.access import ApiKeys, no_valid_key
from takeup.serving.server.errors import CLOSED_BY_CLIENT, ApiError
from takeup.serving.server.image_codec import EditFiles, base64_text
from takeup.serving.server.progress_hub import RequestProgress
from takeup.serving.server.schemas import (
    EditFacts,
    EditForm,
    Generation,
    ImageObject,
    ImageRequestBody,
    ImagesResponse,
    RequestTiming,
    VariationForm,
)
from takeup.serving.server.service import AcceptedRequest, Caller, FinishedImage, Service

# The editing page: one file with its own style and script, and a policy that lets it load nothing else ----------------

PAGE_FILE = Path(__file__).with_name("edit.html")
CONTENT_POLICY = {
    "default-src": "'none'",
    "connect-src": "'self'",
    "img-src": "blob: data:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}


@cache
def edit_page() -> str:
    """The page as it is sent."""
    return PAGE_FILE.read_text("utf-8")


@cache
def page_headers() -> dict[str, str]:
    """Only the script and the style that are in the page may run, and only this server may be asked."""
    parts = CONTENT_POLICY | {"script-src": _allowed("script"), "style-src": _allowed("style")}
    policy = "; ".join(f"{name} {value}" for name, value in parts.items())
    return {
        "Content-Security-Policy": policy,
        "Cache-Control": "no-cache",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


def _allowed(tag: str) -> str:
    (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", edit_page(), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
    return f"'sha256-{digest}'"


# FastAPI dependencies of the routes: the tenant of the API key, the request id, and the service -----------------------

BEARER = HTTPBearer(auto_error=False, description="A key that the operator gave you.")
REQUEST_ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


def service_of(request: Request) -> Service:
    """The service of the app."""
    service: Service = request.app.state.service
    return service


def tenant_of(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)] = None
) -> str:
    """The tenant of the key."""
    keys: ApiKeys = request.app.state.keys
    tenant = keys.tenant_of(request.headers.get("authorization"))
    if tenant is None:
        raise no_valid_key()
    return tenant


def caller_of(
    request: Request,
    tenant: Annotated[str, Depends(tenant_of)],
    x_request_id: Annotated[
        str | None, Header(pattern=REQUEST_ID, description="An identity by which progress can be watched.")
    ] = None,
) -> Caller:
    """The tenant and the request id: the one it sent, or a new one. The response carries it too."""
    request.state.request_id = x_request_id or uuid.uuid4().hex
    return Caller(tenant, request.state.request_id)


ServiceOf = Annotated[Service, Depends(service_of)]
TenantOf = Annotated[str, Depends(tenant_of)]
CallerOf = Annotated[Caller, Depends(caller_of)]


# Answers of work: a body in one piece, or server-sent events; in both cases, a client that goes away ends its work

_EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string", "contentMediaType": "application/json"}},
    "required": ["event", "data"],
}
EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": _EVENT}}}}
"""The OpenAPI description of a response in events."""


async def complete_response(
    request: Request, work: AcceptedRequest, asked: ImageRequestBody, identity: str
) -> ImagesResponse:
    """Wait for all images, or for the client to go away."""
    making = asyncio.ensure_future(work.run())
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({making, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not making.done():
            raise ApiError(CLOSED_BY_CLIENT, "the client went away", code="cancelled")
        return _body(await making, asked, identity, work.age_s, _link_of(request))
    finally:
        gone.cancel()
        making.cancel()
        await asyncio.gather(making, gone, return_exceptions=True)
        work.close()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


Link = Callable[[bytes, str], str]
"""A URL of an image."""


def _link_of(request: Request) -> Link:
    """URLs of this server for an hour, or data URLs if the operator prefers them."""
    service: Service = request.app.state.service
    if service.settings.data_urls:
        return lambda data, kind: f"data:image/{kind};base64,{base64_text(data)}"
    return lambda data, kind: f"{request.base_url}v1/files/{service.files.add(data, kind)}"


def _job_response(
    request: Request, caller: Caller, service: Service, work: AcceptedRequest, asked: ImageRequestBody
) -> Response:
    """Answer 202 with a job; its images are under URLs, whatever `response_format` says."""
    asked = asked.model_copy(update={"response_format": "url"})
    base, files = str(request.base_url), service.files

    def answer_of(made: list[FinishedImage]) -> dict[str, Any]:
        link: Link = lambda data, kind: f"{base}v1/files/{files.add(data, kind)}"  # noqa: E731
        return _body(made, asked, caller.request, work.age_s, link).model_dump(exclude_none=True)

    job = service.jobs.start(caller, work, asked.webhook, answer_of)
    headers = {"Location": f"{base}v1/jobs/{job.id}", "Preference-Applied": "respond-async"}
    return JSONResponse(job.facts(), 202, headers)


def _body(
    made: list[FinishedImage], asked: ImageRequestBody, identity: str, total_s: float, link: Link
) -> ImagesResponse:
    return ImagesResponse(
        id=identity,
        created=int(time.time()),
        output_format=asked.output_format,
        size=asked.size,
        ignored=list(asked.ignored) or None,
        data=[_image(one, asked, link) for one in made],
        timing=RequestTiming(queued_s=max(one.queued_s for one in made), total_s=total_s),
    )


def _image(made: FinishedImage, asked: ImageRequestBody, link: Link) -> ImageObject:
    if asked.response_format == "url":
        return ImageObject(url=link(made.picture, asked.output_format), seed=made.seed, edit=_edit(made))
    return ImageObject(b64_json=base64_text(made.picture), seed=made.seed, edit=_edit(made))


def _edit(made: FinishedImage) -> EditFacts | None:
    report = made.report
    if report is None:
        return None
    return EditFacts(
        template=made.template,
        from_template=report.from_template,
        mask_share=report.mask_share,
        computed_share=report.computed_share,
        error=report.error,
        packing_error=report.packing_error,
        whole_steps=report.num_whole_steps,
    )


# Server-sent events ---------------------------------------------------------------------------------------------------


class EventStream(StreamingResponse):
    """Server-sent events, with a callback at the end even if the stream never began."""

    def __init__(self, events: AsyncIterator[dict[str, Any]], identity: str, close: Callable[[], None]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Request-Id": identity}
        super().__init__(_lines(events), media_type="text/event-stream", headers=headers)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


def streaming_response(
    request: Request, work: AcceptedRequest, asked: ImageRequestBody, identity: str, kind: str
) -> EventStream:
    """Progress, then every image as an event `KIND.completed` of OpenAI's API."""
    making = asyncio.ensure_future(work.run())

    def close() -> None:
        making.cancel()
        making.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        work.close()

    return EventStream(_events(work, making, asked, kind, _link_of(request)), identity, close)


def progress_response(progress: RequestProgress, identity: str) -> EventStream:
    """Stream the progress of a request that was sent on another connection."""
    return EventStream(progress.events(), identity, lambda: None)


async def _events(
    work: AcceptedRequest, making: asyncio.Future[list[FinishedImage]], asked: ImageRequestBody, kind: str, link: Link
) -> AsyncIterator[Any]:
    async for event in work.progress.events():
        if event["type"] in ("done", "error", "cancelled"):
            break
        yield event
    if event["type"] != "done":
        yield event
        return
    for number, made in enumerate(await making):
        image = _image(made, asked, link).model_dump(exclude_none=True)
        timing = {"queued_s": made.queued_s, "total_s": work.age_s}
        facts = {"created_at": int(time.time()), "output_format": asked.output_format, "index": number}
        noted = {"ignored": list(asked.ignored)} if asked.ignored else {}
        yield {"type": f"{kind}.completed", **image, **facts, **noted, "size": asked.size or "auto", "timing": timing}


async def _lines(events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    async for event in events:
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


# `/v1/images`: images from texts, images from images ------------------------------------------------------------------

images_router = APIRouter(prefix="/v1/images", tags=["images"])


async def _answer(
    request: Request,
    caller: Caller,
    service: Service,
    asked: ImageRequestBody,
    kind: str,
    files: EditFiles | None = None,
) -> ImagesResponse | Response:
    """Accept the request, and answer with its images, with events, or with a job."""
    work = await service.accept(caller, asked, files)
    if asked.webhook is not None or "respond-async" in request.headers.get("prefer", ""):
        return _job_response(request, caller, service, work, asked)
    if asked.stream:
        return streaming_response(request, work, asked, caller.request, kind)
    return await complete_response(request, work, asked, caller.request)


@images_router.post("/generations", response_model=ImagesResponse, response_model_exclude_none=True, responses=EVENTS)
async def generate(
    asked: Generation, request: Request, caller: CallerOf, service: ServiceOf
) -> ImagesResponse | Response:
    """Generate images from a text, with the LoRAs and ControlNets of the request."""
    return await _answer(request, caller, service, asked, "image_generation")


@images_router.post("/edits", response_model=ImagesResponse, response_model_exclude_none=True, responses=EVENTS)
async def edit(
    asked: Annotated[EditForm, File()], request: Request, caller: CallerOf, service: ServiceOf
) -> ImagesResponse | Response:
    """Change an image where its mask is transparent (an opaque mask: bright); without a mask, everywhere."""
    images = [] if asked.template is not None else [await one.read() for one in asked.image]
    mask = None if asked.mask is None else await asked.mask.read()
    files = EditFiles(images[0] if images else None, mask, tuple(images[1:]))
    return await _answer(request, caller, service, asked, "image_edit", files)


@images_router.post("/variations", response_model=ImagesResponse, response_model_exclude_none=True)
async def vary(
    asked: Annotated[VariationForm, File()], request: Request, caller: CallerOf, service: ServiceOf
) -> ImagesResponse | Response:
    """Variations of an image: image-to-image without a text."""
    files = EditFiles(await asked.image.read(), None)
    return await _answer(request, caller, service, asked.as_edit(), "image_edit", files)


# `/edit`: a page to paint masks on ------------------------------------------------------------------------------------

page_router = APIRouter(include_in_schema=False)


@page_router.get("/edit")
async def show_page() -> HTMLResponse:
    """The editing page; it asks for a key itself where one is needed."""
    return HTMLResponse(edit_page(), headers=page_headers())


# `/` and `/docs`: the served model, and every endpoint with its fields; plain HTML without scripts --------------------

STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code,pre{background:#8882;padding:.1em .3em}pre{overflow-x:auto}td{padding:.2em 1em .2em 0;vertical-align:top}"
)
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


@page_router.get("/")
async def front_page(request: Request, service: ServiceOf) -> HTMLResponse:
    """What is served here, and where to go next."""
    model, state = escape(service.settings.model), "ready" if service.is_ready else "not ready"
    body = escape(json.dumps({"prompt": "a cat", "n": 1}))
    text = (
        f"<p>Serving <b>{model}</b> ({escape(service.backend.card.family)}), {state}.</p>"
        f"<pre>curl {escape(str(request.base_url))}v1/images/generations \\\n"
        f"  -H 'Content-Type: application/json' -d '{body}'</pre>"
        "<ul><li><a href='/edit'>Edit an image in the browser</a></li><li><a href='/docs'>All endpoints</a></li>"
        "<li><a href='/openapi.json'>OpenAPI document</a></li><li><a href='/ready'>Readiness</a></li></ul>"
    )
    return _page("takeup serve", text)


@page_router.get("/docs")
async def docs_page(request: Request) -> HTMLResponse:
    """The OpenAPI document as a page."""
    document = request.app.openapi()
    parts = [
        f"<h2><code>{verb.upper()} {escape(path)}</code></h2><p>{escape(operation.get('description', ''))}</p>"
        f"<table>{_rows_of(operation, document['components']['schemas'])}</table>"
        for path, operations in document["paths"].items()
        for verb, operation in operations.items()
    ]
    return _page("Endpoints", "".join(parts))


def _rows_of(operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    """A row for each field of the body."""
    bodies = operation.get("requestBody", {}).get("content", {}).values()
    names = [body["schema"].get("$ref", "").rpartition("/")[2] for body in bodies]
    fields = [field for name in names for field in schemas.get(name, {}).get("properties", {}).items()]
    return "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(field.get('description', ''))}</td></tr>"
        for name, field in fields
    )


def _page(title: str, text: str) -> HTMLResponse:
    return HTMLResponse(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{title}</title><style>{STYLE}</style>"
        f"<h1>{title}</h1>{text}</html>",
        headers=PAGE_HEADERS,
    )
