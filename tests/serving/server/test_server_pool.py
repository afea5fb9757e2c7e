"""Several worker processes: one that is killed takes no request with it, and one that kills is found out."""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")
pytest.importorskip("diffusers", reason="needs the package 'diffusers': pip install 'takeup[diffusion]'")

from serving.server.clients import ask, eventually, house, metric
from serving.server.painting import DEADLY, PICTURE, PainterPlan
from serving.stock import ENGINE_MARKS
from takeup.errors import BadInput
from takeup.serving.model import LoraUse, Request
from takeup.serving.server.backends import ImageJob
from takeup.serving.server.backends.worker_pool import PoolBackend
from takeup.serving.server.errors import WorkerLost

pytestmark = ENGINE_MARKS
URL = "/v1/images/generations"


def job(seed: int, *loras: str, prompt: str = "a cat", within_s: float | None = None) -> ImageJob:
    uses = tuple(LoraUse(name) for name in loras)
    return ImageJob(Request(prompt, num_steps=2, seed=seed, loras=uses), within_s=within_s)


def nothing(step: int, num_steps: int) -> None:
    """Nobody watches."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pool")


@pytest.fixture(scope="module")
def pool(folder: Path) -> Iterator[PoolBackend]:
    """Two workers that paint."""
    made = PoolBackend(PainterPlan(folder), 2)
    yield made
    made.close()


def test_jobs_are_made_in_other_processes_and_their_steps_are_heard(pool: PoolBackend, folder: Path) -> None:
    heard: list[tuple[int, int]] = []
    order = pool.start(job(5), lambda step, num_steps: heard.append((step, num_steps)))

    assert order.done.result(60) == PICTURE + b"5"
    assert heard == [(1, 2), (2, 2)]
    assert {int(path.name) for path in folder.iterdir()} == set(pool.pids)
    assert os.getpid() not in pool.pids
    assert pool.card.family == "PainterPipeline"


def test_a_job_goes_to_the_worker_that_knows_its_loras(pool: PoolBackend) -> None:
    for _ in range(4):
        pool.start(job(1, "paper"), nothing).done.result(60)

    assert sum("paper" in worker.known for worker in pool._workers.values()) == 1


def test_a_job_that_kills_its_workers_is_given_up_and_the_workers_come_back(pool: PoolBackend) -> None:
    before = set(pool.pids)
    with house(pool) as client:
        refused = client.post(URL, json=ask(prompt=DEADLY))
        eventually(lambda: len(pool.pids) == 2)
        after = client.post(URL, json=ask(seed=9))
        restarts, retries = metric(client, "worker_restarts_total"), metric(client, "retries_total")
        pids = set(pool.pids)

    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "worker_lost")
    assert "Retry-After" in refused.headers
    assert after.status_code == 200
    assert base64.b64decode(after.json()["data"][0]["b64_json"]) == PICTURE + b"9"
    assert (restarts, retries) == (2, 1)
    assert not before & pids


def test_killing_a_worker_loses_no_request(folder: Path) -> None:
    pool = PoolBackend(PainterPlan(folder, holds=True), 2)
    try:
        victim = pool.pids[0]
        orders = [pool.start(job(seed), nothing) for seed in range(6)]
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: pool.numbers().get("retries", 0) == 3)
        eventually(lambda: len(pool.pids) == 2)
        cancelled = pool.start(job(99), nothing)
        cancelled.cancel()

        with pytest.raises(Exception, match="cancelled"):
            cancelled.done.result(60)
        assert victim not in pool.pids
        assert not any(order.done.done() for order in orders)  # none was lost, none was made twice
    finally:
        pool.close()
    assert all(isinstance(order.done.exception(60), WorkerLost) for order in orders)


def test_a_plan_that_cannot_be_built_is_the_error_of_the_pool(folder: Path) -> None:
    with pytest.raises(BadInput, match="no such model"):
        PoolBackend(PainterPlan(folder, problem=BadInput("no such model")), 1)


def test_a_worker_that_dies_before_it_is_ready_is_not_started_for_ever(tmp_path: Path) -> None:
    with pytest.raises(WorkerLost, match="no worker"):
        PoolBackend(PainterPlan(tmp_path, dies=True), 1)

    assert len(list(tmp_path.iterdir())) == 3


def test_waiting_jobs_are_answered_when_the_pool_closes(folder: Path) -> None:
    pool = PoolBackend(PainterPlan(folder, holds=True), 1)
    with ThreadPoolExecutor(1) as threads:
        order = pool.start(job(1), nothing)
        threads.submit(pool.close).result()

    assert isinstance(order.done.exception(60), WorkerLost)


def test_a_pool_that_closes_does_not_wait_for_a_worker_that_still_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "takeup.serving.server.backends.worker_pool.EXIT_S", None
    )  # whoever waits for it waits for ever
    pool = PoolBackend(PainterPlan(tmp_path, loads_once=True), 1)
    os.kill(pool.pids[0], signal.SIGKILL)
    eventually(lambda: len(list(tmp_path.iterdir())) == 2)

    pool.close()

    assert not any(Path(f"/proc/{path.name}").exists() for path in tmp_path.iterdir())
