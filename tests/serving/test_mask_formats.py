"""Blocks load rows as far as that makes a step shorter: checked against trying everything."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from takeup.serving.policies.mask_formats import BlockLoad, loads_rows

SAME = BlockLoad(kv_bytes=2.0, rows_bytes=1.0, made_s=0.5)


def step_s(blocks: list[BlockLoad], chosen: list[bool], other_bytes: float, compute_s: float, link: float) -> float:
    computed = compute_s + sum(block.made_s for block, rows in zip(blocks, chosen, strict=True) if rows)
    pairs = zip(blocks, chosen, strict=True)
    loaded = other_bytes + sum(block.rows_bytes if rows else block.kv_bytes for block, rows in pairs)
    return max(computed, loaded / link)


def test_no_choice_is_better() -> None:
    drawn = np.random.default_rng(0)
    for _ in range(200):
        blocks = [
            BlockLoad(kv, kv * drawn.uniform(0.3, 0.8), drawn.uniform(0, 1)) for kv in drawn.uniform(0.5, 3, 6).tolist()
        ]
        asked = drawn.uniform(0, 3), drawn.uniform(1, 10), drawn.uniform(0.5, 3)
        chosen = loads_rows(blocks, *asked)
        best = min(step_s(blocks, list(one), *asked) for one in product([False, True], repeat=len(blocks)))

        assert step_s(blocks, chosen, *asked) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize(
    ("compute_s", "link", "num_rows"),
    [(100.0, 1.0, 0), (0.0, 1.0, 10), (10.0, 1.0, 6)],
    ids=["computation is longer", "loads are longer", "both are evened out"],
)
def test_rows_are_loaded_where_loads_take_longer(compute_s: float, link: float, num_rows: int) -> None:
    assert sum(loads_rows([SAME] * 10, 0.0, compute_s, link)) in {num_rows, num_rows + 1}


def test_without_blocks_nothing_is_chosen() -> None:
    assert loads_rows([], 5.0, 1.0, 1.0) == []
