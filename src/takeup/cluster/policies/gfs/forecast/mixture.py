"""Several experts, one answer: quantiles averaged by weights that vanish for experts that lost on recent hours."""

from __future__ import annotations

import numpy as np

from takeup.core.arrays import Floats

MEMORY_HOURS = 336
SHARPNESS = 20.0  # an expert that loses by a tenth weighs e^-2 of the best


def pinball(quantiles: Floats, outcomes: Floats, levels: Floats) -> Floats:
    """The loss that the true quantile makes smallest; levels along the last axis."""
    above = outcomes[..., None] - quantiles
    return np.asarray(np.maximum(levels * above, (levels - 1.0) * above))


class ExpertMixture:
    """Weights `[series, target, expert]` from pinball losses that are forgotten over two weeks."""

    def __init__(self, num_targets: int, num_experts: int, levels: tuple[float, ...]) -> None:
        self.levels = np.array(levels)
        self.losses = np.zeros((0, num_targets, num_experts))
        self.num_settled = np.zeros((0, num_targets, 1))

    def update(self, quantiles: Floats, outcomes: Floats) -> None:
        """Compare what each expert said, `[series, target, expert, level]`, with what came."""
        loss = pinball(quantiles, np.broadcast_to(outcomes[:, :, None], quantiles.shape[:3]), self.levels).mean(axis=3)
        settled = np.isfinite(loss).all(axis=2, keepdims=True)
        self.num_settled += settled
        rate = settled / np.clip(self.num_settled, 1.0, MEMORY_HOURS)
        self.losses += rate * (np.where(settled, loss, 0.0) - self.losses)

    def weights(self) -> Floats:
        """They sum to one over the experts."""
        best = np.maximum(self.losses.min(axis=2, keepdims=True), 1e-12)
        raw = np.exp(np.maximum(-SHARPNESS * (self.losses / best - 1.0), -700.0))
        return np.asarray(raw / raw.sum(axis=2, keepdims=True))

    def grow(self, num_series: int) -> None:
        """Add capacity for new series, whose experts start equal."""
        num_new = num_series - len(self.losses)
        self.losses = np.concatenate([self.losses, np.zeros((num_new, *self.losses.shape[1:]))])
        self.num_settled = np.concatenate([self.num_settled, np.zeros((num_new, *self.num_settled.shape[1:]))])
