"""Parts of the reproduction of SwiftDiffusion against other ways to the same numbers."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.papers import numbers
from takeup.papers.swiftdiffusion import designs, trace
from takeup.papers.swiftdiffusion import designs as formulas
from takeup.serving.experiment import ServingScenario, serve
from takeup.serving.model import Access, Arrival

EXPECTED = numbers("swiftdiffusion")
SMALL = {**EXPECTED, "setting": {**EXPECTED["setting"], "num_instances": 4}}


def cells(findings: object, table: int = 0) -> dict[object, tuple[object, ...]]:
    return {row[0]: row[1:] for row in findings.tables[table].rows}  # type: ignore[attr-defined]


# Formulas -----------------------------------------------------------------------------------------------------------


def test_residuals_are_those_of_the_blocks_of_the_network() -> None:
    """Walk the U-Net: the first convolution, then two layers and a halving for each block but the last."""
    side, skips = 128, [(320, 128)]
    for place, channels in enumerate((320, 640, 1280)):
        skips += [(channels, side)] * 2
        if place < 2:
            side //= 2
            skips.append((channels, side))
    elements = sum(channels * side**2 for channels, side in skips) + 1280 * 32**2

    assert len(skips) == 9
    assert sum(formulas._residuals(128)) == elements
    assert 4 * elements / 2**20 == pytest.approx(EXPECTED["wire_order"]["residuals_mib"], abs=0.1)


def test_what_is_needed_first_last_and_between_is_everything() -> None:
    found = cells(formulas.wire_bytes(EXPECTED))
    shares = [float(str(found[f"needed {when}, %"][1])) for when in ("first", "second", "last")]

    assert sum(shares) == pytest.approx(100)
    assert shares == sorted(shares)


def test_no_speed_up_is_above_the_number_of_networks() -> None:
    for number, *values in formulas.speedups(EXPECTED).tables[0].rows:
        assert all(1 < float(str(value)) < int(str(number)) + 1 for value in values)


def test_without_a_second_lora_there_are_no_cross_terms() -> None:
    up, down = np.ones((3, 2)), np.ones((2, 3))

    assert np.allclose((up + 0) @ (down + 0), up @ down)
    assert formulas.cross_terms(EXPECTED).checks[0].holds
    assert not formulas.cross_terms({**EXPECTED, "cross_terms": {"error": 0.1, "tolerance": 0.05}}).checks[0].holds


@given(st.floats(2.0**-100, 2.0**100, width=32), st.sampled_from([-1.0, 1.0]))
def test_rounding_to_bfloat16_is_within_half_a_unit_and_stays_put(size: float, sign: float) -> None:
    value = sign * size
    once = formulas._rounded(np.array([value], np.float32), "bfloat16")
    twice = formulas._rounded(once, "bfloat16")
    unit = 2.0 ** (math.frexp(size)[1] - 8)  # eight digits

    assert once == twice
    assert abs(float(once[0]) - value) <= unit / 2


def test_drift_is_the_same_with_the_same_seed() -> None:
    assert formulas._drifts("float16", [1, 3], 1) == formulas._drifts("float16", [1, 3], 1)
    assert formulas._drifts("float16", [1, 3], 1) != formulas._drifts("float16", [1, 3], 2)


# Traces -------------------------------------------------------------------------------------------------------------


def test_independent_draws_keep_how_many_a_request_has_and_lose_where_it_was() -> None:
    drawn = [Access(0, (1, 1)), Access(1, ()), Access(1, (5,))]
    independent = trace._independent_accesses("a-lora", drawn, seed=3)

    assert [(one.instance, len(one.adapters)) for one in independent] == [(0, 2), (1, 0), (1, 1)]


def test_distinct_adapters_are_counted_for_each_instance() -> None:
    assert trace._distinct_per_request([Access(0, (1, 2)), Access(0, (1,)), Access(1, (1,)), Access(1, ())]) == 3 / 4


def test_a_wrong_number_of_the_paper_would_be_noticed() -> None:
    wrong = {**SMALL, "counts": {**SMALL["counts"], "means": [1.5, 1.74, 1.91, 1.12]}}
    failed = [check.name for check in trace.counts(wrong).checks if not check.holds]

    assert "a-controlnet: adapters of a request" in failed
    assert "b-controlnet: adapters of a request" not in failed


def test_curves_of_popularity_rise_to_everything() -> None:
    (curve,) = trace.popularity(EXPECTED).series
    for service in ("a-lora", "b-lora"):
        uses = [float(str(row["uses"])) for row in curve.rows if row["service"] == service]
        assert uses == sorted(uses)
        assert uses[-1] == 100.0


# Systems ------------------------------------------------------------------------------------------------------------


def test_every_setting_has_a_second_for_everything_it_names() -> None:
    part = EXPECTED["latency"]

    for setting, controls, loras in zip(part["settings"], part["num_controls"], part["num_loras"], strict=True):
        assert setting == f"{controls}C/{loras}L"
    assert {len(values) for values in part.values() if isinstance(values, list)} == {7}


def test_adding_add_ons_never_makes_an_image_faster() -> None:
    scenario = ServingScenario(verb="simulate")
    plain = Arrival(0, 0.0, 50)
    heavier = [replace(plain, num_controls=2), replace(plain, loras=(1,), load_s=(0.5,))]

    for name in designs.SIMULATED:
        base_s = serve([plain], name, scenario).served[0].latency_s
        assert all(serve([one], name, scenario).served[0].latency_s >= base_s for one in heavier)


def test_gpus_as_needed_are_never_more_than_all_of_them() -> None:
    scenario = ServingScenario(verb="simulate")
    light, full = (serve([Arrival(0, 0.0, 50, num_controls=number)], "swiftdiffusion", scenario) for number in (0, 3))

    assert designs._images_per_used_gpu_minute(full) == pytest.approx(full.images_per_gpu_minute)
    assert designs._images_per_used_gpu_minute(light) == pytest.approx(4 * light.images_per_gpu_minute)


def test_a_missed_bar_of_loads_would_be_noticed() -> None:
    strict = {**SMALL, "queue_bar": {**SMALL["queue_bar"], "loads": 0.3}}

    assert not any(check.holds for check in designs.look_ahead(strict).checks)
