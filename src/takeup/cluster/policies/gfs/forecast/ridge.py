"""Linear weights learnt day by day: shared by all series, and each series free to differ where its data insist.

How it works. Sums of x x' and x y per series forget slowly. Shared weights W solve the ridge problem of all sums
together; those of a series solve its own problem with deviations from W penalised. Work is spread over the day: each
hour one twenty-fourth of the series have their turn, add the rows of their last day to their sums and solve.
"""

from __future__ import annotations

import numpy as np

from takeup.core.arrays import Floats

NUM_TURNS = 24
KEEP_SHARE = 0.9995**NUM_TURNS  # of what was learnt, per day: it fades over 83 days
PENALTY = 10.0
DEVIATION_PENALTY = 300.0


class SharedRidge:
    """Predicts `num_targets` numbers for every row of features."""

    def __init__(self, num_columns: int, num_targets: int) -> None:
        self.num_columns, self.num_targets, self.turn = num_columns, num_targets, 0
        self.rows = np.zeros((0, NUM_TURNS, num_columns))
        self.goals = np.zeros((0, NUM_TURNS, num_targets))
        self.squares = np.zeros((0, num_columns, num_columns))
        self.products = np.zeros((0, num_columns, num_targets))
        self.weights = np.zeros((0, num_columns, num_targets))
        self.shared = np.zeros((num_columns, num_targets))

    def learn(self, features: Floats, outcomes: Floats) -> None:
        """One hour: `features[series, column]`, `outcomes[series, target]`; rows with a NaN teach nothing."""
        whole = np.isfinite(outcomes).all(axis=1, keepdims=True)
        self.rows[:, self.turn], self.goals[:, self.turn] = np.where(whole, features, 0), np.where(whole, outcomes, 0)
        if self.turn == 0:
            squares = self.squares.sum(axis=0) + PENALTY * np.eye(self.num_columns)
            self.shared = np.linalg.solve(squares, self.products.sum(axis=0))
        self._take_turn(slice(self.turn, None, NUM_TURNS))
        self.turn = (self.turn + 1) % NUM_TURNS

    def predict(self, features: Floats) -> Floats:
        """`[series, target]`."""
        return np.asarray((features[:, None, :] @ self.weights)[:, 0])

    def grow(self, num_series: int) -> None:
        """Make room for series that are new; they start with the shared weights."""
        num_new = num_series - len(self.weights)
        if num_new:
            self.rows, self.goals, self.squares, self.products = (
                np.concatenate([each, np.zeros((num_new, *each.shape[1:]))])
                for each in (self.rows, self.goals, self.squares, self.products)
            )
            self.weights = np.concatenate([self.weights, np.repeat(self.shared[None], num_new, axis=0)])

    def _take_turn(self, series: slice) -> None:
        rows = self.rows[series]
        across = rows.transpose(0, 2, 1)
        squares = self.squares[series] = KEEP_SHARE * self.squares[series] + across @ rows
        products = self.products[series] = KEEP_SHARE * self.products[series] + across @ self.goals[series]
        penalised = squares + DEVIATION_PENALTY * np.eye(self.num_columns)
        self.weights[series] = self.shared + np.linalg.solve(penalised, products - squares @ self.shared)
