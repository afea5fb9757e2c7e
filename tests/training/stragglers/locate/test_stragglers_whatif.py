"""What a recorded job would gain without each cause: drawn traces whose cause is known, read from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from command_line import Run
from takeup.core.arrays import Floats
from takeup.errors import BadInput, BadTrace
from takeup.training.stragglers.locate.whatif import diagnose
from takeup.training.traces.operations import load_operations

SHAPE = (6, 4, 3, 8, 2)  # steps, replicas, stages, micro-batches, kinds


def drawn(noise: float = 0.02, seed: int = 1) -> Floats:
    """Forwards of a tenth of a second, backwards twice as long."""
    noises = np.exp(noise * np.random.default_rng(seed).standard_normal(SHAPE))
    durations_s: Floats = np.array([0.1, 0.2]) * noises
    return durations_s


def gpipe() -> list[Any]:
    return [np.array([*((n, 0) for n in range(8)), *((n, 1) for n in range(8))]) for _ in range(3)]


def test_a_slow_worker_is_named_with_its_factor_and_cost() -> None:
    durations_s = drawn()
    durations_s[:, 2, 1] *= 2

    found = diagnose(durations_s, gpipe())

    assert found.verdict is not None
    assert (found.verdict.cause, found.verdict.worker) == ("worker", (2, 1))
    assert found.verdict.factor == pytest.approx(2.0, rel=0.03)
    assert found.verdict.step_s == pytest.approx(diagnose(drawn(), gpipe()).step_s, rel=0.03)
    assert found.factors[2][1] == pytest.approx(2.0, rel=0.03)


def test_an_uneven_stage_is_named_and_balancing_keeps_the_work() -> None:
    durations_s = drawn(noise=0.0)
    durations_s[:, :, 2] *= 1.6

    found = diagnose(durations_s, gpipe())

    assert found.verdict is not None
    assert found.verdict.cause == "stages"
    assert found.verdict.factor == pytest.approx(1.6 / 1.2)
    even_s = 10 * 0.1 * 1.2 + 10 * 0.2 * 1.2  # eight micro-batches, and filling three stages, in both directions
    assert found.verdict.step_s == pytest.approx(even_s)


def test_sequences_of_different_length_are_named() -> None:
    durations_s = drawn() * np.random.default_rng(3).lognormal(0, 0.5, (6, 4, 1, 8, 1))

    verdict = diagnose(durations_s, gpipe()).verdict

    assert verdict is not None
    assert verdict.cause == "sequence lengths"
    assert verdict.saved_share > 0.1


@pytest.mark.parametrize("seed", range(5))
def test_of_a_healthy_job_nothing_is_said(seed: int) -> None:
    assert diagnose(drawn(seed=seed), gpipe()).verdict is None


def test_one_stage_and_one_replica_are_simulated_as_the_sum_of_their_operations() -> None:
    durations_s = np.full((2, 1, 1, 4, 2), 0.5)
    order = np.array([(n, kind) for n in range(4) for kind in (0, 1)])

    assert diagnose(durations_s, [order]).step_s == pytest.approx(4.0)


def test_orders_that_wait_for_each_other_are_refused() -> None:
    first, *others = gpipe()
    backwards_first = [np.concatenate([first[8:], first[:8]]), *others]

    with pytest.raises(BadInput, match="wait for each other"):
        diagnose(drawn(), backwards_first)
    with pytest.raises(BadInput, match="an order of all its operations"):
        diagnose(drawn(), gpipe()[:2])


# Files ----------------------------------------------------------------------------------------------------------------


def write(path: Path, durations_s: Floats, drop: int | None = None) -> Path:
    """As a trace in the columns of StragglerAnalysis; operation times of a stage follow each other."""
    rows: list[tuple[Any, ...]] = [
        (step, replica, stage, mb, ("forward-compute", "backward-compute")[kind], 100.0 * kind + mb, durations_s[index])
        for index in np.ndindex(durations_s.shape)
        for step, replica, stage, mb, kind in [index]
    ]
    rows = [*rows[:drop], *([] if drop is None else rows[drop + 1 :]), (0, 0, 0, -1, "optimizer", 0.0, 0.1)]
    names = ("step", "dp_rank", "stage", "mb_id", "optype", "start_ts", "duration")
    pq.write_table(pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), path)
    return path


def test_a_trace_is_read_as_it_was_written_and_steps_with_gaps_are_left_out(tmp_path: Path) -> None:
    durations_s = drawn()

    whole = load_operations(write(tmp_path / "whole.parquet", durations_s))
    cut = load_operations(write(tmp_path / "cut.parquet", durations_s, drop=10))

    np.testing.assert_allclose(whole.durations_s, durations_s)
    assert [order.tolist() for order in whole.orders] == [order.tolist() for order in gpipe()]
    assert (whole.num_incomplete, cut.num_incomplete, len(cut.durations_s)) == (0, 1, 5)


def test_what_is_no_trace_is_refused_with_what_is_expected(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("nonsense")
    pq.write_table(pa.table({"step": [1]}), tmp_path / "other.parquet")

    for name in ("text", "other"):
        with pytest.raises(BadTrace, match="expected Parquet with dp_rank, stage"):
            load_operations(tmp_path / f"{name}.parquet")


def test_the_command_says_what_costs_most(tmp_path: Path, run: Run) -> None:
    durations_s = drawn()
    durations_s[:, 2, 1] *= 2

    outcome = run("training", "whatif", write(tmp_path / "slow.parquet", durations_s))

    assert outcome.code == 0, outcome.err
    assert "worker 1 of replica 2 is 2.0" in outcome.out
    assert "costing" in outcome.out
