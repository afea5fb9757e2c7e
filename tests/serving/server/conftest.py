"""Fixtures of tests of the server. Heavy packages are imported inside, for they may be missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REAL = "takeup/tiny-sdxl-controlnet"


@pytest.fixture(scope="session")
def lora_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """LoRA files by name."""
    from serving.lora_cases import write_loras

    return write_loras(tmp_path_factory.mktemp("server-loras"))


@pytest.fixture(scope="session")
def backend() -> Iterator[Any]:
    """SDXL with two ControlNets, tiny, one request per network call; shared by all tests of the session."""
    from takeup.serving.server.backends.local import ServingPlan

    backend = ServingPlan(REAL, deterministic=True).build()
    yield backend
    if backend.is_ready:
        backend.close()


@pytest.fixture(scope="session")
def real(backend: Any) -> Iterator[Any]:
    """A client, with the key of Alice, of a server of that model."""
    from serving.server.clients import house

    with house(backend, model=REAL) as client:
        yield client
