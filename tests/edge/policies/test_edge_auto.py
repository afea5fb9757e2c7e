"""Auto: more time is never worse, small cells are proven, and realistic ones have a small certified gap."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, repeat

import numpy as np
import pytest
from hypothesis import given, settings

from edge.cells import instances, optioned_instances
from takeup.edge.model import Instance
from takeup.edge.policies.auto import Auto, Used, best_answer
from takeup.edge.policies.exact import Exact
from takeup.edge.traces.cellular import umi_setting
from takeup.edge.traces.files import CQI_64QAM
from takeup.edge.traces.generators import paper_setting, radio_tight_setting
from takeup.edge.validate import violation_of_answer


def by_counting(num_looks: int) -> Used:
    """A budget that is used up after so many looks at it."""
    return chain(np.linspace(0.0, 1.0, num_looks).tolist(), repeat(1.0)).__next__


@given(instance=instances(most_devices=8))
@settings(max_examples=10, deadline=None)
def test_more_time_is_never_worse(instance: Instance) -> None:
    quick, slow = best_answer(instance, lambda: 1.0), best_answer(instance)

    assert violation_of_answer(instance, quick) is None
    assert violation_of_answer(instance, slow) is None
    assert quick.worth_j <= slow.worth_j * (1 + 1e-9)
    assert (quick.bound_j or 0.0) >= (slow.bound_j or 0.0) * (1 - 1e-9)


@given(instance=optioned_instances(most_devices=6, most_subcarriers=4))
@settings(max_examples=25, deadline=None)
def test_plans_are_feasible_and_bounds_hold_for_all_kinds_of_groups_and_rates(instance: Instance) -> None:
    answer, best = best_answer(instance, lambda: 1.0), Exact().allocate(instance)

    assert violation_of_answer(instance, answer) is None
    assert answer.worth_j <= (best.bound_j or 0.0) * (1 + 1e-9)
    assert (answer.bound_j or 0.0) >= best.worth_j * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_auto_proves_the_best_plan_of_a_small_cell(seed: int) -> None:
    instance = paper_setting(np.random.default_rng([10, seed]), 9)
    answer = Auto().allocate(instance)

    assert answer.policy == "auto"
    assert answer.gap_share == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("seed", [1000, 1003, 1007])
def test_auto_is_close_to_its_bound_where_the_radio_is_scarce(seed: int) -> None:
    instance = radio_tight_setting(np.random.default_rng(seed), 20, 16)
    answer = Auto().allocate(instance)

    assert violation_of_answer(instance, answer) is None
    assert answer.gap_share is not None
    assert answer.gap_share < 0.02


@pytest.mark.parametrize("options", [{"contiguous": True}, {"group_sizes": (1, 4)}, {"num_cores": 3}])
@pytest.mark.parametrize("modulated", [False, True])
def test_auto_keeps_to_what_is_allowed(options: dict[str, object], modulated: bool) -> None:
    plain = radio_tight_setting(np.random.default_rng(5), 10, 12)
    radio = replace(plain.radio, modulations=CQI_64QAM if modulated else ())
    instance = replace(plain, radio=radio, **options)  # type: ignore[arg-type]
    answer = best_answer(instance, by_counting(60))

    assert violation_of_answer(instance, answer) is None
    assert answer.allocation.num_accepted > 0


def test_the_plan_of_the_last_epoch_is_a_start() -> None:
    instance = radio_tight_setting(np.random.default_rng(8), 30, 24, 8e9)
    before = best_answer(instance, by_counting(300))
    cold, warm = (best_answer(instance, lambda: 1.0, start) for start in (None, before.allocation))

    assert violation_of_answer(instance, warm) is None
    assert cold.worth_j < 0.995 * before.worth_j
    assert warm.worth_j == pytest.approx(before.worth_j, rel=1e-9) or warm.worth_j > before.worth_j


def test_a_start_helps_when_channels_have_changed_and_never_harms() -> None:
    shares = []
    for seed in range(6):
        random = np.random.default_rng(seed)
        instance = umi_setting(random, 30, 51)
        start = best_answer(instance, by_counting(200)).allocation
        for error_db in (0.5, 3.0, 20.0):
            changed = replace(instance, gains=instance.gains * 10 ** (random.normal(0, error_db, (30, 1)) / 10))
            cold, warm = (best_answer(changed, lambda: 1.0, plan) for plan in (None, start))
            shares.append(warm.worth_j / cold.worth_j)

            assert violation_of_answer(changed, warm) is None
    assert min(shares) >= 1.0 - 1e-9
    assert np.mean(shares[::3]) > 1.01


def test_a_start_with_devices_that_cannot_offload_any_more_is_repaired() -> None:
    instance = radio_tight_setting(np.random.default_rng(8), 12, 8, 8e9)
    start = best_answer(instance).allocation
    faded = replace(instance, gains=np.where(start.offloads[:, None], 0.0, instance.gains))
    answer = best_answer(faded, lambda: 1.0, start)

    assert violation_of_answer(faded, answer) is None
    assert not (answer.allocation.offloads & start.offloads).any()
