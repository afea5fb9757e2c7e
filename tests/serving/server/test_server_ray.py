"""Replicas of Ray Serve as workers: the same API, and a replica that dies is not noticed."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")
pytest.importorskip("diffusers", reason="needs the package 'diffusers': pip install 'takeup[diffusion]'")

from serving.server.clients import ask, eventually, house
from serving.server.painting import DEADLY, PICTURE, PainterPlan
from serving.stock import ENGINE_MARKS
from takeup.serving.server.backends.ray_serve import RayBackend

pytestmark = [
    *ENGINE_MARKS,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs the package 'ray': pip install 'takeup[ray]'"),
    pytest.mark.timeout(600),  # Ray and its replicas start slowly where little of a processor is free
    pytest.mark.filterwarnings("ignore"),  # of Ray: about pydantic, and about sockets it leaves to the end
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ray")


@pytest.fixture(scope="module")
def replicas(folder: Path) -> Iterator[RayBackend]:
    """Two replicas that paint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # so that they find the painter
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        backend = RayBackend(PainterPlan(folder), 2, num_cpus=0.1)
        yield backend
        backend.close()


def test_two_replicas_serve_the_same_api_and_survive_a_job_that_kills(replicas: RayBackend, folder: Path) -> None:
    with house(replicas) as client:
        client.timeout = httpx.Timeout(300)  # who comes when all replicas died waits until there is another
        answers = [client.post("/v1/images/generations", json=ask(seed=seed, n=2)) for seed in (0, 2, 4)]
        deadly = client.post("/v1/images/generations", json=ask(prompt=DEADLY))
        after = client.post("/v1/images/generations", json=ask(seed=9))
        eventually(lambda: len(list(folder.iterdir())) == 4, within_s=300)  # two, and two in place of those that died

    pictures = [base64.b64decode(one["b64_json"]) for answer in answers for one in answer.json()["data"]]
    assert pictures == [PICTURE + str(seed).encode() for seed in range(6)]
    assert (deadly.status_code, deadly.json()["error"]["code"]) == (503, "worker_lost")
    assert base64.b64decode(after.json()["data"][0]["b64_json"]) == PICTURE + b"9"
