"""Profiles and schedules as files: what is read back is what was written; what cannot be is refused with its place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from takeup.errors import BadInput, BadScenario
from takeup.training.pipelines.profile import Profile, Stage
from takeup.training.pipelines.timing.evaluation import generate_schedule
from takeup.training.traces.profiles import load_profile, load_schedule, random_profile, save_profile, save_schedule
from training.pipeline_profiles import profiles, slow

FILE = """
num_microbatches = 8
forward_s = [0.01, 0.02]
backward_s = [0.01, 0.02]
weight_s = [0.01, 0.02]
latency_s = [0.005]
"""


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(profiles() | profiles(shared=True))
def test_a_profile_comes_back_as_it_was(tmp_path: Path, profile: Profile) -> None:
    save_profile(profile, tmp_path / "profile.toml")

    assert load_profile(tmp_path / "profile.toml") == profile


def test_memory_comes_back_too(tmp_path: Path) -> None:
    profile = Profile((Stage(0.01, 0.01, 0.01, 100, 1000),), (), 4, can_split=False)
    save_profile(profile, tmp_path / "profile.toml")

    assert load_profile(tmp_path / "profile.toml") == profile
    with pytest.raises(BadInput, match="some have none"):
        save_profile(replace(slow(2, 2, {}), stages=(profile.stages[0], Stage(0, 0, 0))), tmp_path / "other.toml")


def written(folder: Path, text: str) -> Path:
    path = folder / "profile.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_is_left_out_is_nothing(tmp_path: Path) -> None:
    profile = load_profile(written(tmp_path, FILE))

    assert [stage.work_s for stage in profile.stages] == pytest.approx([0.03, 0.06])
    assert profile.links[0].delay_s == 0.005
    assert profile.max_live(0) is None


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[0.005]", "[0.005, 0.1]", "latency_s has 2 numbers, expected 1"),
        ("[0.005]", "[-0.005]", "latency_s is -0.005"),
        ("[0.005]", "[nan]", "latency_s is nan"),
        ("latency_s", "latencies", "no key 'latencies'"),
        ("num_microbatches = 8", "", "'num_microbatches' is missing"),
        ("backward_s = [0.01, 0.02]", "backward_s = [0.01]", "backward_s has 1 numbers, expected 2"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(BadScenario, match=rf"profile.toml: .*{words}"):
        load_profile(written(tmp_path, FILE.replace(old, new)))


def test_a_schedule_comes_back_as_it_was(tmp_path: Path) -> None:
    schedule = generate_schedule(slow(3, 5, {}), (3, 2, 1))
    save_schedule(schedule, tmp_path / "schedule.csv")

    assert load_schedule(tmp_path / "schedule.csv") == schedule


def test_a_file_that_is_no_schedule_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "schedule.csv").write_text("0F0,hello\n", encoding="utf-8")

    with pytest.raises(BadInput, match=r"schedule.csv: row 1: 'hello'"):
        load_schedule(tmp_path / "schedule.csv")
    with pytest.raises(BadInput, match="cannot read schedule"):
        load_schedule(tmp_path / "nothing.csv")


def test_drawn_pipelines_lie_in_their_ranges_and_come_again() -> None:
    first, second = (random_profile(np.random.default_rng(1), 200, 8) for _ in range(2))
    times_s = [time_s for stage in first.stages for time_s in (stage.forward_s, stage.backward_s, stage.weight_s)]
    delays_s = [link.latency_s for link in first.links if link.latency_s > 0]

    assert first == second
    assert 0.0085 <= min(times_s) < max(times_s) <= 0.023
    assert 0.005 <= min(delays_s) < max(delays_s) <= 0.06
    assert len(delays_s) == pytest.approx(199 / 3, abs=25)
