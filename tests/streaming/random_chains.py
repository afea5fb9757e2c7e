"""Chains of any shape, for properties that must hold for all of them."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from takeup.streaming.model import Chain


@st.composite
def chains(draw: st.DrawFn, *, standing_still: bool = False, impatient: bool = False) -> Chain:
    """A chain of up to six states whose download ends; some of them may leave the buffer where it is."""
    num = draw(st.integers(1, 6))
    source = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rates = source.random((num, num)) * (source.random((num, num)) < 0.6)
    np.fill_diagonal(rates, 0.0)
    np.fill_diagonal(rates, -rates.sum(axis=1))
    fill = np.where(source.random(num) < 0.5, source.uniform(0.1, 0.9, num), source.uniform(1.1, 4.0, num))
    if standing_still:
        fill[source.random(num) < 0.4] = 1.0
    give_up = source.uniform(0.0, 0.2, num) if impatient else np.zeros(num)
    initial = source.dirichlet(np.ones(num))
    return Chain(rates, source.uniform(0.01, 0.2, num), fill, initial, give_up=give_up)
