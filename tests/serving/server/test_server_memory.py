"""A server that runs for long: after waves of clients nothing is left but what it says it remembers."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import Counter
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")
pytest.importorskip("diffusers", reason="needs the package 'diffusers': pip install 'takeup[diffusion]'")

from serving.server.clients import app_of, ask, eventually, house, metric
from serving.server.painting import Painter
from serving.stock import ENGINE_MARKS
from takeup.serving.server.admission import Reservation
from takeup.serving.server.backends import ImageJob, JobHandle
from takeup.serving.server.progress_hub import MAX_FINISHED, RequestProgress
from takeup.serving.server.service import AcceptedRequest

pytestmark = ENGINE_MARKS
URL = "/v1/images/generations"
NUM_CLIENTS, NUM_WAVES, NUM_STEPS = 200, 3, 2
EVENT_BYTES = 1024  # one dictionary of a few short texts and numbers
KINDS = (AcceptedRequest, ImageJob, JobHandle, Reservation, RequestProgress)


class Forgetful(Painter):
    """A painter that keeps no orders, as real backends do not."""

    @property
    def loras(self) -> set[str]:
        return set()

    def start(self, job: ImageJob, on_step: Any) -> JobHandle:
        order = super().start(job, on_step)
        self.orders.clear()
        return order


async def wave(url: str, headers: dict[str, str], **fields: Any) -> list[int]:
    """All clients at once; the status of each answer."""
    limits = httpx.Limits(max_connections=None)

    async def one(client: httpx.AsyncClient, seed: int) -> int:
        answer = await client.post(URL, json=ask(seed=seed, steps=NUM_STEPS, **fields))
        return answer.status_code

    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=300, limits=limits) as client:
        return await asyncio.gather(*(one(client, seed) for seed in range(NUM_CLIENTS)))


def run_wave(client: httpx.Client, **fields: Any) -> list[int]:
    codes = asyncio.run(wave(str(client.base_url), dict(client.headers), **fields))
    eventually(lambda: metric(client, "num_requests_running") == metric(client, "num_requests_waiting") == 0)
    return codes


def living() -> Counter[type]:
    """How many objects of the server there are."""
    gc.collect()
    return Counter(type(one) for one in gc.get_objects() if type(one) in KINDS)


def is_all_gone(before: Counter[type]) -> bool:
    """Whether no work is left; threads let go of theirs a moment after they are done with it."""
    left = living()
    return all(left[kind] <= before[kind] for kind in (AcceptedRequest, ImageJob, JobHandle, Reservation))


def test_waves_of_two_hundred_clients_lose_nobody_and_leave_only_what_is_remembered() -> None:
    """Counted in objects, and in bytes of Python: what a wave leaves is at most the events that are remembered."""
    with house(Forgetful(), max_running=8, max_waiting=2 * NUM_CLIENTS) as client:
        before = living()
        codes = run_wave(client) + run_wave(client)  # now the board is full, and tables have their sizes
        tracemalloc.start()
        codes += run_wave(client)
        eventually(lambda: is_all_gone(before))
        gc.collect()
        new_bytes = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        left = living()
        images = metric(client, "images_total")
        gate = app_of(client).state.service.admission_queue

        assert (gate.num_inside, gate.num_running, len(gate._reservations), len(gate._queue)) == (0, 0, 0, 0)

    assert Counter(codes) == {200: NUM_WAVES * NUM_CLIENTS}
    assert images == NUM_WAVES * NUM_CLIENTS
    assert left[RequestProgress] - before[RequestProgress] == MAX_FINISHED
    assert new_bytes <= MAX_FINISHED * (NUM_STEPS + 3) * EVENT_BYTES


def test_a_wave_that_is_sent_away_leaves_nothing_either() -> None:
    painter = Forgetful(holds=True)
    with house(painter, max_running=1, max_waiting=1) as client:
        before = living()
        codes = asyncio.run(two_and_many(client, painter))
        eventually(lambda: metric(client, "num_requests_running") == metric(client, "num_requests_waiting") == 0)
        eventually(lambda: is_all_gone(before))
        left = living()
        refused = metric(client, "refused_total")

    assert Counter(codes) == {429: NUM_CLIENTS - 2, 200: 2}
    assert refused == NUM_CLIENTS - 2
    assert left[RequestProgress] - before[RequestProgress] == 2


async def two_and_many(client: httpx.Client, painter: Painter) -> list[int]:
    """A full house, until all others have their answers."""

    async def let_go_in_the_end() -> None:
        while await asyncio.to_thread(metric, client, "refused_total") < NUM_CLIENTS - 2:
            await asyncio.sleep(0.01)
        painter.let_go()

    codes, _ = await asyncio.gather(wave(str(client.base_url), dict(client.headers)), let_go_in_the_end())
    return codes


def test_clients_that_go_away_in_the_queue_leave_no_work_behind() -> None:
    painter = Forgetful(holds=True)
    with house(painter, max_running=1, max_waiting=2 * NUM_CLIENTS) as client:
        before = living()
        asyncio.run(impatient(client))
        eventually(lambda: metric(client, "num_requests_running") == metric(client, "num_requests_waiting") == 0)
        painter.let_go()
        eventually(lambda: is_all_gone(before))

    assert is_all_gone(before)


async def impatient(client: httpx.Client) -> None:
    """Hang up when all are in the house."""
    everybody = asyncio.create_task(wave(str(client.base_url), dict(client.headers)))
    while await asyncio.to_thread(metric, client, "num_requests_waiting") < NUM_CLIENTS - 1:
        await asyncio.sleep(0.01)
    everybody.cancel()
    await asyncio.gather(everybody, return_exceptions=True)
