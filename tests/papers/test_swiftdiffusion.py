"""The reproduction of SwiftDiffusion: every check that counts holds, and its tables hold what they say."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from reproduced import reproduced, together
from takeup.core.report import Cell, Report, Source, Table
from takeup.papers import numbers
from takeup.papers.swiftdiffusion.designs import _rounded

EXPECTED = numbers("swiftdiffusion")


pytestmark = together


@pytest.fixture(scope="module")
def report() -> Report:
    return reproduced("swiftdiffusion")


def table(report: Report, title: str) -> Table:
    return next(each for each in report.tables if each.title.startswith(title))


def rows(report: Report, title: str, *, by: int = 1) -> dict[tuple[Cell, ...], list[float]]:
    return {row[:by]: [float(str(cell)) for cell in row[by:]] for row in table(report, title).rows}


def test_every_check_that_counts_holds(report: Report) -> None:
    assert [check.name for check in report.checks if check.counts and not check.holds] == []
    assert len(report.checks) >= 80


def test_every_group_of_numbers_names_a_source_we_know() -> None:
    groups = [group for name, group in EXPECTED.items() if name not in ("setting", "notes")]

    assert all(group["source"] in get_args(Source) for group in groups)


def test_printed_shares_of_requests_add_up_and_have_the_printed_mean(report: Report) -> None:
    for key, values in rows(report, "Adapters of a request", by=2).items():
        *shares, mean = values
        assert sum(shares) == pytest.approx(100, abs=0.1), key
        assert np.dot(shares, range(4)) / 100 == pytest.approx(mean, abs=0.011)


def test_per_gpu_throughput_stands_beside_latency_in_every_setting(report: Report) -> None:
    seconds = rows(report, "Seconds of an image")
    per_gpu = rows(report, "Images for a GPU-minute")

    assert list(seconds) == list(per_gpu)
    for setting, (gpus, stock, katz, _, ours, _) in per_gpu.items():
        logs, simulated = seconds[setting][:4], seconds[setting][4:]
        assert stock == pytest.approx(60 / logs[0])
        assert katz == pytest.approx(60 / logs[3] / gpus)
        assert ours == pytest.approx(60 / simulated[3])


def test_katz_is_at_or_below_diffusers_for_each_gpu_in_five_of_seven_settings(report: Report) -> None:
    ratios = [row[3] for row in rows(report, "Images for a GPU-minute").values()]

    assert sum(round(ratio, 2) <= 1 for ratio in ratios) == 5


def test_a_request_alone_costs_what_the_first_equation_says(report: Report) -> None:
    seconds = rows(report, "Seconds of an image")
    load_and_patch, control, switch, base = 0.5 + 2.85, 4.54 - 0.28 - 2.88, 0.28, 2.88

    assert seconds[("3C/2L",)][4] == pytest.approx(base + 3 * (control + switch) + 2 * load_and_patch)
    assert seconds[("0C/0L",)][5] == pytest.approx(0.8 * base + 0.35)
    assert seconds[("3C/0L",)][7] == pytest.approx(base + 3 * control)


def test_a_queue_turns_the_order_of_designs_around(report: Report) -> None:
    felt = rows(report, "Latency of requests", by=2)
    slow, fast = EXPECTED["setting"]["rates_per_s"]

    assert felt[(slow, "swiftdiffusion")][2] < felt[(slow, "takeup")][2]  # alone, eight GPUs are faster than one
    assert felt[(fast, "takeup")][3] < felt[(fast, "diffusers")][3] < felt[(fast, "swiftdiffusion")][3]


def test_in_any_order_a_queue_saves_more_than_in_order_and_nobody_beats_loading_once(report: Report) -> None:
    for in_order, long_queue, any_order, once in (row[1:] for row in rows(report, "What a queue knows", by=2).values()):
        assert once < any_order < in_order
        assert any_order < long_queue


def test_bfloat16_has_eight_digits_and_rounds_to_even() -> None:
    values = np.array([1.0, 1.0 + 2**-8, 1.0 + 3 * 2**-8, 1.0 + 2**-8 + 2**-12, -3.14159], np.float32)
    rounded = _rounded(values, "bfloat16")

    assert rounded.tolist() == [1.0, 1.0, 1.0 + 2**-6, 1.0 + 2**-7, -3.140625]
    assert _rounded(values, "float32") is values


def test_fewer_digits_drift_more_and_more_swaps_drift_further(report: Report) -> None:
    ours = [row[3:6] for row in rows(report, "Taking LoRAs out").values()]

    assert all(row == sorted(row) for row in ours)
    assert ours[0][2] / ours[1][2] == pytest.approx(8, rel=0.3)  # three bits
