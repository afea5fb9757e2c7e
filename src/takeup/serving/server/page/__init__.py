"""The editing page: one file with its own style and script, and a policy that lets it load nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

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
