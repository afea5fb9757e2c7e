"""The game: it is one gymnasium accepts, its rewards are worth, and its plans are real allocations."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from edge.cells import two_devices

pytest.importorskip("gymnasium")

import gymnasium
from gymnasium.utils.env_checker import check_env

from takeup.edge.gym import OffloadingEnv, reference
from takeup.edge.model import Instance
from takeup.edge.traces.generators import generate, radio_tight_setting
from takeup.edge.validate import violation_of_answer
from takeup.errors import BadInput


def tight(random: np.random.Generator) -> Instance:
    return radio_tight_setting(random, 6, 4)


def episode(env: OffloadingEnv, seed: int) -> float:
    """Accept a random device that can join until none is left; all rewards together."""
    _, info = env.reset(seed=seed)
    random, total, is_over = np.random.default_rng(seed), 0.0, False
    while not is_over:
        able = np.flatnonzero(info["action_mask"][:-1])
        action = random.choice(able) if len(able) else env.instance.num_devices
        _, reward, is_over, is_cut_short, info = env.step(np.int64(action))
        assert not is_cut_short
        total += reward
    return total


@pytest.mark.parametrize("source", [partial(generate, "paper", num_devices=5), tight])
def test_gymnasium_accepts_the_environment(source: partial[Instance]) -> None:
    check_env(OffloadingEnv(source), skip_render_check=True)


@pytest.mark.parametrize("seed", range(6))
def test_rewards_add_up_to_the_share_of_the_bound_that_the_plan_is_worth(seed: int) -> None:
    env = OffloadingEnv(tight)
    total = episode(env, seed)

    assert total == pytest.approx(env.answer().worth_j / env.bound_j, abs=1e-9)
    assert 0.0 <= total <= 1.0 + 1e-6


@pytest.mark.parametrize("seed", range(6))
def test_every_episode_ends_in_an_allocation_that_keeps_all_constraints(seed: int) -> None:
    env = OffloadingEnv(tight)
    episode(env, seed)

    assert violation_of_answer(env.instance, env.answer()) is None


def test_the_same_seed_gives_the_same_episode() -> None:
    first, again, other = (episode(OffloadingEnv(tight), seed) for seed in (3, 3, 4))

    assert first == again
    assert first != other


def test_no_episode_beats_the_bound_and_the_reference_is_a_yardstick() -> None:
    env = OffloadingEnv(tight)
    for seed in range(4):
        episode(env, seed)
        answer = reference(env.instance)

        assert answer.worth_j <= env.bound_j * (1 + 1e-6)
        assert answer.worth_j >= 0.9 * env.answer().worth_j


def test_two_devices_by_hand() -> None:
    env = OffloadingEnv(lambda _: two_devices())
    seen, info = env.reset(options={"instance": two_devices()})

    assert info["action_mask"].tolist() == [1, 1, 1]
    assert seen["free"].tolist() == [1, 1]
    assert seen["start"].tolist() == pytest.approx([3 / 4, 3.5 / 4])
    assert seen["devices"][:, 0].tolist() == pytest.approx([1.0, 4 / 32])

    seen, reward, is_over, _, info = env.step(np.int64(0))

    assert seen["accepted"].tolist() == [1, 0]
    assert int(seen["free"].sum()) == 1
    assert reward > 0
    assert is_over == (info["action_mask"].tolist() == [0, 0, 1])


def test_to_stop_ends_the_episode_and_leaves_nothing_to_gain() -> None:
    env = OffloadingEnv(tight)
    env.reset(seed=1)
    _, reward, is_over, is_cut_short, _ = env.step(np.int64(env.instance.num_devices))

    assert (reward, is_over, is_cut_short) == (0.0, True, False)
    assert env.answer().allocation.num_accepted == 0


def test_to_accept_somebody_twice_changes_nothing_and_is_cut_short_in_the_end() -> None:
    env = OffloadingEnv(tight)
    _, info = env.reset(seed=1)
    action = np.int64(np.flatnonzero(info["action_mask"])[0])
    env.step(action)
    outcomes = [env.step(action)[1:4] for _ in range(2 * env.instance.num_devices - 1)]

    assert all(reward == 0.0 and not is_over for reward, is_over, _ in outcomes)
    assert [is_cut_short for _, _, is_cut_short in outcomes] == [False] * 10 + [True]


def test_an_instance_of_another_shape_is_refused() -> None:
    env = OffloadingEnv(tight)

    with pytest.raises(BadInput, match=r"of 2 devices and 2 subcarriers, .* 6 devices and 4"):
        env.reset(options={"instance": two_devices()})
    with pytest.raises(BadInput, match="nothing to choose"):
        OffloadingEnv(lambda random: radio_tight_setting(random, 0, 4))


def test_a_cell_in_which_nobody_saves_is_over_without_a_reward() -> None:
    dear = replace(two_devices(), chip_constant=1e-30)
    env = OffloadingEnv(lambda _: dear)
    env.reset()
    _, reward, is_over, _, _ = env.step(np.int64(0))

    assert (reward, is_over) == (0.0, True)


def test_without_gymnasium_the_error_names_the_extra() -> None:
    program = "import sys; sys.modules['gymnasium'] = None\nimport takeup.edge.gym"

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert "MissingEngine: the environment of edge needs the package 'gymnasium'" in ended.stderr
    assert "pip install 'takeup[gym]'" in ended.stderr


def test_the_registered_environment_is_made_by_its_name() -> None:
    environment = gymnasium.make("takeup/Offloading-v0", disable_env_checker=True)
    observation, info = environment.reset(seed=1)

    assert environment.observation_space.contains(observation)
    assert info
