"""Arrivals and admission: who is found at the beginning, who is let in, and what a failing server does."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from support.dash.engine import CellEmulator, UnexpectedResponse, VideoSession, max_connections
from support.dash.links import UserSpaceLink
from support.dash.server import Video
from takeup.streaming.model import Cell, Views

SHORT_AND_LONG = (Views(0.75, 10.0), Views(0.25, 90.0))


def ring_of(cell: Cell, speedup: float = 10.0) -> CellEmulator:
    return CellEmulator(
        cell, UserSpaceLink(cell.capacity_bps * speedup / 8), np.random.default_rng(11), speedup, segment_s=1.0
    )


@pytest.mark.parametrize("arrivals_per_s", [0.05, 0.12, 0.4])
def test_a_random_moment_finds_the_long_run_number_of_users(arrivals_per_s: float) -> None:
    cell = Cell(2.8e6, 360e3, arrivals_per_s, max_users=10)
    ring = ring_of(cell)
    numbers = [len(ring._lengths_found_s()) for _ in range(4000)]
    weights = cell.load ** np.arange(11)
    law = weights / weights.sum()
    mean = float(law @ np.arange(11))
    deviation = float(law @ (np.arange(11) - mean) ** 2) ** 0.5

    assert abs(np.mean(numbers) - mean) < 4 * deviation / 4000**0.5


def test_an_overloaded_cell_is_found_full() -> None:
    ring = ring_of(Cell(1e6, 1e6, arrivals_per_s=1000.0, max_users=150))

    assert len(ring._lengths_found_s()) == 150


def test_long_videos_are_found_more_often_than_they_come() -> None:
    ring = ring_of(Cell(1e6, 1e6, arrivals_per_s=1000.0, max_users=200, views=SHORT_AND_LONG))
    found = [length_s for _ in range(50) for length_s in ring._lengths_found_s()]
    coming = [ring._draw_length_s() for _ in range(10_000)]

    assert np.mean(coming) == pytest.approx(0.75 * 10 + 0.25 * 90, rel=0.1)
    # Three in four that are under way are long: 0.25 x 90 against 0.75 x 10.
    assert np.mean(found) == pytest.approx(0.25 * 10 + 0.75 * 90, rel=0.1)


def test_who_comes_to_a_full_cell_is_blocked() -> None:
    ring = ring_of(Cell(2.8e6, 360e3, 0.12, max_users=3))
    ring.num_active = 3

    session = asyncio.run(ring._watch(5.0, ("127.0.0.1", 1)))

    assert session.blocked
    assert session.length_s == 5.0
    assert ring.visits == []


def test_a_failed_download_frees_its_place_and_is_told() -> None:
    ring = ring_of(Cell(2.8e6, 360e3, 0.12, max_users=3))

    async def lose_the_video() -> VideoSession:
        async with ring.server.listening() as address:
            task = asyncio.create_task(ring._watch(5.0, address))
            await asyncio.sleep(0)
            ring.server.videos[0] = Video(1.5, 8000, 1.0)  # another one under the same name
            return await task

    with pytest.raises(UnexpectedResponse, match="expected a segment"):
        asyncio.run(lose_the_video())

    assert ring.num_active == 0
    assert ring.server.videos == {}


def test_there_are_more_places_than_users() -> None:
    assert max_connections(Cell(2.8e6, 360e3, 0.12, max_users=10)) > 10


@pytest.mark.engine
def test_a_crowded_ring_blocks_and_ends() -> None:
    cell = Cell(2.8e6, 360e3, arrivals_per_s=8.0, max_users=2, views=(Views(1.0, 4.0),))
    ring = ring_of(cell, speedup=10.0)

    sessions = asyncio.run(asyncio.wait_for(ring.run(40), 120))

    assert len(sessions) == 40
    assert 0 < sum(session.blocked for session in sessions) < 40
    assert ring.num_active == 0
    assert [session.requested_s for session in sessions] == sorted(session.requested_s for session in sessions)
