"""Fit a Markov-modulated capacity with two time scales to measured throughput.

How it works. How many states the model has, and how long its moving average is, is chosen by what it is for. A single
viewer, alone on the link, is followed through the measurement from every second on, for several bitrates and start
thresholds; that needs no model (`lone_viewer`). Of all models (`link_states`) the one wins whose answers for the same
viewer come closest. Matching the autocorrelation instead prefers models with too long bad times, because it weighs good
times as much as bad ones.

Which bitrates the viewer has, how errors are weighed and what counts as an outage was settled by looking at two public
collections of logs (3G and 4G) and several variants; how well it does on links of another kind is not known.
Many models are about as good for the lone viewer and differ by several per cent for a cell. Averaging their predictions
was no better on logs not fitted to and worse on those fitted to; taking the smallest of them was worse on both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.streaming.model import Capacity, CapacityFit
from takeup.streaming.policies.link_states import link_models
from takeup.streaming.policies.lone_viewer import measured_stalls, modelled_stalls

LEAST_CHANCE = 1e-3  # rarer stalls than this are not weighed up


def fit_capacity(pieces: Sequence[Floats]) -> CapacityFit:
    """The best model of measurements, each an array of the mean rate in every second."""
    measured = [np.asarray(piece, np.float64) for piece in pieces if len(piece) > 1]
    if not measured or not np.concatenate(measured).max() > 0:
        raise BadInput("the measurement holds less than two seconds of throughput; give a longer one")
    mean_bps = float(np.concatenate(measured).mean())
    relative = [piece / mean_bps for piece in measured]
    truth = measured_stalls(relative).mean(axis=-1)
    fits = [
        CapacityFit(
            model.capacity, mean_bps, model.num_slow, model.num_fast, model.window_s, _misfit(model.capacity, truth)
        )
        for model in link_models(relative)
    ]
    return min(fits, key=lambda fit: (fit.misfit, fit.num_slow * fit.num_fast))


def _misfit(capacity: Capacity, truth: Floats) -> float:
    # Between absolute and relative errors: common stalls count more than rare ones, of which few were measured.
    errors = np.abs(modelled_stalls(capacity) - truth) / np.sqrt(np.maximum(truth, LEAST_CHANCE))
    return float(errors.sum() / np.sqrt(truth).sum())
