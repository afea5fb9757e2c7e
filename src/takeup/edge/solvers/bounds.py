"""Upper bounds on any allocation, and how answers get them; for very many devices a relaxation by group sizes."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import csr_array, vstack

from takeup.core.arrays import Floats, Ints
from takeup.core.native_output import native_output_to_stderr
from takeup.edge.energy import PrefixGroups, oracle
from takeup.edge.model import Allocation, Answer, Instance, Prices, Reason
from takeup.errors import TakeupError

ROUNDING = 1e-9  # of a bound


class InvalidBound(TakeupError):
    """A plan is worth more than a bound on all plans: an error in this program; carries the instance."""

    def __init__(self, instance: Instance, worth_j: float, bound_j: float) -> None:
        super().__init__(f"a plan is worth {worth_j!r} J, more than the bound {bound_j!r} J on all plans")
        self.instance = instance


def with_bound(instance: Instance, answer: Answer, bound_j: float | None) -> Answer:
    """The answer with the smaller of its bound and this one; raises `InvalidBound` if its plan is worth more."""
    bounds_j = [each for each in (answer.bound_j, bound_j) if each is not None]
    if not bounds_j:
        return answer
    if answer.worth_j > min(bounds_j) + ROUNDING * abs(answer.worth_j) + ROUNDING * float(instance.local_j.sum()):
        raise InvalidBound(instance, answer.worth_j, min(bounds_j))
    return replace(answer, bound_j=max(answer.worth_j, min(bounds_j)))


# Very many devices: those that can save most are planned, and the bound counts all -----------------------------------

MOST_DEVICES = 2_000


def for_the_most_promising(instance: Instance, policy: str, solve: Callable[[Instance], Answer]) -> Answer:
    """The answer of `solve`; of too many devices it sees those with the most to save among similar deadlines."""
    if 0 < instance.num_devices <= MOST_DEVICES:
        return solve(instance)
    reach_j = saving_limits(instance)
    able = np.flatnonzero(reach_j > 0)
    chosen = np.sort(_spread_over_deadlines(instance, able, reach_j[able], MOST_DEVICES))
    priced = price(instance)
    reasons = np.where(reach_j > 0, np.int8(Reason.CROWDED_OUT), np.int8(Reason.NO_SAVING))
    if len(chosen) == 0:
        nothing = Allocation.local(instance)
        return Answer(policy, nothing, 0.0, reasons, priced.bound_j, prices=priced.prices)
    answer = solve(instance.only(chosen))
    reasons[chosen] = answer.reasons
    spread = answer.allocation.spread(instance, chosen)
    return with_bound(
        instance,
        replace(answer, allocation=spread, reasons=reasons, bound_j=None, prices=priced.prices),
        priced.bound_j,
    )


# A relaxation: devices choose how many subcarriers, not which, and CPU capacity is checked over time spans only -------
#
# How it works. A device that offloads with k subcarriers saves at most what its k best ones would save if the CPU
# waited until its deadline allows no more. Between a moment r and a deadline d no more than m (d - r) can be run on m
# cores, among the tasks that cannot be uploaded before r and are due by d. Every real allocation keeps these rules, so
# the best choice is worth at least as much as any of them.

MOMENTS = (0.0, 0.25, 0.5, 0.75)  # quantiles of the earliest ends of uploads
MOST_DEADLINES = 60  # in the rows about CPU time


class SizeChoices(NamedTuple):
    """Devices with a number of subcarriers each: what they add at most, and when they are uploaded at the earliest."""

    device: Ints
    size: Ints
    value_j: Floats
    uploaded_s: Floats


class ChoiceConstraints(NamedTuple):
    """Rows whose right side is one: first one for each device, then one about subcarriers, then those about CPU time.

    `spans_s` has the moment and the deadline of each row about CPU time.
    """

    rows: csr_array
    num_devices: int
    spans_s: Floats


def size_choices(instance: Instance, devices: Ints) -> SizeChoices:
    """All choices of these devices that save anything."""
    ranked = -np.sort(-instance.gain_to_noise[devices], axis=1)
    table = oracle(ranked, instance.bits[devices], instance.radio)
    windows_s = (instance.deadlines_s - instance.run_s - instance.releases_s)[devices]
    values_j = instance.worth_j[devices, None] - table.prefixes(windows_s).energy_j
    rows, columns = np.nonzero((values_j > 0) & _is_allowed(instance))
    uploaded_s = instance.releases_s[devices[rows]] + table.shortest_s[rows, columns]
    return SizeChoices(devices[rows], columns + 1, values_j[rows, columns], uploaded_s)


def _is_allowed(instance: Instance) -> npt.NDArray[np.bool_]:
    sizes = np.arange(1, instance.num_subcarriers + 1)
    return np.isin(sizes, instance.group_sizes) if instance.group_sizes else np.ones(len(sizes), np.bool_)


def choice_constraints(instance: Instance, choices: SizeChoices, moments_s: Floats) -> ChoiceConstraints:
    """The constraints on all choices together; CPU time is constrained from each of the moments on."""
    count = len(choices.device)
    devices, places = np.unique(choices.device, return_inverse=True)
    once = csr_array((np.ones(count), (places, np.arange(count))), shape=(len(devices), count))
    radio = csr_array((choices.size / instance.num_subcarriers)[None, :])
    cpu, spans_s = _cpu_rows(instance, choices, moments_s)
    return ChoiceConstraints(vstack([once, radio, csr_array(cpu)], format="csr"), len(devices), spans_s)


def quantile_moments(choices: SizeChoices) -> Floats:
    """Some of the earliest ends of uploads: what is run later is run after them."""
    return np.unique(np.quantile(choices.uploaded_s, MOMENTS, method="lower"))


def _cpu_rows(instance: Instance, choices: SizeChoices, moments_s: Floats) -> tuple[Floats, Floats]:
    """For every moment and deadline, the share of the time between them that each choice takes; and the two."""
    deadlines_s = instance.deadlines_s[choices.device]
    spans_s = np.array(list(product(moments_s.tolist(), _spread(np.unique(deadlines_s)).tolist())))
    spans_s = spans_s[spans_s[:, 1] > spans_s[:, 0]].reshape(-1, 2)
    begin_s, due_s = spans_s[:, :1], spans_s[:, 1:]
    inside = (choices.uploaded_s >= begin_s) & (deadlines_s <= due_s)
    room_s = instance.num_cores * (due_s - begin_s)
    shares = np.where(inside, instance.run_s[choices.device] / room_s, 0.0)
    says_something = shares.sum(axis=1) > 1.0  # otherwise all of them together keep it
    return shares[says_something], spans_s[says_something]


def _spread(moments_s: Floats) -> Floats:
    """At most `MOST_DEADLINES` of the moments, evenly spaced, including the last."""
    step = -(-len(moments_s) // MOST_DEADLINES)
    return moments_s[::-1][::step]


# A bound for any number of devices, and what one more subcarrier or core is worth by it -------------------------------
#
# How it works. That relaxation is solved as a linear program for the devices that could add most. Its dual values are
# prices. The bound adds the profit of every device at these prices; for devices outside the program an overestimate is
# enough. Prices plus profits are at least the worth of any allocation, whatever the prices are.

MOST_PRICED = 12_000  # choices in the program
NUM_DEADLINES = 24  # about equal ones, from each of which some devices are taken
NUM_ROUNDS = 4  # in which devices with a positive profit join the program
CHUNK = 50_000  # devices whose reach is computed at once


class PricedBound(NamedTuple):
    """A bound, and the worth of one more subcarrier and one more core by it."""

    bound_j: float
    prices: Prices


def price(instance: Instance, is_over: Callable[[], bool] = lambda: False) -> PricedBound:
    """The bound of the priced problem; the worth of a resource is how much the bound rises with one more of it.

    `is_over` ends the search for more devices that belong into the program; any set of devices makes a bound.
    """
    reach_j = saving_limits(instance)
    able = np.flatnonzero(reach_j > 0)
    most = max(4, MOST_PRICED // instance.num_subcarriers)
    inside = able if len(able) <= most else _spread_over_deadlines(instance, able, reach_j[able], most // 2)
    for _ in range(NUM_ROUNDS if len(inside) < len(able) else 0):
        if is_over():
            break
        outside = np.setdiff1d(able, inside)
        gains_j = _program(instance, reach_j, inside, outside).gains_j
        gaining = gains_j > 0
        inside = np.concatenate(
            [inside, _spread_over_deadlines(instance, outside[gaining], gains_j[gaining], most // 6)]
        )
    outside = np.setdiff1d(able, inside)
    found = _program(instance, reach_j, inside, outside)
    one_more_core = replace(instance, num_cores=instance.num_cores + 1)
    more_cores_j = _program(one_more_core, reach_j, inside, outside).bound_j
    more_radio_j = _program(instance, reach_j, inside, outside, extra_subcarriers=1).bound_j
    radio_j = min(found.prices.subcarrier_j, max(0.0, more_radio_j - found.bound_j))
    core_j = min(found.prices.core_j, max(0.0, more_cores_j - found.bound_j))
    return PricedBound(found.bound_j, Prices(radio_j, core_j))


def _spread_over_deadlines(instance: Instance, devices: Ints, scores_j: Floats, count: int) -> Ints:
    """About `count` of the devices: those with the largest scores among devices of similar deadline."""
    ranked = np.argsort(instance.deadlines_s[devices], kind="stable")
    parts = np.array_split(ranked, max(1, min(NUM_DEADLINES, count)))
    best = [part[np.argsort(-scores_j[part], kind="stable")][: max(1, count // len(parts))] for part in parts]
    return devices[np.concatenate(best)]


class _ProgramSolution(NamedTuple):
    """The bound, and what devices outside the program could gain at its prices.

    With the same prices, one more of a resource raises the bound by its price: so never by more.
    """

    bound_j: float
    gains_j: Floats
    prices: Prices


def _program(
    instance: Instance, reach_j: Floats, inside: Ints, outside: Ints, extra_subcarriers: int = 0
) -> _ProgramSolution:
    choices = size_choices(instance, np.sort(inside))
    if len(choices.device) == 0:
        return _ProgramSolution(float(reach_j[outside].sum()), reach_j[outside], Prices(0.0, 0.0))
    # from the first release on, so that rows about CPU time hold for those outside as well
    moments_s = quantile_moments(choices) if len(outside) == 0 else instance.releases_s.min(keepdims=True)
    rules = choice_constraints(instance, choices, moments_s)
    room = np.ones(rules.rows.shape[0])
    room[rules.num_devices] += extra_subcarriers / instance.num_subcarriers
    scale_j = float(choices.value_j.max())
    with native_output_to_stderr():
        found = linprog(-choices.value_j / scale_j, A_ub=rules.rows, b_ub=room, method="highs")
    prices_j = np.maximum(0.0, -found.ineqlin.marginals[rules.num_devices :]) * scale_j
    prices = Prices(float(prices_j[0]) / instance.num_subcarriers, float(prices_j[1:].sum()) / instance.num_cores)
    charges_j = prices.subcarrier_j + _charges(instance, rules, prices_j[1:], outside)
    gains_j = np.maximum(0.0, reach_j[outside] - charges_j)
    rates_j = np.concatenate([np.zeros(rules.num_devices), prices_j])
    profits_j = np.zeros(instance.num_devices)  # of the best choice of every device
    np.maximum.at(profits_j, choices.device, choices.value_j - rules.rows.T @ rates_j)
    bound_j = float((rates_j * room).sum() + profits_j.sum() + gains_j.sum()) * (1 + ROUNDING)
    return _ProgramSolution(bound_j, gains_j, prices)


def _charges(instance: Instance, rules: ChoiceConstraints, prices_j: Floats, devices: Ints) -> Floats:
    """What the CPU time of devices costs that are in every row with a deadline not before theirs."""
    begin_s, due_s = rules.spans_s.T
    order = np.argsort(due_s)
    rates = (prices_j / (instance.num_cores * (due_s - begin_s)))[order]
    from_here = np.append(np.cumsum(rates[::-1])[::-1], 0.0)
    first = np.searchsorted(due_s[order], instance.deadlines_s[devices], side="left")
    charges_j: Floats = instance.run_s[devices] * from_here[first]
    return charges_j


def saving_limits(instance: Instance) -> Floats:
    """More than any device can add, in joules: as if it had all bandwidth at its best gain, until its deadline.

    Not above zero for devices that cannot save anything.
    """
    parts = [
        _saving_limits(instance, np.arange(begin, min(begin + CHUNK, instance.num_devices)))
        for begin in range(0, instance.num_devices, CHUNK)
    ]
    return np.concatenate([np.zeros(0), *parts])


def _saving_limits(instance: Instance, devices: Ints) -> Floats:
    count = instance.num_subcarriers
    radio, bits = instance.radio, instance.bits[devices]
    windows_s = (instance.deadlines_s - instance.run_s - instance.releases_s)[devices]
    best = instance.gain_to_noise[devices].max(axis=1, keepdims=True)
    if radio.modulations:
        costs_j = oracle(np.repeat(best, count, axis=1), bits, radio).whole(windows_s).energy_j
    else:
        wide = replace(radio, bandwidth_hz=radio.bandwidth_hz * count)
        costs_j = PrefixGroups(best / count, bits, wide).whole(windows_s).energy_j
    reach_j: Floats = (instance.worth_j)[devices] - costs_j
    return reach_j
