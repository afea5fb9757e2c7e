"""A hundred thousand small cells at once: batched doubling and batched exponentials, in plain numpy.

How it works. Cells whose buffer grows and falls in the same states are solved together, by `doubling` and by batched
exponentials. Cells with a state in which the buffer stands still, or with a threshold of zero, go through `riccati`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.streaming.chains import ChainBatch
from takeup.streaming.model import Player
from takeup.streaming.policies.doubling import STILL_DRIFT, psi_by_doubling, split_blocks
from takeup.streaming.policies.exponential import expm_of_rates
from takeup.streaming.policies.phases import LONGEST_S
from takeup.streaming.policies.riccati import RiccatiSolver

Indices = npt.NDArray[np.intp]

CHUNK = 512  # chains whose matrices stay in the cache together


@dataclass(frozen=True, slots=True)
class Answers:
    """What viewers experience, one entry per chain; the fields are those of `Answer`."""

    startup_s: Floats
    stall_probability: Floats
    num_stalls: Floats
    stall_s: Floats
    finished_early: Floats
    blocked_share: Floats


def solve_many(batch: ChainBatch, start_s: npt.ArrayLike, resume_s: npt.ArrayLike | None = None) -> Answers:
    """The exact answers of all chains; thresholds may be one for all or one for each."""
    start = _thresholds("start_s", start_s, len(batch))
    again = start if resume_s is None else _thresholds("resume_s", resume_s, len(batch))
    answers = _unanswered(batch)
    still = (np.abs(batch.fill - 1) <= STILL_DRIFT).any(axis=1) | (again == 0) | (start == 0)
    for place in np.flatnonzero(still):
        _solve_one(batch, int(place), Player(float(start[place]), float(again[place])), answers)
    for places in _alike(batch.fill < 1, np.flatnonzero(~still)):
        found = _solve_alike(batch.take(places), start[places], None if resume_s is None else again[places])
        for item, values in zip(fields(answers)[:5], found, strict=True):
            getattr(answers, item.name)[places] = values
    return answers


def _unanswered(batch: ChainBatch) -> Answers:
    empty = {item.name: np.zeros(len(batch)) for item in fields(Answers)}
    return Answers(**empty | {"blocked_share": batch.blocked_share.copy()})


def _thresholds(name: str, seconds: npt.ArrayLike, num: int) -> Floats:
    values = np.broadcast_to(np.asarray(seconds, dtype=np.float64), (num,))
    if not ((values >= 0) & (values <= LONGEST_S)).all():
        raise BadInput(f"{name} holds values outside 0 to {LONGEST_S:g} seconds; look for nan or negative ones")
    return values


def _solve_one(batch: ChainBatch, place: int, player: Player, answers: Answers) -> None:
    answer = RiccatiSolver().solve(batch[place], player)
    for item in fields(answers):
        getattr(answers, item.name)[place] = getattr(answer, item.name).value


def _alike(falls: npt.NDArray[np.bool_], places: Indices) -> Iterator[Indices]:
    """Chunks of places whose buffers fall in the same states."""
    patterns, group = np.unique(falls[places], axis=0, return_inverse=True)
    for number in range(len(patterns)):
        members = places[group.ravel() == number]
        for begin in range(0, len(members), CHUNK):
            yield members[begin : begin + CHUNK]


def _solve_alike(batch: ChainBatch, start: Floats, again: Floats | None) -> Floats:
    """Start-up delay, stall probability, number of stalls, stall time and share finished early, one row each."""
    diagonal = np.arange(batch.fill.shape[1])
    rates = batch.generator.copy()
    rates[:, diagonal, diagonal] -= batch.end
    blocks = split_blocks(rates, batch.fill - 1)
    psi = psi_by_doubling(blocks)
    lift = np.zeros((*batch.fill.shape, len(blocks.down[0])))
    lift[:, blocks.falls], lift[:, ~blocks.falls] = np.eye(lift.shape[2]), psi
    records = blocks.down + blocks.down_up @ psi
    first = _cycle(batch, rates, lift, records, start)
    later = first if again is None else _cycle(batch, rates, lift, records, again)
    seen = batch.initial[:, None, :]
    stalls = seen @ first.law
    cycle, stall_s = later.law[:, blocks.falls], later.collected[:, blocks.falls, :1]
    per_stall = np.concatenate([np.ones_like(stall_s), stall_s], axis=2)
    summed = (stalls @ np.linalg.solve(np.eye(lift.shape[2]) - cycle, per_stall))[:, 0]
    startup = (seen @ first.collected)[:, 0]
    probability = np.minimum(stalls.sum(axis=(1, 2)), 1.0)
    return np.stack([startup[:, 0], probability, summed[:, 0], summed[:, 1], np.minimum(startup[:, 1], 1.0)])


@dataclass(frozen=True, slots=True)
class _Cycle:
    """From every state: the law of the state at the next stall; the time of the wait and the share finished in it."""

    law: Floats
    collected: Floats


def _cycle(batch: ChainBatch, rates: Floats, lift: Floats, records: Floats, threshold_s: Floats) -> _Cycle:
    num = batch.fill.shape[1]
    bordered = np.zeros((len(batch), num + 2, num + 2))
    bordered[:, :num, :num] = rates
    bordered[:, :num, num] = 1.0
    bordered[:, :num, num + 1] = batch.end
    bordered[:, :num] *= (threshold_s[:, None] / batch.fill)[:, :, None]
    waited = expm_of_rates(bordered)[:, :num]
    empties = lift @ expm_of_rates(records * threshold_s[:, None, None])
    return _Cycle(waited[:, :, :num] @ empties, waited[:, :, num:])
