"""A cell in which everybody adapts: the mean field against a simulation in which nobody's bit rate is assumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from takeup.streaming.policies.abr_buffer import BufferAbrSolver
from takeup.streaming.policies.abr_mean_field import mean_field, solve_adapting

from streaming.oracles import reference_cell
from takeup.errors import BadInput
from takeup.streaming.chains import chain_of
from takeup.streaming.model import Capacity, Cell, Player, QoeMetrics, Views
from takeup.streaming.policies import abr_mean_field
from takeup.streaming.simulate import simulate_adaptive

NAMES = ("startup_s", "stall_probability", "num_stalls", "stall_s", "finished_early", "blocked_share")
CELL = reference_cell()


def solver(*ladder_bps: float, levels_s: tuple[float, ...]) -> BufferAbrSolver:
    return BufferAbrSolver(ladder_bps, levels_s, CELL.bitrate_bps)


# Against the whole cell -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrivals_per_s", "player", "ladder_bps", "levels_s"),
    [
        (0.12, Player(5.0), (300e3, 600e3), (8.0,)),
        (0.10, Player(2.0), (320e3, 500e3, 900e3), (4.0, 12.0)),
        (0.08, Player(5.0), (360e3, 700e3), (5.0,)),
        (0.14, Player(5.0, 3.0), (360e3, 700e3), (6.0,)),
    ],
)
def test_the_mean_field_is_what_the_whole_cell_lives_through(
    arrivals_per_s: float, player: Player, ladder_bps: tuple[float, ...], levels_s: tuple[float, ...]
) -> None:
    cell = replace(CELL, arrivals_per_s=arrivals_per_s)
    found = solve_adapting(cell, player, ladder_bps, levels_s)
    simulated = simulate_adaptive(cell, player, ladder_bps, levels_s, num_videos=150_000, seed=2)

    assert max(map(abs, simulated.z_scores(found).values())) <= 3.5


def test_others_who_do_not_adapt_are_another_cell() -> None:
    player, ladder_bps, levels_s = Player(5.0), (360e3, 700e3), (5.0,)
    cell = replace(CELL, arrivals_per_s=0.08)
    simulated = simulate_adaptive(cell, player, ladder_bps, levels_s, num_videos=50_000, seed=2)
    alone: QoeMetrics = BufferAbrSolver(ladder_bps, levels_s, 360e3).solve(chain_of(cell), player)

    assert alone.stall_probability.value < 0.5 * simulated.stall_probability.value


def test_the_page_on_streaming_prints_what_is_computed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "concepts" / "streaming.md").read_text("utf-8")
    cell, player, ladder_bps, levels_s = replace(CELL, arrivals_per_s=0.08), Player(5.0), (360e3, 700e3), (5.0,)
    alone = BufferAbrSolver(ladder_bps, levels_s, 360e3).solve(chain_of(cell), player)
    rows = {"the others stay at 360 kbit/s": alone, "mean field": solve_adapting(cell, player, ladder_bps, levels_s)}

    for name, answer in rows.items():
        assert f"| {name} | {answer.stall_probability.value:.4f} | {answer.blocked_share.value:.4f} |" in page


# The fixed point ------------------------------------------------------------------------------------------------------


def test_levels_that_hardly_differ_leave_the_cell_as_it_is() -> None:
    field = mean_field(CELL, Player(5.0), solver(360e3, 360e3 * (1 + 1e-9), levels_s=(4.0,)))

    assert field.paces == pytest.approx(1.0, abs=1e-6)
    assert field.chain.generator == pytest.approx(chain_of(CELL).generator, abs=1e-6)


def test_one_level_is_a_cell_of_that_bit_rate() -> None:
    field = mean_field(CELL, Player(5.0), solver(700e3, levels_s=()))
    expected = chain_of(replace(CELL, bitrate_bps=700e3))

    assert field.chain.blocked_share == pytest.approx(expected.blocked_share)
    assert field.chain.initial == pytest.approx(expected.initial)
    assert field.num_rounds <= 2


def test_the_more_users_the_lower_the_bit_rate() -> None:
    field = mean_field(CELL, Player(5.0), solver(300e3, 500e3, 900e3, levels_s=(5.0, 15.0)))

    assert (np.diff(field.paces) > 0).all()
    assert 360 / 900 <= field.paces.min() < field.paces.max() <= 360 / 300
    assert field.num_rounds < 30


def test_one_more_round_changes_nothing() -> None:
    player, ladder = Player(4.0, 2.0), solver(320e3, 800e3, levels_s=(6.0,))
    field = mean_field(CELL, player, ladder)
    content, seconds = abr_mean_field._lived_with(field.chain, player, ladder, CELL.mean_video_s)

    assert content.sum() == pytest.approx(CELL.mean_video_s)
    assert content / (seconds * field.chain.fill) == pytest.approx(field.paces, rel=1e-6)


def test_a_fixed_point_that_is_not_reached_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abr_mean_field, "MOST_ROUNDS", 1)
    with pytest.raises(BadInput, match=r"the mean field still changes by .* after 1 rounds"):
        solve_adapting(CELL, Player(5.0), (300e3, 600e3), (8.0,))


@pytest.mark.parametrize(
    ("cell", "player", "message"),
    [
        (replace(CELL, capacity=Capacity(np.ones(1), np.zeros((1, 1)))), Player(5.0), "for a constant capacity"),
        (replace(CELL, views=(Views(0.5, 20.0), Views(0.5, 90.0))), Player(5.0), "one class of views"),
        (CELL, Player(5.0, 0.0), "give a resume threshold above zero"),
    ],
)
def test_what_a_mean_field_does_not_cover_is_refused(cell: Cell, player: Player, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        solve_adapting(cell, player, (300e3, 600e3), (8.0,))


# What a video collects ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buffer_s", [0.5, 4.0, 9.0, 30.0])
def test_a_download_ends_or_its_buffer_runs_empty(buffer_s: float) -> None:
    playing, _ = solver(340e3, 500e3, 900e3, levels_s=(4.0, 12.0)).phases(chain_of(CELL))
    collected = playing.collects(buffer_s)

    assert collected[:, :-1].sum(axis=1) + playing.empties(buffer_s).sum(axis=1) == pytest.approx(1.0)
    assert collected.min() > -1e-12


def test_waiting_collects_what_it_says_it_waits() -> None:
    _, waiting = solver(340e3, 500e3, 900e3, levels_s=(4.0, 12.0)).phases(chain_of(CELL))
    waited, collected = waiting.until(14.0), waiting.collects(14.0)

    assert collected[:, :-1].sum(axis=1) == pytest.approx(waited.finished)
    assert collected[:, -1] == pytest.approx(waited.mean_s)


def test_a_video_alone_takes_the_time_that_its_levels_take() -> None:
    cell = Cell(720e3, 360e3, 0.01, max_users=1)
    playing, waiting = BufferAbrSolver((360e3, 480e3), (10.0,), 360e3).phases(chain_of(cell))
    (ends, total_s), *_ = waiting.collects(5.0) + waiting.until(5.0).starts_in @ playing.collects(5.0)
    longer = np.exp(-15 / 60)  # the first 15 s of content come at twice the speed of play, the rest at 1.5 times

    assert ends == pytest.approx(1.0)
    assert total_s == pytest.approx(60 / 2 * (1 - longer) + 60 / 1.5 * longer)
