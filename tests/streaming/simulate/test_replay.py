"""The replay of a log: against a plain one, hand-computed cases, and intervals that admit what was not seen."""

from __future__ import annotations

import math

import numpy as np
import pytest

from streaming.oracles import ps_cell
from takeup.core.arrays import Floats
from takeup.errors import BadInput, UnknownName
from takeup.streaming.capacity_fit import MEAN_VIDEO_S, SPEEDS, THRESHOLDS_S, measured_stalls
from takeup.streaming.model import Cell, Player
from takeup.streaming.playback import play
from takeup.streaming.simulate.cell import simulate_cell
from takeup.streaming.simulate.replay import SteadyLog, held_out_errors, replay_intervals
from takeup.streaming.solvers.fluid import DoublingSolver

MEAN_S = 60.0


def log_of(rates: list[float] | Floats) -> SteadyLog:
    return SteadyLog(np.ones(len(rates)), np.asarray(rates, np.float64))


def random_log(seed: int, seconds: int = 400) -> SteadyLog:
    rng = np.random.default_rng(seed)
    slow = np.repeat(rng.gamma(2.0, 0.6, seconds // 20), 20)
    return log_of(slow * rng.gamma(3.0, 1 / 3, len(slow)))


def plain_replay(log: SteadyLog, player: Player, begin: int) -> list[float]:
    """One session, event by event on the curve of what has arrived."""
    rates = np.tile(np.roll(log.rates_bps, -begin), 40)
    received = np.concatenate(([0.0], np.cumsum(rates)))

    def done_at(now_s: float) -> float:
        have = float(np.interp(now_s, np.arange(len(received)), received))
        return float(np.interp(have + player.segment_s, received, np.arange(len(received))))

    now_s, content_s, buffer_s, enough_s, plays = 0.0, 0.0, 0.0, player.start_s, False
    stalled, num, stall_s, startup_s = 0.0, 0.0, 0.0, 0.0
    while math.exp(-content_s / MEAN_S) > 1e-3:
        weight = math.exp(-content_s / MEAN_S)
        if plays and buffer_s > player.goal_s:
            now_s, buffer_s = now_s + buffer_s - player.goal_s, player.goal_s
        took_s = done_at(now_s) - now_s
        now_s, content_s = now_s + took_s, content_s + player.segment_s
        half = weight * math.exp(-player.segment_s / 2 / MEAN_S)
        if not plays and num == 0:
            startup_s += half * took_s
        elif not plays:
            stall_s += half * took_s
        elif took_s > buffer_s:
            stalled, num, stall_s = stalled or weight, num + weight, stall_s + half * (took_s - buffer_s)
            plays, enough_s, buffer_s, took_s = False, player.again_s, 0.0, 0.0
        buffer_s += player.segment_s - (took_s if plays else 0.0)
        plays = plays or buffer_s >= enough_s - 1e-9
    return [stalled, num, stall_s, startup_s, 1.0, 0.0]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "player", [Player(4.0, 4.0, 30.0, 4.0), Player(8.0, 2.0, 18.0, 2.0), Player(1.0, 6.0, 6.0, 1.0)]
)
def test_the_compiled_replay_is_the_plain_one(seed: int, player: Player) -> None:
    log = random_log(seed)
    found = log.outcomes(player, 1.0, MEAN_S)

    for begin in (0, 7, 133, 399):
        assert found[begin] == pytest.approx(plain_replay(log, player, begin), abs=1e-6)


def test_a_link_twice_as_fast_as_the_video_never_stalls() -> None:
    outcomes = log_of([2.0] * 100).outcomes(Player(8.0, 8.0, 30.0, 4.0), 1.0, MEAN_S)
    first, second = (math.exp(-content_s / MEAN_S) for content_s in (2.0, 6.0))

    assert (outcomes[:, :3] == 0).all()
    assert outcomes[:, 3] == pytest.approx(2.0 * (first + second))


def test_a_goal_below_an_outage_stalls_where_a_higher_one_does_not() -> None:
    log = log_of([4.0] * 200 + [0.0] * 20)
    low, high = (log.outcomes(Player(4.0, 4.0, goal_s, 4.0), 1.0, 1000.0)[0, 0] for goal_s in (10.0, 60.0))

    assert low > 0.5
    assert high == 0.0


def test_a_player_that_resumes_at_once_stalls_more_often_and_for_less_time() -> None:
    log = random_log(3)
    soon, late = (log.outcomes(Player(8.0, resume_s, 40.0, 2.0), 1.2, MEAN_S).mean(axis=0) for resume_s in (2.0, 16.0))

    assert soon[1] > late[1]
    assert soon[0] == late[0]


def test_without_a_goal_and_with_small_segments_it_is_the_fluid_replay_of_the_fit() -> None:
    log = random_log(5, 1200)
    relative = log.rates_bps / log.mean_bps
    expected = measured_stalls([relative])

    for i, j in ((0, 0), (1, 1), (2, 2), (3, 0)):
        player = Player(THRESHOLDS_S[j], None, 1e9, 0.25)
        found = log_of(relative).outcomes(player, 1 / SPEEDS[i], MEAN_VIDEO_S)[:, 0].mean()
        assert found == pytest.approx(expected[i, j], abs=0.015)


def test_an_interval_holds_the_value_and_never_promises_that_nothing_happens() -> None:
    found = replay_intervals(log_of([2.0] * 300), Player(4.0, 4.0, 30.0, 4.0), 1.0, MEAN_S)
    stalls = found["stall_probability"]

    assert stalls.value == stalls.low == 0.0
    assert stalls.high == pytest.approx(1 - 0.1 ** (MEAN_S / 300))
    assert all(each.low <= each.value <= each.high for each in found.values())


def test_a_longer_log_without_stalls_says_more() -> None:
    player = Player(4.0, 4.0, 30.0, 4.0)
    short, long = (
        replay_intervals(log_of([2.0] * seconds), player, 1.0, MEAN_S)["stall_probability"].high
        for seconds in (300, 3000)
    )

    assert long < short / 5


def test_a_log_whose_level_changes_has_the_wider_interval() -> None:
    rng = np.random.default_rng(2)
    steady = rng.gamma(8.0, 0.15, 1200)
    changing = steady * np.repeat([0.6, 1.4, 0.7, 1.3], 300)
    widths = []
    for rates in (steady, changing):
        found = replay_intervals(log_of(rates), Player(4.0, 4.0, 30.0, 4.0), 1.0, MEAN_S)["stall_probability"]
        widths.append(found.high - found.low)

    assert widths[1] > 1.5 * widths[0]


def test_every_part_is_predicted_from_the_others() -> None:
    outcomes = np.zeros((8, 6))
    outcomes[:2, 0] = 1.0

    assert held_out_errors(outcomes)[:2] == [(0.0, 1.0), (1 / 3, 0.0)]


# Ladders: total seconds in stalls, stalls, mean kbit/s, as Sabre gives them for this log and video without latency,
# with '-a throughput -noibr -noa' and '-a bola -ab -noa'
SABRE = {
    ("throughput", 6.0): (0.0, 0, 1068.0),
    ("throughput", 14.0): (0.0, 0, 1091.333),
    ("bola", 6.0): (10.384246, 9, 1706.667),
    ("bola", 14.0): (0.0, 0, 1646.0),
}
LADDER_BPS = (300e3, 750e3, 1200e3, 1850e3, 2850e3)


def uneven_log() -> SteadyLog:
    return log_of([2e6 + 3e5 * ((7 * k) % 11 - 5) if k % 23 < 19 else 2e5 for k in range(240)])


@pytest.mark.parametrize(("rule", "goal_s"), SABRE)
def test_bitrates_are_chosen_as_sabre_chooses_them(rule: str, goal_s: float) -> None:
    found = uneven_log().outcomes(Player(2.0, 2.0, goal_s, 2.0, rule), LADDER_BPS, 1e12, length_s=300.0)[0]

    assert (found[2], found[1], found[4] / 1e3) == pytest.approx(SABRE[rule, goal_s], abs=1e-3)


def test_a_buffer_based_rule_plays_the_lowest_bitrate_until_three_eighths_of_the_goal() -> None:
    low, high = (
        log_of([5e6] * 300).outcomes(Player(2.0, 2.0, goal_s, 2.0, "bba"), LADDER_BPS, 1e12, length_s=20.0)[0, 4]
        for goal_s in (60.0, 6.0)
    )

    assert low == pytest.approx(300e3)
    assert high > 1e6


def test_the_dynamic_rule_is_throughput_below_twelve_seconds_and_bola_above() -> None:
    def bitrate(rule: str, goal_s: float) -> float:
        player = Player(2.0, 2.0, goal_s, 2.0, rule)
        return float(uneven_log().outcomes(player, LADDER_BPS, 60.0)[:, 4].mean())

    assert bitrate("dynamic", 8.0) == bitrate("throughput", 8.0)
    assert bitrate("dynamic", 30.0) != bitrate("throughput", 30.0)


def test_an_unknown_rule_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="no bitrate rule 'bolla'; did you mean 'bola'"):
        Player(2.0, rule="bolla")


def test_a_goal_and_segments_are_refused_where_they_would_be_ignored() -> None:
    with pytest.raises(BadInput, match="whole segments are played by the replay"):
        DoublingSolver().solve(ps_cell(7.8, 60.0, 0.1, 5), Player(5.0, 5.0, 30.0, 2.0))
    with pytest.raises(BadInput, match="buffer goal is known to equations"):
        simulate_cell(Cell(2.8e6, 360e3, 0.1, 5), Player(5.0, 5.0, 30.0), num_videos=10)
    with pytest.raises(BadInput, match="segment_s above zero"):
        log_of([1.0] * 9).outcomes(Player(5.0), 1.0, MEAN_S)


@pytest.mark.parametrize("goal_s", [6.0, 14.0])
def test_a_recorded_session_plays_as_the_replay_does(goal_s: float) -> None:
    log, player = log_of([1.6] * 10 + [0.3] * 20 + [3.0] * 10), Player(4.0, 2.0, goal_s, 2.0)
    found = log.outcomes(player, 1.0, 1e12, length_s=24.0)[0]
    took_s, now_s, buffer_s, received = [], 0.0, 0.0, np.concatenate(([0.0], np.cumsum(np.tile(log.rates_bps, 4))))
    playing = False
    for _ in range(12):
        if playing and buffer_s > goal_s:
            now_s, buffer_s = now_s + buffer_s - goal_s, goal_s
        have = np.interp(now_s, np.arange(len(received)), received)
        took_s.append(float(np.interp(have + 2.0, received, np.arange(len(received)))) - now_s)
        now_s += took_s[-1]
        stalls = playing and took_s[-1] > buffer_s
        buffer_s = max(0.0, buffer_s - (took_s[-1] if playing else 0.0)) + 2.0
        playing = (not stalls and (playing or buffer_s >= 4.0)) or (stalls and buffer_s >= 2.0)

    played = play(np.full(12, 2.0), np.array(took_s), player)
    assert (played.num_stalls, played.stall_s, played.startup_s) == pytest.approx(found[1:4].tolist(), abs=1e-6)


@pytest.mark.parametrize("rule", ["bola", "bba", "dynamic"])
def test_a_higher_goal_at_the_highest_bitrate_does_not_keep_a_player_from_reaching_it(rule: str) -> None:
    player = Player(4.0, 4.0, 18.0, 4.0, rule, top_goal_s=30.0)
    found = log_of([10e6] * 400).outcomes(player, LADDER_BPS, 300.0)[:, 4]

    assert found.min() > 1.5e6


def test_a_player_that_pauses_early_stalls_before_its_buffer_is_empty() -> None:
    rates = [1e6] * 2 + [0.1e6] * 10 + [1e6] * 400  # the third segment takes 6.1 s more than two are worth
    usual, early = (Player(2.0, 2.0, 60.0, 2.0, pause_s=pause_s) for pause_s in (0.0, 0.5))
    found = [log_of(rates).outcomes(player, 0.5e6, 1e12, length_s=20.0)[0] for player in (usual, early)]

    assert found[1][1] == pytest.approx(1.0)
    assert found[0][1] == pytest.approx(1.0)
    assert found[1][2] == pytest.approx(found[0][2] + 0.5)


def test_a_request_that_takes_too_long_is_repeated_from_its_first_byte() -> None:
    rates = [1e6] * 2 + [1e3] * 30 + [1e6] * 400
    patient, hasty = (Player(2.0, 2.0, 60.0, 2.0, timeout_s=timeout_s) for timeout_s in (np.inf, 12.0))
    found = [log_of(rates).outcomes(player, 0.5e6, 1e12, length_s=20.0)[0] for player in (patient, hasty)]

    # Two segments in the first two seconds; requests at 2, 15 and 28, of which the third gets its 4 s in time.
    assert found[0][2] == pytest.approx(33 - 0.03 - 5, abs=0.01)
    assert found[1][2] == pytest.approx(33 - 0.004 - 5, abs=0.01)
