"""Origin, key and size of a request, exactly at their limits, without a server or a model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")

from starlette.exceptions import HTTPException

from takeup.serving.server.access import FORM_BYTES, UPLOADS, ApiKeys, LimitsMiddleware
from takeup.serving.server.settings import ServerLimits

KEYS = ApiKeys([("alice", "alice-0123456789abcdef")])
KEY = ("authorization", "Bearer alice-0123456789abcdef")
LIMITS = ServerLimits(max_body_bytes=10, max_adapter_bytes=100)
URL = "/v1/images/generations"
Header = tuple[str, str]


def answered(
    path: str = URL, headers: Sequence[Header] = (KEY,), parts: Sequence[int] = (0,), keys: ApiKeys = KEYS
) -> tuple[int, int]:
    """The status, and how many bytes of a body in these parts reached the app."""
    waiting, sent, taken = list(parts), list[dict[str, Any]](), 0

    async def receive() -> dict[str, Any]:
        size = waiting.pop(0)
        return {"type": "http.request", "body": b"x" * size, "more_body": bool(waiting)}

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal taken
        status, more = 200, True
        try:
            while more:
                message = await receive()
                taken, more = taken + len(message["body"]), message["more_body"]
        except HTTPException as error:  # as every app of starlette answers it
            status = error.status_code
        await send({"type": "http.response.start", "status": status, "headers": []})

    encoded = [(name.encode(), value.encode()) for name, value in headers]
    scope = {"type": "http", "method": "POST", "path": path, "headers": encoded, "query_string": b""}
    asyncio.run(LimitsMiddleware(app, LIMITS, keys, {"https://allowed.example"})(scope, receive, send))
    return sent[0]["status"], taken


@pytest.mark.parametrize(
    ("path", "most"),
    [(URL, LIMITS.max_body_bytes), (UPLOADS, LIMITS.max_adapter_bytes + FORM_BYTES)],
)
def test_a_body_may_be_as_long_as_its_limit(path: str, most: int) -> None:
    assert answered(path, [KEY, ("content-length", f"{most}")], [most]) == (200, most)
    assert answered(path, [KEY, ("content-length", f"{most + 1}")], [most + 1]) == (413, 0)


@pytest.mark.parametrize("told", [[], [("content-length", "3")], [("content-length", "x")]])
def test_what_arrives_is_counted_whatever_was_told(told: list[Header]) -> None:
    assert answered(headers=[KEY, *told], parts=[4, 6]) == (200, 10)
    assert answered(headers=[KEY, *told], parts=[4, 6, 1]) == (413, 10)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (URL, [KEY], 200),
        (URL, [], 401),
        (URL, [("authorization", "Bearer wrong")], 401),
        ("/health", [], 200),
        ("/metrics", [], 401),
    ],
)
def test_all_but_public_paths_need_a_key(path: str, headers: list[Header], status: int) -> None:
    assert answered(path, headers)[0] == status


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost:80", None, 200),
        ("127.0.0.1", "http://localhost:3000", 200),
        ("127.0.0.1", "https://allowed.example", 200),
        ("127.0.0.1", "https://other.example", 403),
        ("other.example", None, 403),
        ("other.example", "https://allowed.example", 403),
    ],
)
def test_without_keys_only_programs_of_this_machine_are_served(host: str, origin: str | None, status: int) -> None:
    headers = [("host", host), *([("origin", origin)] if origin else [])]

    assert answered(headers=headers, keys=ApiKeys())[0] == status


def test_at_least_one_request_runs_and_none_has_to_wait() -> None:
    assert ServerLimits(max_running=1, max_waiting=0).max_waiting == 0
    for wrong in ({"max_running": 0}, {"max_waiting": -1}):
        with pytest.raises(Exception, match="let at least one run"):
            ServerLimits(**wrong)
