"""GMA: solve a linear relaxation, turn it into a matching of tasks with slots of both resources, round the matching.

Gao, Easwaran: Energy-Efficient Joint Offloading and Resource Allocation for Deadline-Constrained Tasks in Multi-Access
Edge Computing, 2025 (arXiv 2509.11162). Only its abstract was at hand: a relaxed linear program, a graph of three
sides, a matching that is rounded. The steps below are a reconstruction; no guarantee of the paper is claimed for them.

How it works. 1. Every task may choose how many subcarriers to take. A linear program chooses fractions of these choices
within the share 1 - alpha of the subcarriers and of the CPU time up to each of some deadlines. 2. The fractions are
poured into slots that hold one task each, once by falling number of subcarriers, once by falling CPU time: tasks, slots
of radio and slots of CPU are the three sides of a graph. Whatever takes one task from each slot exceeds a resource by
at most its largest task, which the withheld share pays for. 3. The matching is rounded by the local ratio: triples are
ordered so that each meets as little of the fractional matching as possible among those after it, weights are reduced
along that order, and triples are taken along it backwards. That keeps half of the value of the matching.

Our reading: there is one access point and one server. The matching does not know which subcarriers a task gets, nor
that tasks run one after the other. So matched tasks get CPU slots as late as possible, and then groups in time for
them, as far as both exist. Then the others may join, and left-over subcarriers are assigned, as in the joint policy:
the withheld share is not lost, and the answer is no worse than the bare matching.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import csr_array, vstack

from takeup.core.arrays import Floats, Ints
from takeup.core.native_output import native_output_to_stderr
from takeup.edge.energy import oracle
from takeup.edge.model import Answer, Instance
from takeup.edge.solvers.partial_plan import (
    PartialPlan,
    SiteQuantities,
    assign_free_subcarriers,
    latest_starts,
    refusal_reasons,
    reschedule,
)
from takeup.papers.edge.joint import assign_groups, grow

NOTHING = 1e-9  # a smaller fraction is rounding
NUM_DEADLINES = 16  # up to which CPU time is counted


@dataclass(frozen=True, slots=True)
class Gma:
    """Admit the matched devices first. `largest_share` is alpha; `most_matched` bounds the linear program."""

    largest_share: float = 0.25
    most_matched: int = 300
    name: str = "gma"
    ignores_cpu: bool = False

    def allocate(self, instance: Instance) -> Answer:
        """The allocation that grows from the matching."""
        site = SiteQuantities(instance)
        promising = site.promising()
        costliest = promising[np.argsort(-site.worth_j[promising], kind="stable")][: self.most_matched]
        plan = _feasible_plan(site, self._matched(site, costliest))
        grow(plan, np.setdiff1d(promising, plan.devices))
        assign_free_subcarriers(plan)
        return plan.answer(self.name, refusal_reasons(site, promising))

    def _matched(self, site: SiteQuantities, devices: Ints) -> Ints:
        """The devices of the rounded matching, those worth most first."""
        choices = _choices(site, devices, self.largest_share)
        if len(choices.devices) == 0:
            return choices.devices
        fractions = _relaxed(site.instance, choices, 1 - self.largest_share)
        some = np.flatnonzero(fractions > NOTHING)
        radio = _fill_slots(fractions[some], choices.sizes[some])
        cpu = _fill_slots(fractions[some], site.run_s[choices.devices[some]])
        triples = np.array(_slot_triples(radio, cpu))
        sides = np.stack([choices.devices[some][triples[:, 0]], triples[:, 1], triples[:, 2]], axis=1)
        worth_j = choices.worth_j[some][triples[:, 0]]
        taken = round_matching(sides, worth_j)
        matched: Ints = sides[taken[np.argsort(-worth_j[taken], kind="stable")], 0]
        return matched


def _feasible_plan(site: SiteQuantities, matched: Ints) -> PartialPlan:
    """Schedule the matched tasks on the CPU, dropping those worth least until all fit; then assign groups in time."""
    instance, limits_s = site.instance, np.full(site.instance.num_devices, np.nan)
    while len(matched):
        limits_s[matched] = latest_starts(instance.deadlines_s[matched], site.run_s[matched], instance.num_cores)
        if (limits_s[matched] > instance.releases_s[matched]).all():
            break
        matched = matched[:-1]
    plan = assign_groups(site, matched, limits_s)
    reschedule(plan)
    return plan


class _MatchingChoices(NamedTuple):
    """Devices with a number of subcarriers, and what they would be worth if they had their best ones."""

    devices: Ints
    sizes: Ints
    worth_j: Floats


def _choices(site: SiteQuantities, devices: Ints, largest_share: float) -> _MatchingChoices:
    """All that are worth something, of an allowed size within the share; one subcarrier is always within it."""
    instance = site.instance
    most = max(1, int(largest_share * instance.num_subcarriers))
    sizes = np.array(site.allowed_sizes(most), np.int64)
    ranked = -np.sort(-site.gains[devices], axis=1)[:, :most]
    windows_s = (site.latest_s - instance.releases_s)[devices]
    costs_j = oracle(ranked, instance.bits[devices], instance.radio).prefixes(windows_s).energy_j[:, sizes - 1]
    worth_j = site.worth_j[devices, None] - costs_j
    rows, columns = np.nonzero(worth_j > 0)
    return _MatchingChoices(devices[rows], sizes[columns], worth_j[rows, columns])


def _relaxed(instance: Instance, choices: _MatchingChoices, usable_share: float) -> Floats:
    """The fractions of the choices that are worth most together."""
    due_s = instance.deadlines_s[choices.devices]
    limits_s = np.unique(np.quantile(due_s, np.linspace(0, 1, NUM_DEADLINES), method="higher"))
    room = np.append(limits_s * instance.num_cores, instance.num_subcarriers) * usable_share
    cpu = np.where(due_s <= limits_s[:, None], instance.run_s[choices.devices], 0.0)
    shared = np.vstack([cpu, choices.sizes[None, :]]) / room[:, None]
    return _solved(choices.worth_j, vstack([_once(choices.devices), csr_array(shared)]))


def _once(members: Ints) -> csr_array:
    """Rows that allow each member to be chosen once."""
    _, rows = np.unique(members, return_inverse=True)
    return csr_array((np.ones(len(rows)), (rows, np.arange(len(rows)))))


def _solved(worth_j: Floats, rows: csr_array) -> Floats:
    """A corner of the polytope in which every row is at most one, where the worth is largest."""
    with native_output_to_stderr():
        found = linprog(-worth_j / worth_j.max(), A_ub=rows, b_ub=np.ones(rows.shape[0]), method="highs-ds")
    assert found.x is not None, "choosing nothing is a solution"
    solution: Floats = np.clip(found.x, 0.0, 1.0)
    return solution


def _fill_slots(fractions: Floats, sizes: npt.NDArray[np.float64] | Ints) -> list[list[tuple[int, float]]]:
    """For every choice, the slots it lies in, and how much of it. The largest are poured first; a slot holds one."""
    parts: list[list[tuple[int, float]]] = [[] for _ in fractions]
    slot, room = 0, 1.0
    for choice in np.argsort(-sizes, kind="stable").tolist():
        left = float(fractions[choice])
        while left > NOTHING:
            part = min(left, room)
            parts[choice].append((slot, part))
            left, room = left - part, room - part
            if room <= NOTHING:
                slot, room = slot + 1, 1.0
    return parts


def _slot_triples(
    radio: list[list[tuple[int, float]]], cpu: list[list[tuple[int, float]]]
) -> list[tuple[int, int, int]]:
    """Choices with a radio slot and a CPU slot that overlap when both lists are laid out on one axis."""
    return [
        (choice, radio_slot, cpu_slot)
        for choice, (first, second) in enumerate(zip(radio, cpu, strict=True))
        for radio_slot, cpu_slot in sorted(_overlapping_slots(first, second))
    ]


def _overlapping_slots(first: list[tuple[int, float]], second: list[tuple[int, float]]) -> set[tuple[int, int]]:
    ends = np.cumsum([part for _, part in first]), np.cumsum([part for _, part in second])
    moments = np.concatenate([[0.0], *ends])[:-1] + NOTHING / 2  # just after each beginning
    places = [np.minimum(np.searchsorted(end, moments), len(end) - 1) for end in ends]
    return {(first[one][0], second[other][0]) for one, other in zip(*(place.tolist() for place in places), strict=True)}


def round_matching(sides: Ints, worth_j: Floats) -> Ints:
    """Triples, one row of `sides` each, that share no entry of a column: at least half of what fractions would give.

    The fractional matching is solved again, so that it is a vertex of its polytope: only there is a good order certain.
    """
    rows = vstack([_once(sides[:, column]) for column in range(sides.shape[1])])
    fractions = _solved(worth_j, rows)
    alive = np.flatnonzero(fractions > NOTHING)
    meets = (sides[alive, None, :] == sides[None, alive, :]).any(axis=2)
    order, left = [], np.ones(len(alive), np.bool_)
    for _ in alive:
        crowd = np.where(left, meets @ (fractions[alive] * left), np.inf)
        order.append(int(np.argmin(crowd)))
        left[order[-1]] = False
    return alive[_local_ratio(order, worth_j[alive].copy(), meets)]


def _local_ratio(order: list[int], weights: Floats, meets: npt.NDArray[np.bool_]) -> Ints:
    """Each in turn takes its weight from all it meets; then, from the last on, whatever meets nothing taken so far."""
    stack = []
    for each in order:
        if weights[each] > 0:
            stack.append(each)
            weights = weights - weights[each] * meets[each]
    taken: list[int] = []
    for each in reversed(stack):
        if not meets[each, taken].any():
            taken.append(each)
    return np.array(sorted(taken), np.int64)
