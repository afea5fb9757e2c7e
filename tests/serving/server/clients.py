"""Servers for tests: started around a backend, and asked by clients."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from benchmarks.support.background_server import background_server
from takeup.serving.server.access import ApiKeys
from takeup.serving.server.app import make_app
from takeup.serving.server.backends import Backend
from takeup.serving.server.settings import ServerLimits, ServerSettings

__all__ = ["ALICE", "BOB", "KEYS", "MODEL", "app_of", "ask", "bearer", "eventually", "house", "metric"]

MODEL = "takeup/painter"
ALICE, BOB = "alice-has-a-long-key", "bob-has-another-long-key"
KEYS = ApiKeys([("alice", ALICE), ("bob", BOB)])


@contextmanager
def house(
    backend: Backend, *, keys: ApiKeys | None = None, model: str = MODEL, adapters: Path | None = None, **limits: Any
) -> Iterator[httpx.Client]:
    """A client of a server around this backend."""
    with tempfile.TemporaryDirectory() as uploads:
        settings = ServerSettings(model, Path(uploads), adapters, ServerLimits(**limits))
        app = make_app(settings, backend, KEYS if keys is None else keys)
        with background_server(app) as url, httpx.Client(base_url=url, headers=bearer(ALICE), timeout=60) as client:
            client.app = app  # type: ignore[attr-defined]
            yield client


def app_of(client: httpx.Client) -> FastAPI:
    """The app behind the client."""
    app: FastAPI = client.app  # type: ignore[attr-defined]
    return app


def bearer(key: str) -> dict[str, str]:
    """The header that carries the key."""
    return {"Authorization": f"Bearer {key}"}


def ask(**fields: Any) -> dict[str, Any]:
    """A small generation."""
    return {"prompt": "a cat", "size": "32x32", "steps": 2, "seed": 1, **fields}


def metric(client: httpx.Client, name: str) -> float:
    """A number of the page of metrics."""
    page = client.get("/metrics").text
    (value,) = [line.split()[1] for line in page.splitlines() if line.split()[0] == f"takeup_serving_{name}"]
    return float(value)


def eventually(holds: Callable[[], bool], within_s: float = 60.0) -> None:
    """Wait until something is true; fail if it never is."""
    until_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until_s, "it did not happen"
        time.sleep(0.01)
