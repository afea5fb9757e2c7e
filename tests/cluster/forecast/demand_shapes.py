"""Hourly demand of many shapes, drawn from a seed: what a forecaster must survive beside the trace it was tried on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from takeup.core.arrays import Floats

__all__ = ["SHAPES", "draw"]

NUM_SERIES = 3


def draw(shape: str, num_hours: int, seed: int) -> Floats:
    """`[hour, series]`, rounded to whole GPUs, not negative."""
    rng = np.random.default_rng([seed, sorted(SHAPES).index(shape)])
    columns = [SHAPES[shape](num_hours, rng) for _ in range(NUM_SERIES)]
    return np.maximum(np.round(np.stack(columns, axis=1)), 0.0)


def jobs(
    arrivals: Floats, mean_hours: float, rng: np.random.Generator, sizes: tuple[int, ...] = (1, 2, 4, 8)
) -> Floats:
    """GPUs of jobs that arrive at these hourly rates and run for heavy-tailed times."""
    running = np.zeros(len(arrivals) + 1)
    for hour, rate in enumerate(arrivals):
        for _ in range(rng.poisson(rate)):
            size, length = rng.choice(sizes), int(np.ceil(rng.lognormal(np.log(mean_hours), 1.0)))
            running[hour] += size
            running[min(hour + length, len(arrivals))] -= size
    return np.asarray(np.cumsum(running)[:-1])


def cycle(num_hours: int, depth: float) -> Floats:
    """A day and a week with mean one."""
    hour = np.arange(num_hours)
    workday = np.where(hour // 24 % 7 < 5, 1.0, 1.0 - depth)
    return np.asarray((1.0 + depth * np.sin(2 * np.pi * (hour - 8) / 24)) * workday)


def stationary(num_hours: int, rng: np.random.Generator) -> Floats:
    return jobs(np.full(num_hours, 2.0), 4.0, rng)


def weekly_cycle(num_hours: int, rng: np.random.Generator) -> Floats:
    return 60.0 * cycle(num_hours, 0.5) + rng.normal(0.0, 3.0, num_hours)


def weekly_jobs(num_hours: int, rng: np.random.Generator) -> Floats:
    return jobs(3.0 * cycle(num_hours, 0.6), 3.0, rng)


def level_shifts(num_hours: int, rng: np.random.Generator) -> Floats:
    moves = rng.random(num_hours) < 1 / 200
    return np.asarray(
        300.0 * np.exp(np.cumsum(moves * rng.normal(0.0, 0.5, num_hours)) * 0.5) + rng.normal(0, 4, num_hours)
    )


def falling(num_hours: int, rng: np.random.Generator) -> Floats:
    fade = np.clip(1.3 - np.arange(num_hours) / num_hours * 1.4, 0.05, 1.0)
    return jobs(4.0 * fade * cycle(num_hours, 0.3), 5.0, rng)


def sudden_fall(num_hours: int, rng: np.random.Generator) -> Floats:
    rate = np.where(np.arange(num_hours) < 0.7 * num_hours, 4.0, 0.6)
    return jobs(rate * cycle(num_hours, 0.3), 5.0, rng)


def growing(num_hours: int, rng: np.random.Generator) -> Floats:
    return jobs(np.linspace(0.3, 5.0, num_hours) * cycle(num_hours, 0.3), 5.0, rng)


def bursts(num_hours: int, rng: np.random.Generator) -> Floats:
    return 50.0 + jobs(np.where(rng.random(num_hours) < 0.03, 6.0, 0.2), 2.0, rng, sizes=(8, 16, 64))


def intermittent(num_hours: int, rng: np.random.Generator) -> Floats:
    return jobs(np.full(num_hours, 0.02), 6.0, rng, sizes=(8, 16))


def random_walk(num_hours: int, rng: np.random.Generator) -> Floats:
    return 500.0 + np.abs(np.cumsum(rng.normal(0.0, 5.0, num_hours)))


def constant(num_hours: int, rng: np.random.Generator) -> Floats:
    return np.full(num_hours, float(rng.integers(0, 100)))


SHAPES: dict[str, Callable[[int, np.random.Generator], Floats]] = {
    "bursts": bursts,
    "constant": constant,
    "falling": falling,
    "growing": growing,
    "intermittent": intermittent,
    "level_shifts": level_shifts,
    "random_walk": random_walk,
    "stationary": stationary,
    "sudden_fall": sudden_fall,
    "weekly_cycle": weekly_cycle,
    "weekly_jobs": weekly_jobs,
}
