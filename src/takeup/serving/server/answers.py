"""Answers of work: a body in one piece, or server-sent events; in both cases, a client that goes away ends its work."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from takeup.serving.server.board import RequestProgress
from takeup.serving.server.errors import CLOSED_BY_CLIENT, ApiError
from takeup.serving.server.pictures import base64_text
from takeup.serving.server.schemas import EditFacts, ImageObject, ImageRequestBody, ImagesResponse, RequestTiming
from takeup.serving.server.work import AcceptedRequest, FinishedImage

_EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string", "contentMediaType": "application/json"}},
    "required": ["event", "data"],
}
EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": _EVENT}}}}
"""How the document describes an answer in events."""


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
        return _body(await making, asked, identity, work.age_s)
    finally:
        gone.cancel()
        making.cancel()
        await asyncio.gather(making, gone, return_exceptions=True)
        work.close()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _body(made: list[FinishedImage], asked: ImageRequestBody, identity: str, total_s: float) -> ImagesResponse:
    return ImagesResponse(
        id=identity,
        created=int(time.time()),
        output_format=asked.output_format,
        data=[_image(one, asked) for one in made],
        timing=RequestTiming(queued_s=max(one.queued_s for one in made), total_s=total_s),
    )


def _image(made: FinishedImage, asked: ImageRequestBody) -> ImageObject:
    text, edit = base64_text(made.picture), _edit(made)
    if asked.response_format == "url":
        return ImageObject(url=f"data:image/{asked.output_format};base64,{text}", seed=made.seed, edit=edit)
    return ImageObject(b64_json=text, seed=made.seed, edit=edit)


def _edit(made: FinishedImage) -> EditFacts | None:
    report = made.report
    if report is None:
        return None
    return EditFacts(
        template=made.template,
        from_template=report.from_template,
        mask_share=report.mask_share,
        computed_share=report.computed_share,
        stale_error=report.stale_error,
        packing_error=report.packing_error,
        whole_steps=report.num_whole_steps,
        plain_steps=report.plain_steps,
    )


# Server-sent events ---------------------------------------------------------------------------------------------------


class EventStream(StreamingResponse):
    """Events, and something to be done at the end even if the stream never began."""

    def __init__(self, events: AsyncIterator[dict[str, Any]], identity: str, close: Callable[[], None]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Request-Id": identity}
        super().__init__(_lines(events), media_type="text/event-stream", headers=headers)
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


def streaming_response(work: AcceptedRequest, asked: ImageRequestBody, identity: str, kind: str) -> EventStream:
    """Progress, then every image as an event `KIND.completed` of OpenAI's API."""
    making = asyncio.ensure_future(work.run())

    def close() -> None:
        making.cancel()
        making.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        work.close()

    return EventStream(_events(work, making, asked, kind), identity, close)


def progress_response(progress: RequestProgress, identity: str) -> EventStream:
    """Stream the progress of a request that was sent on another connection."""
    return EventStream(progress.events(), identity, lambda: None)


async def _events(
    work: AcceptedRequest, making: asyncio.Future[list[FinishedImage]], asked: ImageRequestBody, kind: str
) -> AsyncIterator[Any]:
    async for event in work.progress.events():
        if event["type"] in ("done", "error", "cancelled"):
            break
        yield event
    if event["type"] != "done":
        yield event
        return
    for number, made in enumerate(await making):
        image = _image(made, asked).model_dump(exclude_none=True)
        timing = {"queued_s": made.queued_s, "total_s": work.age_s}
        facts = {"created_at": int(time.time()), "output_format": asked.output_format, "index": number}
        yield {"type": f"{kind}.completed", **image, **facts, "size": asked.size or "auto", "timing": timing}


async def _lines(events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    async for event in events:
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
