"""Many plain cells as stacked arrays."""

from __future__ import annotations

import math

import numpy as np
import pytest

from takeup.errors import BadInput
from takeup.streaming.chains import ps_cell, ps_cells, stack

NAMES = ("generator", "end", "fill", "initial")


def test_a_batch_holds_the_chains_of_its_cells() -> None:
    batch = ps_cells([3.0, 7.78], 60.0, [0.1, 0.2], 6)

    for chain, (speed, arrivals_per_s) in zip((batch[0], batch[1]), ((3.0, 0.1), (7.78, 0.2)), strict=True):
        alone = ps_cell(speed, 60.0, arrivals_per_s, 6)
        assert chain.blocked_share == pytest.approx(alone.blocked_share)
        for name in NAMES:
            assert getattr(chain, name) == pytest.approx(getattr(alone, name)), name


def test_stacked_chains_come_back_as_they_were() -> None:
    chains = [ps_cell(speed, 60.0, 0.1, 4) for speed in (2.0, 3.0, 5.0)]
    batch = stack(chains).take(np.array([2, 0]))

    assert len(batch) == 2
    assert batch[0].fill.tolist() == chains[2].fill.tolist()
    assert batch[1].generator.tolist() == chains[0].generator.tolist()


def test_cells_for_one_user_have_one_state() -> None:
    assert ps_cells(3.0, 60.0, 0.1, 1).generator.tolist() == [[[0.0]]]


@pytest.mark.parametrize(("speed", "max_users"), [(math.nan, 5), (0.0, 5), ([], 5), (3.0, 0)])
def test_senseless_cells_are_refused(speed: float, max_users: int) -> None:
    with pytest.raises(BadInput, match="must be finite and above zero"):
        ps_cells(speed, 60.0, 0.1, max_users)


def test_a_load_that_accepts_nobody_is_refused() -> None:
    with pytest.raises(BadInput, match="practically no video"):
        ps_cells(1e-300, 60.0, 1e300, 3)
