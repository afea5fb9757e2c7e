"""Requests over time: drawn, read, stretched; and the costs that belong to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.errors import BadInput, BadTrace
from takeup.serving.model import Access, Arrival, Design, RowCosts
from takeup.serving.traces.adapter_accesses import MEASURED
from takeup.serving.traces.arrivals import (
    LOADS,
    at_rate,
    poisson_arrivals,
    read_arrivals,
    retail_arrivals,
    with_loads,
)

# Costs --------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 40))
def test_costs_lie_on_straight_lines_through_the_points(num_rows: int) -> None:
    slope = (6.0 - 1.5) / 12
    expected = np.interp(num_rows, (2, 4, 16), (1.0, 1.5, 6.0)) if num_rows <= 16 else 6.0 + slope * (num_rows - 16)

    assert RowCosts(((2, 1.0), (4, 1.5), (16, 6.0)))(num_rows) == pytest.approx(expected)


def test_a_single_point_grows_in_proportion() -> None:
    assert [RowCosts(((2, 0.5),))(rows) for rows in (1, 2, 6)] == [0.5, 0.5, 1.5]


@pytest.mark.parametrize("points", [(), ((0, 1.0),), ((2, 0.0),), ((4, 1.0), (2, 1.0)), ((2, 1.0), (2, 2.0))])
def test_costs_without_sense_are_refused(points: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(BadInput, match="rising rows"):
        RowCosts(points)


def test_requests_and_designs_without_sense_are_refused() -> None:
    with pytest.raises(BadInput, match="2 LoRAs and 1 times"):
        Arrival(0, 0.0, loras=(1, 2), load_s=(1.0,))
    with pytest.raises(BadInput, match="0 steps of 2 rows"):
        Arrival(0, 0.0, num_steps=0)
    with pytest.raises(BadInput, match="on 0 GPUs"):
        Design("x", RowCosts(((2, 1.0),)), gpus_per_instance=0)


# Drawn --------------------------------------------------------------------------------------------------------------


def test_gaps_of_a_poisson_process_vary_as_much_as_they_last() -> None:
    gaps = np.diff([one.arrival_s for one in poisson_arrivals(20_000, 4.0, seed=2)])

    assert np.mean(gaps) == pytest.approx(0.25, rel=0.03)
    assert np.std(gaps) == pytest.approx(0.25, rel=0.05)


def test_retail_requests_have_the_add_ons_of_their_services() -> None:
    arrivals = retail_arrivals(4000, 1.0, seed=1)
    from_b = [one for one in arrivals if one.shape == "b"]
    controls = [sum(one.num_controls == number for one in from_b) / len(from_b) for number in range(4)]

    assert len(from_b) / len(arrivals) == pytest.approx(0.7, abs=0.03)
    assert controls == pytest.approx(MEASURED["b-controlnet"].count_shares, abs=0.03)
    assert np.mean([len(one.loras) for one in from_b]) == pytest.approx(MEASURED["b-lora"].mean_count, abs=0.05)
    assert all(lora[0] == one.shape for one in arrivals for lora in one.loras)  # type: ignore[index]


def test_the_same_seed_gives_the_same_requests() -> None:
    first, again, other = (with_loads(retail_arrivals(200, 1.0, seed), "gentd26", seed) for seed in (1, 1, 2))

    assert first == again
    assert first != other


@pytest.mark.parametrize("kind", ["bandwidth", "gentd26"])
def test_times_to_load_have_the_measured_quantiles(kind: str) -> None:
    arrivals = with_loads(retail_arrivals(3000, 1.0, seed=1), kind, seed=1)  # type: ignore[arg-type]
    drawn = [seconds for one in arrivals for seconds in one.load_s]
    shares, seconds = LOADS[kind]  # type: ignore[index]

    assert all(len(one.load_s) == len(one.loras) for one in arrivals)
    assert np.quantile(drawn, shares[1:-1]) == pytest.approx(seconds[1:-1], rel=0.03)
    assert seconds[0] <= min(drawn) <= max(drawn) <= seconds[-1]


@pytest.mark.parametrize("rate_per_s", [0.0, -1.0, float("nan")])
def test_a_rate_is_above_zero(rate_per_s: float) -> None:
    with pytest.raises(BadInput, match="above zero"):
        poisson_arrivals(2, rate_per_s, seed=1)
    with pytest.raises(BadInput, match="above zero"):
        at_rate(poisson_arrivals(2, 1.0, seed=1), rate_per_s)


def test_gaps_are_stretched_alike() -> None:
    arrivals = [Arrival(number, time_s) for number, time_s in enumerate((5.0, 6.0, 9.0))]

    assert [one.arrival_s for one in at_rate(arrivals, 0.25)] == [0.0, 2.0, 8.0]
    assert at_rate(arrivals[:1], 1.0) == arrivals[:1]
    with pytest.raises(BadInput, match="at the same time"):
        at_rate([Arrival(0, 1.0), Arrival(1, 1.0)], 1.0)


# Read ---------------------------------------------------------------------------------------------------------------

HEADER = "gmt_create,predict_type,num_images_per_prompt,num_inference_steps,checkpoint_model_version_id,num_lora\n"


def write(folder: Path, *rows: str) -> Path:
    path = folder / "lora_request_trace.csv"
    path.write_text(HEADER + "".join(f"{row}\n" for row in rows))
    return path


def test_requests_are_read_in_the_order_of_their_times_with_the_loras_of_the_other_file(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "2024-11-15 16:00:10,t,2.0,30.0,base,1",
        "2024-11-15 16:00:00,t,1.0,40.0,base,0",
        "2024-11-15 16:01:00,t,,,other,1",
        "2024-11-15 16:02:00,t,1,20,base,3",
    )
    arrivals = read_arrivals(path, [Access(0, ()), Access(0, (7,)), Access(0, (8, 9)), Access(0, (5,))])

    assert [one.arrival_s for one in arrivals] == [0.0, 10.0, 60.0, 120.0]
    assert [one.loras for one in arrivals] == [(), (7,), (5,), ()]  # nobody else has three
    assert [(one.num_steps, one.num_rows) for one in arrivals] == [(40, 2), (30, 4), (30, 2), (20, 2)]
    assert [one.shape for one in arrivals] == ["base", "base", "other", "base"]


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"line 2: is no request"):
        read_arrivals(write(tmp_path, "yesterday,t,1,30,base,0"), [])
    with pytest.raises(BadTrace, match="holds no request"):
        read_arrivals(write(tmp_path), [])
    with pytest.raises(BadTrace, match="cannot be opened"):
        read_arrivals(tmp_path / "none.csv", [])
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadTrace, match="has no column 'gmt_create'"):
        read_arrivals(tmp_path / "x.csv", [])
