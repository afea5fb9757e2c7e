"""Iteration times of jobs that become slow, with ground truth: drawn from statistics of a large cluster.

How often jobs are hit, by what, and for how long follows the study of Wu et al. (GREYHOUND, USENIX ATC 2025: Table 1,
and Figure 1, whose curves were read by eye); severities follow its cases. Times also contain effects that must not be
taken for a slowdown: warm-up, garbage collection, evaluation, saving, sequence lengths, and autocorrelated noise.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.signal import lfilter

from takeup.core.arrays import Floats, Ints
from takeup.training.stragglers.remedy.restart import LINK_MINUTES, Quantiles

Shape = Literal["step", "ladder", "burst"]
LEAST_RATIO = 1.1  # smaller changes are jitter, as in the study
SHORTEST = 12  # iterations between two changes; shorter ones need no action

COMPUTE_MINUTES: Quantiles = ((0.0, 6.0), (1.0, 12.0))
LARGE_MINUTES: Quantiles = (
    *((0.0, 11.0), (0.25, 15.0), (0.45, 25.0), (0.62, 30.0)),
    *((0.8, 50.0), (0.93, 110.0), (1.0, 590.0)),
)


class SlowdownSite(NamedTuple):
    """A site: how many of its jobs are hit by what, and the distributions of iteration time, duration and severity."""

    name: str
    num_jobs: int
    num_compute: int
    num_links: int
    num_both: int
    iteration_s: tuple[float, float]
    minutes: Quantiles
    factors: tuple[float, float]  # median and maximum for links


SITES = (
    SlowdownSite("one node", 392, 6, 0, 0, (0.4, 0.6), COMPUTE_MINUTES, (1.3, 2.0)),
    SlowdownSite("four nodes", 107, 1, 42, 0, (1.0, 2.5), LINK_MINUTES, (1.4, 4.0)),
    SlowdownSite("at scale", 27, 0, 13, 3, (1.6, 3.5), LARGE_MINUTES, (1.7, 10.0)),
)


@dataclass(frozen=True, slots=True, eq=False)
class IterationStream:
    """Iteration times, and the true level of each; `sorts` marks those that evaluate (1) or save (2)."""

    name: str
    iterations_s: Floats
    levels: Floats
    sorts: Ints
    work: Floats

    @property
    def truth(self) -> list[tuple[int, bool]]:
        """Iterations at which the job becomes slower (true) or faster."""
        return truth_of(self.levels)


def truth_of(levels: Floats) -> list[tuple[int, bool]]:
    """Iterations at which the level has changed by a tenth since the last such one."""
    changes: list[tuple[int, bool]] = []
    reference = levels[0]
    for place in (np.flatnonzero(np.diff(levels)) + 1).tolist():
        ratio = levels[place] / reference
        if max(ratio, 1 / ratio) >= LEAST_RATIO - 1e-9:
            changes.append((place, bool(ratio > 1)))
            reference = levels[place]
    return changes


def draw_stream(
    random: Generator, site: SlowdownSite, num_iterations: int = 3000, *, is_hit: bool | None = None
) -> IterationStream:
    """Draw one job of a site; whether it is hit follows the frequency of the study unless it is given."""
    num_hit = site.num_compute + site.num_links + site.num_both
    hit = bool(random.random() < num_hit / site.num_jobs) if is_hit is None else is_hit
    iteration_s = random.uniform(*site.iteration_s)
    levels = _levels(random, site, num_iterations, iteration_s) if hit else np.ones(num_iterations)
    sorts, extra = _special(random, num_iterations)
    work = np.exp(random.choice([0.0, 0.0, 0.1]) * random.standard_normal(num_iterations))
    usual = 0.5 + 0.5 * work + extra
    times_s = iteration_s * usual * levels * _noise(random, num_iterations) * _warm_up(random, num_iterations)
    return IterationStream(f"{site.name}, {'hit' if hit else 'healthy'}", times_s, levels, sorts, work)


# Slowdowns ------------------------------------------------------------------------------------------------------------


def _levels(random: Generator, site: SlowdownSite, num_iterations: int, iteration_s: float) -> Floats:
    """One to three slowdowns of any shape: separate, consecutive or overlapping."""
    levels = np.ones(num_iterations)
    first = 100
    for _ in range(int(random.integers(1, 4))):
        start = first + int(random.integers(30, max(31, num_iterations // 3)))
        if start + 2 * SHORTEST >= num_iterations:
            break
        part = _slowdown(random, site, num_iterations - start - SHORTEST, iteration_s)
        levels[start : start + len(part)] *= part
        first = start + len(part)
    if (levels == 1).all():
        middle = num_iterations // 2
        levels[middle:] = _factor(random, site)
    return levels


def _slowdown(random: Generator, site: SlowdownSite, room: int, iteration_s: float) -> Floats:
    """The levels of one slowdown, from its begin to its end."""
    shares, minutes = np.array(site.minutes).T
    lasts_s = 60 * np.exp(np.interp(random.random(), shares, np.log(minutes)))
    num = int(np.clip(lasts_s / iteration_s, SHORTEST, room))
    shape: Shape = random.choice(["step", "step", "ladder", "burst"])
    if shape == "ladder" and num >= 3 * SHORTEST:
        return _ladder(random, site, num)
    if shape == "burst" and num >= 6 * SHORTEST:
        return _burst(random, site, num)
    return np.full(num, _factor(random, site))


def _factor(random: Generator, site: SlowdownSite) -> float:
    """Slowdown factor of the iteration time; compute slowdowns are mild."""
    middle, most = site.factors
    return float(np.clip(1 + (middle - 1) * random.lognormal(0.0, 0.6), 1.15, most))


def _ladder(random: Generator, site: SlowdownSite, num: int) -> Floats:
    """Worse in two or three steps."""
    rungs = np.cumprod([_factor(random, site) ** 0.7 for _ in range(int(random.integers(2, 4)))])
    return np.repeat(np.maximum(rungs, 1.12), np.diff(np.linspace(0, num, len(rungs) + 1).astype(int)))


def _burst(random: Generator, site: SlowdownSite, num: int) -> Floats:
    factor, parts, left = _factor(random, site), list[int](), num
    while left > 3 * SHORTEST:
        parts.append(SHORTEST + int(random.integers(0, left // 3)))
        left -= parts[-1]
    parts.append(left)
    return np.repeat(np.where(np.arange(len(parts)) % 2 == 0, factor, 1.0), parts)


# What is not a slowdown -----------------------------------------------------------------------------------------------


def _noise(random: Generator, num: int) -> Floats:
    """White noise, autocorrelated noise, and garbage collection."""
    scatter = random.uniform(0.005, 0.03) * random.standard_normal(num)
    stay, width = random.uniform(0.7, 0.95), random.uniform(0.003, 0.012)
    steps = width * np.sqrt(1 - stay**2) * random.standard_normal(num)
    lingering: Floats = lfilter([1.0], [1.0, -stay], steps)
    spikes = np.where(random.random(num) < 1 / random.integers(80, 400), random.uniform(0.2, 1.2, num), 0.0)
    return np.exp(scatter + lingering + spikes)


def _special(random: Generator, num: int) -> tuple[Ints, Floats]:
    """Which iterations evaluate or save, and their extra time, in iterations."""
    sorts, extra = np.zeros(num, np.int64), np.zeros(num)
    for sort, every in ((1, random.integers(150, 500)), (2, random.integers(300, 1000))):
        places = np.arange(every, num, every)
        sorts[places] = sort
        extra[places] = random.uniform(0.5, 6.0) * np.exp(0.1 * random.standard_normal(len(places)))
    return sorts, extra


def _warm_up(random: Generator, num: int) -> Floats:
    """The first iterations compile and fill caches."""
    lasts = random.uniform(1.0, 5.0)
    factors: Floats = 1 + random.uniform(0.5, 4.0) * np.exp(-np.arange(num) / lasts)
    return factors
