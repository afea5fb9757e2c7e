"""Exact optima, confirmed by a constraint program that shares only the energy of an upload with us."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from takeup.edge.policies import find_policy
from takeup.edge.traces.generators import paper_setting

pytest.importorskip("ortools", reason="needs ortools: pip install ortools")


@pytest.mark.parametrize(("seed", "num_devices", "num_cores"), [(0, 5, 1), (1, 7, 1), (2, 9, 1), (3, 9, 1), (4, 9, 2)])
def test_a_constraint_program_finds_the_same_optimum(seed: int, num_devices: int, num_cores: int) -> None:
    from edge.cpsat_witness import best_worth_j

    cell = replace(paper_setting(np.random.default_rng(seed), num_devices), num_cores=num_cores)
    ours_j = find_policy("exact").allocate(cell).worth_j

    assert best_worth_j(cell, is_plan=True) <= ours_j * (1 + 1e-6)
    assert ours_j <= best_worth_j(cell, is_plan=False) * (1 + 1e-6)


def test_both_roundings_meet_where_uploads_are_short() -> None:
    from edge.cpsat_witness import best_worth_j

    cell = paper_setting(np.random.default_rng(2), 9)

    assert best_worth_j(cell, is_plan=True) == pytest.approx(best_worth_j(cell, is_plan=False), rel=1e-3)
