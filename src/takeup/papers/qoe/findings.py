"""Helpers shared by the reproduction: the cell, and how a written number is compared."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from takeup.core.report import Check, Source
from takeup.streaming.chains import chain_of
from takeup.streaming.model import Cell, Chain
from takeup.streaming.policies.riccati import RiccatiSolver
from takeup.streaming.policies.solution import Solution


def reference_cell(setting: Mapping[str, Any], arrivals_per_s: float, max_users: int | None = None) -> Cell:
    """The cell of the paper at one arrival rate."""
    users = setting["max_users"] if max_users is None else max_users
    return Cell(setting["capacity_bps"], setting["bitrate_bps"], arrivals_per_s, users)


def reference_chain(setting: Mapping[str, Any], arrivals_per_s: float) -> Chain:
    """The Markov chain that a video of that cell sees."""
    return chain_of(reference_cell(setting, arrivals_per_s))


def reference_solution(setting: Mapping[str, Any], arrivals_per_s: float) -> Solution:
    """That cell, solved exactly."""
    return RiccatiSolver().solution(reference_chain(setting, arrivals_per_s))


def digit_check(
    name: str,
    ours: float,
    written: str,
    *,
    source: Source,
    unit: str = "",
    why: str = "",
    last_digits: float = 0.5,
) -> Check:
    """Compare with a number as printed: to half of its last digit, unless a tolerance is given."""
    exponent = Decimal(written).as_tuple().exponent
    assert isinstance(exponent, int)
    tolerance = last_digits * 10.0**exponent * (1 + 1e-9)
    return Check.near(name, ours, float(written), tolerance, unit=unit, source=source, why=why)
