"""Blocks use templates such that a step is shortest: checked against trying everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from math import inf

import numpy as np
import pytest

from takeup.serving.editing.planner.block_formats import FORMATS, BlockLoad, Format, balanced_formats

SAME = BlockLoad(kv_bytes=2.0, rows_bytes=1.0, made_s=0.5)
CHAINED = BlockLoad(kv_bytes=2.0, rows_bytes=1.0, made_s=0.1, whole_s=0.4, follows=True)


def step_s(
    blocks: Sequence[BlockLoad], formats: Sequence[Format], other_bytes: float, compute_s: float, link: float
) -> float:
    """As the engine does it; infinite if it cannot."""
    loaded, before = other_bytes, "kv"
    for block, what in zip(blocks, formats, strict=True):
        if what == "full" and block.needs_before and before != "full":
            return inf
        if what == "kv":
            loaded += block.kv_bytes
        elif not (block.follows and before == "full"):
            loaded += block.rows_bytes
        compute_s += {"kv": 0.0, "output": block.made_s, "full": block.made_s + block.whole_s}[what]
        before = what
    return max(compute_s, loaded / link)


def drawn_blocks(drawn: np.random.Generator) -> list[BlockLoad]:
    """Of a network whose blocks need the text of those before them, or of one with chains of two."""
    needs_before = bool(drawn.integers(2))
    blocks = []
    for number, kv in enumerate(drawn.uniform(0.5, 3, 6).tolist()):
        follows = number > 0 and (needs_before or number % 2 == 1)
        whole_s = inf if drawn.random() < 0.2 else drawn.uniform(0, 1)
        costs = kv * drawn.uniform(0.3, 0.8), drawn.uniform(0, 0.5), whole_s
        blocks.append(BlockLoad(kv, *costs, follows, needs_before and number > 0))
    return blocks


def test_no_choice_is_better() -> None:
    drawn = np.random.default_rng(0)
    seen = Counter[Format]()
    for _ in range(200):
        blocks = drawn_blocks(drawn)
        asked = drawn.uniform(0, 3), drawn.uniform(0.5, 6), drawn.uniform(0.5, 3)
        chosen = balanced_formats(blocks, *asked)
        best = min(step_s(blocks, one, *asked) for one in product(FORMATS, repeat=len(blocks)))
        seen.update(chosen)

        assert step_s(blocks, chosen, *asked) == pytest.approx(best, rel=2e-3)  # loads are counted in grains
    assert min(seen[what] for what in FORMATS) > 100


@pytest.mark.parametrize(
    ("compute_s", "link", "num_rows"),
    [(100.0, 1.0, 0), (0.0, 1.0, 10), (10.0, 1.0, 6)],
    ids=["computation is longer", "loads are longer", "both are evened out"],
)
def test_rows_are_loaded_where_loads_take_longer(compute_s: float, link: float, num_rows: int) -> None:
    assert balanced_formats([SAME] * 10, 0.0, compute_s, link).count("output") in {num_rows, num_rows + 1}


def test_where_the_link_is_slow_only_the_first_of_a_chain_loads_rows() -> None:
    assert balanced_formats([CHAINED] * 4, 0.0, 1.0, 0.1) == ["full", "full", "full", "output"]


@pytest.mark.parametrize("blocks", [[], [BlockLoad(0.0, 0.0, 1.0)]], ids=["no blocks", "no bytes"])
def test_without_loads_nothing_is_computed(blocks: list[BlockLoad]) -> None:
    assert balanced_formats(blocks, 5.0, 1.0, 1.0) == ["kv"] * len(blocks)
