"""Flows that share a cell: their number by kind, arrivals and departures, and what an arriving video finds.

How it works. Every user in the cell gets the same share of it. With n users of which n_l are of kind l, the cell works
with the relative efficiency g(n) (1 for plain sharing), and one flow of kind l, which alone would need 1/mu_l seconds,

    arrives at rate lambda_l while n < K,         one of n_l leaves at rate n_l mu_l g(n) / n.

Seen by one tagged video the state is the number of *others* of each kind, at most K - 1, and n counts the tagged one
too. For constant capacity the numbers in the cell have a product form, whatever the mix of kinds:

    P(n_1 .. n_m)  ~  n! / (n_1! .. n_m!)  *  prod_l (lambda_l / mu_l)^n_l  /  prod_{k <= n} g(k)

Poisson arrivals see this law (arrivals at n = K are blocked), so an accepted video finds it conditioned on n < K.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats
from takeup.errors import BadInput

Counts = npt.NDArray[np.int64]

MAX_STATES = 20_000


@dataclass(frozen=True, slots=True)
class Flow:
    """One kind of flow: its arrival rate, and the rate at which it would finish if it had the cell to itself."""

    arrivals_per_s: float
    alone_per_s: float


def population(num_kinds: int, most: int) -> Counts:
    """All ways of having at most `most` flows of `num_kinds` kinds, one row each, ordered by their total."""
    if num_kinds == 1:
        return np.arange(most + 1, dtype=np.int64)[:, None]
    if (most + 1) ** num_kinds > 50 * MAX_STATES:
        raise BadInput(f"{num_kinds} kinds of up to {most} users make too many states; give fewer kinds or max_users")
    rows = (row for row in product(range(most + 1), repeat=num_kinds) if sum(row) <= most)
    return np.array(sorted(rows, key=lambda row: (sum(row), row)), dtype=np.int64)


def flow_generator(counts: Counts, flows: Sequence[Flow], efficiency: Floats, tagged: int) -> Floats:
    """Rates between the rows of `counts`, where `tagged` (0 or 1) more users share the cell with them."""
    users = counts.sum(axis=1) + tagged
    pace = np.where(users > 0, efficiency[np.maximum(users, 1) - 1] / np.maximum(users, 1), 0.0)
    base = int(counts.max(initial=0)) + 2
    weights = base ** np.arange(counts.shape[1])
    codes = counts @ weights
    order = np.argsort(codes)
    rates = np.zeros((len(counts), len(counts)))
    for kind, flow in enumerate(flows):
        room = np.flatnonzero(users < users.max())
        more = order[np.searchsorted(codes, codes[room] + weights[kind], sorter=order)]
        rates[room, more] += flow.arrivals_per_s
        rates[more, room] += counts[more, kind] * flow.alone_per_s * pace[more]
    np.fill_diagonal(rates, -rates.sum(axis=1))
    return rates


def arrival_law(counts: Counts, flows: Sequence[Flow], efficiency: Floats) -> tuple[Floats, float]:
    """The law of the others that an accepted video finds, and the share of arrivals that are blocked.

    `counts` holds every way of having at most K flows; the law covers those with fewer, in the same order.
    """
    total = counts.sum(axis=1)
    loads = np.array([math.log(flow.arrivals_per_s) - math.log(flow.alone_per_s) for flow in flows])
    log_efficiency = np.concatenate(([0.0], np.cumsum(np.log(efficiency))))
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, total.max(initial=0) + 1)))))
    orders = log_factorial[total] - log_factorial[counts].sum(axis=1)
    log_weight = orders + counts @ loads - log_efficiency[total]
    weight = np.exp(log_weight - log_weight.max())
    return law_at_admission(weight / weight.sum(), total)


def law_at_admission(law: Floats, total: Counts) -> tuple[Floats, float]:
    """Condition a law of all states on admission, and return the blocking probability."""
    has_room = total < total.max()
    accepted = law[has_room]
    if not accepted.sum() > 0:
        raise BadInput("the load is so high that practically no video is accepted; lower arrivals_per_s")
    return accepted / accepted.sum(), float(law[~has_room].sum())
