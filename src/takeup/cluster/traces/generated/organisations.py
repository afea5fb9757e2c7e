"""Owners of jobs: a few organisations own most of a pool, and a long tail owns the rest."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from takeup.cluster.traces.generated.published import NUM_ORGANISATIONS, PoolProfile

TAIL_DECAY = 0.95  # share of each tail organisation relative to the one before


def draw_organisations(profile: PoolProfile, num_jobs: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """The number of the organisation of each job."""
    known = [number for number, _ in profile.organisations]
    tail = [number for number in range(NUM_ORGANISATIONS) if number not in known]
    rest = max(0.0, 1.0 - sum(share for _, share in profile.organisations))
    decay = TAIL_DECAY ** np.arange(len(tail))
    shares = np.concatenate([[share for _, share in profile.organisations], rest * decay / decay.sum()])
    return np.asarray(np.array([*known, *tail])[rng.choice(len(shares), num_jobs, p=shares / shares.sum())])
