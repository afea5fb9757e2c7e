"""Oracles without closed forms: the energy of one upload by search, and the best allocation by trying all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import permutations, product

from scipy.optimize import minimize_scalar

from takeup.edge.model import Instance, Radio


def plain_power(gains: list[float], bits: float, time_s: float, radio: Radio) -> float:
    """The least power that sends the bits in this time: the water level by bisection."""
    rate = bits / (radio.bandwidth_hz * time_s)

    def sent(level: float) -> float:
        return sum(max(0.0, math.log2(level * gain)) for gain in gains)

    low = high = 1 / max(gains)
    while sent(high) < rate:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sent(middle) < rate else (low, middle)
    return sum(max(0.0, high - 1 / gain) for gain in gains)


def plain_shortest(gains: list[float], bits: float, radio: Radio) -> float:
    """The upload time that takes all the power, by bisection on its logarithm."""
    low, high = -40.0, 60.0
    while high - low > 1e-13:
        middle = (low + high) / 2
        fits = bits / (radio.bandwidth_hz * 2**middle) < 900 and plain_power(gains, bits, 2**middle, radio) <= (
            radio.max_power_w
        )
        low, high = (low, middle) if fits else (middle, high)
    return float(2.0**high)


def plain_energy(gains: list[float], bits: float, limit_s: float, radio: Radio) -> float:
    """The least energy of an upload that ends by the limit, by search over its time; inf if there is none."""
    shortest_s = plain_shortest(gains, bits, radio)
    if shortest_s > limit_s:
        return math.inf

    def energy(log_time: float) -> float:
        time_s = math.exp(log_time)
        return time_s * (radio.circuit_power_w + plain_power(gains, bits, time_s, radio))

    bounds = math.log(shortest_s), math.log(limit_s)
    best = float(minimize_scalar(energy, bounds=bounds, method="bounded", options={"xatol": 1e-9}).fun)
    return min(best, energy(bounds[0]), energy(bounds[1]))


def plain_best_saving(instance: Instance) -> float:
    """The largest saving of all: every owner for every subcarrier, every order on the CPU."""
    costs: dict[tuple[int, tuple[int, ...], float], float] = {}
    best_j = 0.0
    for owners in product(range(-1, instance.num_devices), repeat=instance.num_subcarriers):
        chosen = sorted(set(owners) - {-1})
        for order in permutations(chosen):
            saving_j = 0.0
            for device, start_s in _as_late_as_possible(instance, order):
                group = tuple(each for each, owner in enumerate(owners) if owner == device)
                key = (device, group, start_s)
                if key not in costs:
                    gains = [float(instance.gain_to_noise[device, each]) for each in group]
                    bits = float(instance.bits[device])
                    costs[key] = plain_energy(gains, bits, start_s, instance.radio) if start_s > 0 else math.inf
                saving_j += float(instance.local_j[device]) - costs[key]
            best_j = max(best_j, saving_j)
    return best_j


def _as_late_as_possible(instance: Instance, order: tuple[int, ...]) -> Iterator[tuple[int, float]]:
    next_s = math.inf
    for device in reversed(order):
        next_s = min(float(instance.deadlines_s[device]), next_s) - float(instance.run_s[device])
        yield device, next_s
