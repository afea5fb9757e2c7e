"""`/edit`: a page to paint masks on."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from takeup.serving.server.page import edit_page, page_headers

page_router = APIRouter(include_in_schema=False)


@page_router.get("/edit")
async def show_page() -> HTMLResponse:
    """The editing page; it asks for a key itself where one is needed."""
    return HTMLResponse(edit_page(), headers=page_headers())
