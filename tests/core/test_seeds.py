"""Random streams: the same everywhere, independent of each other and of who asks first."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.core.seeds import Streams
from takeup.errors import BadInput

SHOW_DRAWS = (
    "from takeup.core.seeds import Streams; print(Streams(7).stream('arrivals').integers(0, 10**9, 3).tolist())"
)


def draws(streams: Streams, name: str) -> list[float]:
    return [float(draw) for draw in streams.stream(name).random(5)]


def test_draws_are_known_numbers() -> None:
    assert Streams(7).stream("arrivals").integers(0, 10**9, 3).tolist() == [756568885, 156315363, 793776431]


def test_another_process_draws_the_same() -> None:
    here = Streams(7).stream("arrivals").integers(0, 10**9, 3).tolist()
    there = subprocess.run([sys.executable, "-c", SHOW_DRAWS], capture_output=True, text=True, check=True)

    assert there.stdout.strip() == str(here)


@given(st.integers(0, 2**64), st.permutations(["a", "b", "c", "d"]))
def test_the_order_of_asking_plays_no_part(seed: int, order: list[str]) -> None:
    streams = Streams(seed)
    asked = {name: draws(streams, name) for name in order}

    assert asked == {name: draws(Streams(seed), name) for name in "abcd"}


@given(st.integers(0, 2**32), st.lists(st.text(), min_size=2, max_size=2, unique=True))
def test_other_names_give_other_draws(seed: int, names: list[str]) -> None:
    assert draws(Streams(seed), names[0]) != draws(Streams(seed), names[1])


def test_other_seeds_give_other_draws() -> None:
    assert draws(Streams(1), "x") != draws(Streams(2), "x")


def test_streams_are_not_correlated() -> None:
    streams = Streams(3)
    table = np.array([streams.stream(f"stream {i}").normal(size=4000) for i in range(6)])

    assert np.abs(np.corrcoef(table) - np.eye(6)).max() < 0.08  # five standard deviations of no correlation


def test_a_child_has_streams_of_its_own() -> None:
    parent = Streams(5)

    assert draws(parent.child("a"), "x") == draws(Streams(5).child("a"), "x")
    assert draws(parent.child("a"), "x") != draws(parent.child("b"), "x")
    assert draws(parent.child("a"), "x") != draws(parent, "x")
    assert draws(parent.child("a").child("b"), "x") != draws(parent.child("b").child("a"), "x")


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(BadInput, match="the seed is -1"):
        Streams(-1)
