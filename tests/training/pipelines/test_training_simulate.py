"""The simulated engine: operations that vary, and ranks that choose as they go."""

from __future__ import annotations

import numpy as np
import pytest

from takeup.core.seeds import Streams
from takeup.errors import BadInput
from takeup.training.pipelines.planners.adaptra import Adaptra
from takeup.training.pipelines.planners.baselines import OneFOneB
from takeup.training.pipelines.simulate import jitter, sample
from takeup.training.pipelines.timing.evaluation import timeline_of
from training.pipeline_profiles import slow


def test_without_jitter_every_run_takes_what_was_planned() -> None:
    plan = Adaptra().plan(slow(4, 12, {1: 20}))

    runs = sample(plan, Streams(1).stream("jitter"), jitter_share=0.0, num_runs=3)

    assert runs.tolist() == [plan.iteration_s] * 3
    assert timeline_of(plan.schedule, plan.profile).iteration_s == plan.iteration_s


def test_the_same_stream_gives_the_same_runs() -> None:
    plan = OneFOneB().plan(slow(3, 6, {}))

    first, second = (sample(plan, Streams(7).stream("jitter"), jitter_share=0.3, num_runs=5) for _ in range(2))

    assert first.tolist() == second.tolist()
    assert len(set(first.tolist())) == 5


def test_jitter_has_mean_one_and_the_given_spread() -> None:
    factors = jitter(np.random.default_rng(3), slow(8, 512, {}), 0.2)

    assert factors.shape == (3, 8, 512)
    assert factors.mean() == pytest.approx(1.0, abs=0.01)
    assert factors.std() == pytest.approx(0.2, abs=0.01)
    with pytest.raises(BadInput, match="the jitter is -1"):
        jitter(np.random.default_rng(3), slow(2, 2, {}), -1)
