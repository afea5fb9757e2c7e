"""A masked call takes the room of one that was recorded, if that is not much too large."""

from __future__ import annotations

import pytest

from takeup.serving.diffusion.policies import cheapest_capacity


@pytest.mark.parametrize(
    ("needed", "known", "taken"),
    [
        ((100,), [], (100,)),
        ((100,), [(90,), (100,), (110,)], (100,)),
        ((100,), [(90,), (150,), (120,)], (120,)),
        ((100,), [(300,)], (100,)),
        ((100, 30), [(120, 20), (130, 30)], (130, 30)),
        ((100, 30), [(120, 20)], (100, 30)),
    ],
)
def test_known_rooms_are_taken_unless_they_are_dear(
    needed: tuple[int, ...], known: list[tuple[int, ...]], taken: tuple[int, ...]
) -> None:
    assert cheapest_capacity(needed, known, num_rows=1, num_tokens=1000) == taken


def test_the_more_rows_a_call_has_the_less_room_it_may_waste() -> None:
    assert cheapest_capacity((100,), [(150,)], num_rows=1, num_tokens=1000) == (150,)
    assert cheapest_capacity((100,), [(150,)], num_rows=8, num_tokens=1000) == (100,)
