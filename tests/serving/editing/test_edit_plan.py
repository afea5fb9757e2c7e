"""The planner finds what trying every combination finds, and never less than the published rule."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.errors import BadInput
from takeup.serving.editing.planner.block_formats import FORMATS, BlockCost, Format, greedy_plan, plan_formats, step_s
from takeup.serving.editing.planner.cost_model import FLUX, H200, SDXL, DeviceSpeed, costs_of, flop_of, load_bytes

SECONDS = st.floats(0, 2).map(lambda one: round(one, 6))
BLOCKS = st.builds(BlockCost, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS)
TINY = 1e-8
ONE_KIND: tuple[Format, ...] = ("full", "kv")


def best_of_all(blocks: Sequence[BlockCost], ahead_s: float, formats: Sequence[Format] = FORMATS) -> float:
    """The shortest step over every combination, all at once."""
    numbers = [FORMATS.index(one) for one in formats]
    combinations = np.array(list(itertools.product(numbers, repeat=len(blocks))))
    computed, loaded = np.zeros(len(combinations)), np.full(len(combinations), -ahead_s)
    has_rows = np.ones(len(combinations), bool)
    for block, chosen in zip(blocks, combinations.T, strict=True):
        compute, load = (np.array(part)[chosen] for part in (block.seconds[:3], block.seconds[3:6]))
        load = load + np.where((chosen != 2) & ~has_rows, block.rows_load_s, 0.0)
        loaded += load
        computed = np.where(load > 0, np.maximum(computed, loaded), computed) + compute
        has_rows = chosen != 2
    return float(np.maximum(computed, loaded + ahead_s).min())


def drawn(random: np.random.Generator, num_blocks: int) -> list[BlockCost]:
    """Blocks of different sizes, for which computing less costs less."""
    full = random.uniform(0.5, 1.5, num_blocks)
    shares: npt.NDArray[np.float64] = np.sort(random.uniform(0, 1, (num_blocks, 2)), axis=1)
    loads = random.uniform(0, 1.5, (num_blocks, 2))
    rows = zip(full, full * shares[:, 1], full * shares[:, 0], loads[:, 0], loads[:, 1], loads[:, 0], strict=True)
    return [BlockCost(*(round(float(one), 6) for one in row)) for row in rows]


def test_it_is_as_good_as_trying_everything_in_two_thousand_random_cases() -> None:
    random = np.random.default_rng(1)
    for _ in range(2000):
        blocks = drawn(random, int(random.integers(1, 7)))
        ahead_s = float(random.choice([0.0, 0.5, 2.0]))
        found = plan_formats(blocks, ahead_s=ahead_s)

        assert found.step_s == pytest.approx(best_of_all(blocks, ahead_s), abs=TINY)
        assert found.step_s == pytest.approx(step_s(found.formats, blocks, ahead_s), abs=TINY)


@settings(max_examples=60, deadline=None)
@given(st.lists(BLOCKS, min_size=1, max_size=6), st.sampled_from([0.0, 0.25, 3.0]))
def test_it_is_so_for_costs_that_make_no_sense_too(blocks: list[BlockCost], ahead_s: float) -> None:
    assert plan_formats(blocks, ahead_s=ahead_s).step_s == pytest.approx(best_of_all(blocks, ahead_s), abs=TINY)


def test_it_is_so_for_one_kind_of_loads() -> None:
    random = np.random.default_rng(2)
    for _ in range(200):
        blocks = drawn(random, 8)

        assert plan_formats(blocks, ONE_KIND).step_s == pytest.approx(best_of_all(blocks, 0.0, ONE_KIND), abs=TINY)


@pytest.mark.parametrize("num_blocks", [20, 70])
def test_it_is_never_worse_than_the_published_rule(num_blocks: int) -> None:
    random = np.random.default_rng(3)
    worse = 0
    for _ in range(10):
        blocks = drawn(random, num_blocks)
        ours = plan_formats(blocks, ONE_KIND)
        theirs = greedy_plan(blocks, "kv")
        worse += theirs.step_s > 1.01 * ours.step_s

        assert ours.step_s <= theirs.step_s + TINY
    assert worse >= 5  # or the comparison would say nothing


def test_the_published_rule_spends_the_link_on_a_block_that_gains_little() -> None:
    small = BlockCost(full_s=1.0, output_s=1.0, kv_s=0.0, output_load_s=9.0, kv_load_s=1.0)
    large = BlockCost(full_s=4.0, output_s=4.0, kv_s=1.0, output_load_s=9.0, kv_load_s=1.0)
    blocks = [small, large]

    assert greedy_plan(blocks, "kv").formats == ("kv", "kv")  # 1 then max(2, 1) + 1
    assert greedy_plan(blocks, "kv").step_s == 3.0
    assert plan_formats(blocks, ONE_KIND) == plan_formats(blocks, ("kv", "full"))
    assert plan_formats(blocks, ONE_KIND).formats == ("full", "kv")
    assert plan_formats(blocks, ONE_KIND).step_s == 2.0


def test_a_block_that_needs_rows_after_one_without_them_loads_them() -> None:
    free = BlockCost(full_s=5.0, output_s=5.0, kv_s=1.0, output_load_s=0.0, kv_load_s=0.0, rows_load_s=3.0)

    assert step_s(("kv", "full"), [free, free]) == 3.0 + 5.0
    assert step_s(("full", "full"), [free, free]) == 10.0


def test_with_loads_ahead_a_step_takes_the_larger_of_both_sums() -> None:
    blocks = [BlockCost(3.0, 3.0, 1.0, 9.0, 2.0)] * 4

    assert step_s(("kv",) * 4, blocks) == 9.0  # the last load ends at 8
    assert step_s(("kv",) * 4, blocks, ahead_s=100.0) == 8.0
    assert (
        plan_formats(blocks, ahead_s=100.0).step_s == 6.0
    )  # three are loaded: 6 of loads beside 3 x 1 + 3 of computation


def long_run(formats: Sequence[Format], blocks: Sequence[BlockCost], ahead_s: float, num_steps: int = 60) -> float:
    """Seconds per step of a loader that stays at most `ahead_s` of loads before the step it serves."""
    load_end_s = 0.0
    compute_end_s = 0.0
    starts: deque[float] = deque()
    for _ in range(num_steps):
        starts.append(compute_end_s)
        loaded_s = max(load_end_s, compute_end_s - ahead_s)
        computed_s, has_rows = compute_end_s, True
        for what, block in zip(formats, blocks, strict=True):
            place = FORMATS.index(what)
            load_s = block.seconds[3 + place] + (block.rows_load_s if what != "kv" and not has_rows else 0.0)
            loaded_s += load_s
            computed_s = (max(computed_s, loaded_s) if load_s else computed_s) + block.seconds[place]
            has_rows = what != "kv"
        load_end_s, compute_end_s = loaded_s, computed_s
    return (starts[-1] - starts[num_steps // 2]) / (num_steps - 1 - num_steps // 2)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(BLOCKS, st.sampled_from(FORMATS)), min_size=1, max_size=6), st.sampled_from([0.0, 0.5, 20.0]))
def test_steps_one_after_the_other_take_what_the_plan_says(
    chosen: list[tuple[BlockCost, Format]], ahead_s: float
) -> None:
    blocks, formats = [one for one, _ in chosen], [what for _, what in chosen]

    assert long_run(formats, blocks, ahead_s) == pytest.approx(step_s(formats, blocks, ahead_s), rel=0.02, abs=1e-6)


def test_nothing_to_plan_takes_no_time() -> None:
    assert plan_formats([]).formats == ()
    assert plan_formats([]).step_s == 0.0


def test_many_different_blocks_are_planned_with_rounded_loads_and_still_well() -> None:
    blocks = drawn(np.random.default_rng(5), 70)
    found = plan_formats(blocks)
    sums = [sum(block.seconds[3 + FORMATS.index(what)] for block, what in zip(blocks, found.formats, strict=True))]

    assert found.step_s <= min(greedy_plan(blocks, "kv").step_s, greedy_plan(blocks, "output").step_s)
    assert found.step_s >= sums[0]


@pytest.mark.parametrize(
    ("network", "what", "mask_share", "tera"),
    [
        (SDXL, "full", 0.1, 13.52),
        *((SDXL, "kv", m, t) for m, t in [(0.5, 8.44), (0.2, 5.39), (0.1, 4.37), (0.05, 3.86)]),
        *((SDXL, "output", m, t) for m, t in [(0.5, 8.91), (0.2, 6.14), (0.1, 5.21)]),
        (FLUX, "full", 0.1, 74.4),
        *((FLUX, "kv", m, t) for m, t in [(0.5, 41.3), (0.2, 21.5), (0.1, 14.9), (0.05, 11.6)]),
        *((FLUX, "output", m, t) for m, t in [(0.5, 45.7), (0.2, 28.5), (0.1, 22.8)]),
    ],
)
def test_operations_are_those_counted_for_the_real_networks(
    network: object, what: Format, mask_share: float, tera: float
) -> None:
    assert flop_of(network, what, mask_share) / 1e12 == pytest.approx(tera, rel=0.03)  # type: ignore[arg-type]


def test_loads_of_flux_are_gigabytes_a_step() -> None:
    assert load_bytes(FLUX, "kv", 0.0) / 1e9 == pytest.approx(2.87, abs=0.01)
    assert load_bytes(FLUX, "output", 0.1) / 1e9 == pytest.approx(1.29, abs=0.01)


def test_a_small_mask_gains_and_a_mask_of_everything_loses_nothing() -> None:
    small, whole = (plan_formats(costs_of(SDXL, [share], H200), ahead_s=1.0) for share in (0.1, 1.0))
    full_s = step_s(("full",) * 70, costs_of(SDXL, [1.0], H200))

    assert small.step_s < full_s / 2
    assert whole.step_s == pytest.approx(full_s, rel=1e-6)


def test_weights_are_read_once_for_all_edits_of_a_batch() -> None:
    slow_memory = DeviceSpeed(flop_per_s=math.inf, memory_bytes_per_s=1e9, link_bytes_per_s=math.inf)
    one, four = (costs_of(FLUX, [0.1] * count, slow_memory)[0] for count in (1, 4))

    assert one.kv_s == four.kv_s > 0


def test_impossible_costs_and_masks_are_refused() -> None:
    with pytest.raises(BadInput, match="seconds from zero up"):
        BlockCost(1.0, 1.0, -1.0, 0.0, 0.0)
    with pytest.raises(BadInput, match="from 0 to 1"):
        costs_of(FLUX, [1.5], H200)
