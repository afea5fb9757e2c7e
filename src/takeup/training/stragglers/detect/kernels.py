"""Numba kernels: posterior over run lengths, and the change-point detector."""

import math
from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.core.compiled import inner, kernel

# Posterior over run lengths: how long times have been drawn from the same normal distribution, updated per point ------
#
# Bayesian online change-point detection (Adams and MacKay, 2007) with a normal-inverse-gamma prior. Every run length
# carries its posterior parameters; improbable run lengths are pruned, so a point costs little.

INCREDIBLE = -18.0  # pruning threshold: log probability relative to the likeliest


class RunPrior(NamedTuple):
    """Prior of a new run: its mean, worth `weight` points; shape and rate of its precision; the hazard."""

    mean: float
    weight: float
    shape: float
    rate: float
    hazard: float


class RunLengths(NamedTuple):
    """Retained run lengths: `size[0]` of them, each with its number of points, parameters and log probability."""

    size: Ints
    length: Ints
    mean: Floats
    rate: Floats
    log_share: Floats


def initial_run_lengths(most: int) -> RunLengths:
    """Initial state before the first point, with capacity for `most` run lengths."""
    return RunLengths(np.zeros(1, np.int64), np.zeros(most, np.int64), *np.zeros((3, most)))


@inner
def _log_density(prior: RunPrior, length: int, mean: float, rate: float, value: float) -> float:
    """Predictive log density of the next point under this run's parameters: Student's t."""
    weight, shape = prior.weight + length, prior.shape + 0.5 * length
    spread = 2.0 * rate * (weight + 1.0) / weight
    off = value - mean
    return _front(shape) - 0.5 * math.log(math.pi * spread) - (shape + 0.5) * math.log1p(off * off / spread)


@inner
def _front(shape: float) -> float:
    """The logarithm of Gamma(shape + 1/2) / Gamma(shape), to eight digits: a series is used for all but short runs."""
    if shape < 10.0:
        return math.lgamma(shape + 0.5) - math.lgamma(shape)
    return 0.5 * math.log(shape) - 1 / (8 * shape) + 1 / (192 * shape**3) - 1 / (640 * shape**5)


@kernel
def update_run_lengths(prior: RunPrior, runs: RunLengths, value: float) -> None:
    """Update with one more point."""
    if runs.size[0] == 0:
        runs.size[0] = 1
        runs.length[0], runs.mean[0], runs.rate[0], runs.log_share[0] = 0, prior.mean, prior.rate, 0.0
    number = runs.size[0]
    fresh = -np.inf
    best = -np.inf
    stay = math.log1p(-prior.hazard)
    for each in range(number):
        seen = runs.log_share[each] + _log_density(prior, runs.length[each], runs.mean[each], runs.rate[each], value)
        fresh = max(fresh, seen) + math.log1p(math.exp(-abs(fresh - seen))) if fresh > -np.inf else seen
        runs.log_share[each] = seen + stay
        best = max(best, seen + stay)
        _learn(prior, runs, each, value)
    fresh += math.log(prior.hazard)
    _keep(prior, runs, fresh, max(best, fresh))


@inner
def _learn(prior: RunPrior, runs: RunLengths, each: int, value: float) -> None:
    weight = prior.weight + runs.length[each]
    off = value - runs.mean[each]
    runs.rate[each] += weight * off * off / (2.0 * (weight + 1.0))
    runs.mean[each] += off / (weight + 1.0)
    runs.length[each] += 1


@inner
def _keep(prior: RunPrior, runs: RunLengths, fresh: float, best: float) -> None:
    """Prune improbable runs, and the least likely one if the buffer is full; then begin a new run."""
    kept = 0
    for each in range(runs.size[0]):
        if runs.log_share[each] > best + INCREDIBLE:
            runs.length[kept], runs.mean[kept] = runs.length[each], runs.mean[each]
            runs.rate[kept], runs.log_share[kept] = runs.rate[each], runs.log_share[each]
            kept += 1
    if kept == len(runs.length):
        kept = _drop_least(runs, kept)
    runs.length[kept], runs.mean[kept], runs.rate[kept] = 0, prior.mean, prior.rate
    runs.log_share[kept] = fresh
    runs.size[0] = kept + 1
    total = 0.0
    for each in range(runs.size[0]):
        total += math.exp(runs.log_share[each] - best)
    for each in range(runs.size[0]):
        runs.log_share[each] -= best + math.log(total)


@inner
def _drop_least(runs: RunLengths, number: int) -> int:
    """Remove the least likely run, keeping the order of the others."""
    least = 0
    for each in range(number):
        if runs.log_share[each] < runs.log_share[least]:
            least = each
    for each in range(least, number - 1):
        runs.length[each], runs.mean[each] = runs.length[each + 1], runs.mean[each + 1]
        runs.rate[each], runs.log_share[each] = runs.rate[each + 1], runs.log_share[each + 1]
    return number - 1


# The whole detector as one kernel: points in, changes out -------------------------------------------------------------
#
# A change is declared when the run lengths agree on where the current run began, the run is a few points long, and its
# median is off the current level by more than a tenth and by more than noise explains. The current level stays as it
# was when it was declared: drops that are too small individually add up. A CUSUM detects slow drift.

NUM_RECENT = 256
NUM_LATEST = 6
NUM_FOR_NOISE = 160
MOST_NEEDED = 10
RETURNED = 0.25  # distance from the former level, relative to the step, that counts as a return
SMALLEST_NOISE = 0.005  # of the logarithm; a floor below any real noise
MOST_CHANCE_LOG = -14.0  # of the chance that as many points in sequence are off without a change
LEAST_FOR_STAY = 96  # points before their autocorrelation is estimated
LEAST_STAY, MOST_STAY = 0.4, 0.9


LEAST_RATIO = 1.1  # minimum change of the level
LEAST_RATIO_LOG = math.log(LEAST_RATIO)
LEAST_POINTS, POINTS_BY_NOISE = 5, 150.0  # minimum number of points since the change, and the same per unit of noise
LEAST_SHARE = 0.5  # minimum probability within two points of the likeliest begin
NOISE_WIDTHS = 5.0  # minimum change in standard errors of a median
RETURN_BONUS = 1.5  # reduction of that on a return to the former level
NUM_SETTLING = 12  # points before the first decision
NUM_LEVEL = 48  # points used to estimate a level
HAZARD = 1 / 250
CREEP_DRIFT, CREEP_LIMIT = 0.04, 0.6  # CUSUM: allowance per point, and limit
FEW_SHARE = 0.2  # share of the points since that may be outliers
AGREEMENT = 0.5  # minimum shift of all others, relative to that of the median


class DetectorState(NamedTuple):
    """Detector state: recent points (ring buffer), the current level, the noise, two cumulative sums.

    `stay` is the autocorrelation of the noise from one point to the next, where there clearly is any, otherwise 0.
    """

    recent: Floats
    scratch: Floats
    num_seen: Ints
    began: Ints
    level: Floats
    noise: Floats
    stay: Floats
    up: Floats
    down: Floats
    former: Floats  # the previous level


class ChangeBuffer(NamedTuple):
    """Changes in the order of their declaration: where they began, when they were declared, levels before and after."""

    size: Ints
    began: Ints
    declared: Ints
    before: Floats
    after: Floats


def initial_state() -> DetectorState:
    """Initial state, before the first point."""
    counters = np.zeros((2, 1), np.int64)
    level, noise, stay, up, down = np.zeros((5, 1))
    recent, scratch = np.zeros((2, NUM_RECENT))
    return DetectorState(recent, scratch, counters[0], counters[1], level, noise, stay, up, down, np.full(1, np.nan))


@kernel
def detect_changes(memory: DetectorState, runs: RunLengths, values: Floats, found: ChangeBuffer) -> None:
    """Process all points, logarithms of times; the result buffer has room for a change at each."""
    for value in values:
        now = memory.num_seen[0]
        memory.recent[now % NUM_RECENT] = value
        memory.num_seen[0] = now + 1
        _settle(memory)
        update_run_lengths(RunPrior(memory.level[0], 0.1, 2.0, 2.0 * memory.noise[0] ** 2, HAZARD), runs, value)
        if now + 1 - memory.began[0] > NUM_SETTLING:
            _test_for_change(memory, runs, value, found)


@inner
def _settle(memory: DetectorState) -> None:
    """Estimate the level from the first points of a segment; the noise is kept up to date."""
    since = memory.num_seen[0] - memory.began[0]
    if since <= NUM_SETTLING:
        memory.level[0] = _median(memory, since)
    if since <= NUM_SETTLING or since % 16 == 0:
        memory.noise[0] = _noise(memory, min(memory.num_seen[0], NUM_FOR_NOISE))
    if since % 16 == 0 and memory.num_seen[0] >= LEAST_FOR_STAY:
        memory.stay[0] = _stay(memory, min(memory.num_seen[0], NUM_RECENT))


@inner
def _median(memory: DetectorState, number: int) -> float:
    """Median of the last `number` points."""
    for each in range(number):
        memory.scratch[each] = memory.recent[(memory.num_seen[0] - 1 - each) % NUM_RECENT]
    return _middle(memory.scratch[:number])


@inner
def _middle(values: Floats) -> float:
    values.sort()
    half = len(values) // 2
    return float(values[half] if len(values) % 2 else 0.5 * (values[half - 1] + values[half]))


@inner
def _noise(memory: DetectorState, number: int) -> float:
    """Standard deviation of single points, from the median of their differences: level changes do not count."""
    return 0.05 if number < 3 else max(SMALLEST_NOISE, 1.048 * _difference(memory, number, 1))


@inner
def _stay(memory: DetectorState, number: int) -> float:
    """Autocorrelation of an autoregressive process with such differences over one and over four points.

    Their variances are as 1 to (1 + stay) (1 + stay ** 2). Levels, drops and creep do not count.
    """
    near, far = _difference(memory, number, 1), _difference(memory, number, 4)
    ratio = (far / max(near, SMALLEST_NOISE)) ** 2
    low, high = 0.0, MOST_STAY
    for _ in range(12):
        stay = 0.5 * (low + high)
        if (1.0 + stay) * (1.0 + stay * stay) < ratio:
            low = stay
        else:
            high = stay
    return low if low > LEAST_STAY else 0.0


@inner
def _difference(memory: DetectorState, number: int, lag: int) -> float:
    """Median absolute difference of points that are `lag` apart, among the last `number`."""
    for each in range(number - lag):
        last = memory.num_seen[0] - 1 - each
        memory.scratch[each] = abs(memory.recent[last % NUM_RECENT] - memory.recent[(last - lag) % NUM_RECENT])
    return _middle(memory.scratch[: number - lag])


@inner
def _error(stay: float, noise: float, number: int, num_before: int) -> tuple[float, float]:
    """Standard error of a median of `number` points, and how much of the point before them is still in their mean.

    `noise` is that of differences. For autocorrelated noise, the error is that of a mean given the point before.
    """
    if stay == 0.0:
        return 1.25 * noise * math.sqrt(1.0 / number + 1.0 / num_before), 0.0
    step = noise * math.sqrt(1.0 + stay)  # standard deviation of what is new in a point
    total = remains = 0.0
    for _ in range(number):
        remains = stay * (remains + 1.0)  # stay + ... + stay ** (each + 1)
        total += (remains / stay) ** 2
    return 1.15 * step * math.sqrt(total) / number, remains / number


@inner
def _test_for_change(memory: DetectorState, runs: RunLengths, value: float, found: ChangeBuffer) -> None:
    length = _sure_length(runs)
    since = memory.num_seen[0] - memory.began[0]
    needed = max(LEAST_POINTS, min(int(POINTS_BY_NOISE * memory.noise[0]), MOST_NEEDED))
    needed = MOST_NEEDED if memory.stay[0] > 0.0 else needed
    if needed <= length < min(since, NUM_RECENT) and _is_off(memory, length):
        _declare(memory, length, found)
        return
    if since <= NUM_LEVEL and abs(_median(memory, NUM_LATEST) - memory.level[0]) < 0.5 * LEAST_RATIO_LOG:
        memory.level[0] = _median(memory, since)  # no change is apparent, so use more points
    _cusum(memory, value, found)


@inner
def _sure_length(runs: RunLengths) -> int:
    """The likeliest run length, or zero if its neighbourhood does not hold enough of the probability."""
    best = 0
    for each in range(runs.size[0]):
        if runs.log_share[each] > runs.log_share[best]:
            best = each
    share = 0.0
    for each in range(runs.size[0]):
        if abs(runs.length[each] - runs.length[best]) <= 2:
            share += math.exp(runs.log_share[each])
    return runs.length[best] if share >= LEAST_SHARE else 0


@inner
def _is_off(memory: DetectorState, length: int) -> bool:
    """Whether the median of the latest points is off, and not because of a few outliers."""
    number = min(length, 32)
    num_before = max(1, min(memory.num_seen[0] - memory.began[0] - number, NUM_LEVEL))
    error, remains = _error(memory.stay[0], memory.noise[0], number, num_before)
    before = memory.recent[(memory.num_seen[0] - 1 - number) % NUM_RECENT] - memory.level[0]
    off = _median(memory, number) - memory.level[0] - remains * before
    back = abs(memory.level[0] + off - memory.former[0]) < RETURNED * abs(off)
    widths = NOISE_WIDTHS - (RETURN_BONUS if back else 0.0)
    if abs(off) <= max(LEAST_RATIO_LOG, widths * error):
        return False
    few = int(FEW_SHARE * number)
    nearest = memory.scratch[few] if off > 0 else memory.scratch[number - 1 - few]  # sorted by _median
    if (nearest - memory.level[0]) / off <= AGREEMENT:
        return False
    return off < 0 or _chance_log(memory, number, few, AGREEMENT * off) <= MOST_CHANCE_LOG


@inner
def _chance_log(memory: DetectorState, number: int, few: int, off: float) -> float:
    """Logarithm of the chance that all but a few of the latest points are this much above the level.

    It follows from how many of the points before them are, if these are enough; without their later half, which may
    creep already. Where single points often are, as on a busy host, noise alone does not tell how often several are.
    """
    num_seen = min(memory.num_seen[0] - memory.began[0], NUM_RECENT)
    num_before = (num_seen - number) // 2
    num_off = 0
    for each in range(num_seen - num_before, num_seen):
        num_off += memory.recent[(memory.num_seen[0] - 1 - each) % NUM_RECENT] > memory.level[0] + off
    if num_off == 0 or num_before < NUM_LEVEL // 2:
        return -np.inf
    choices = math.lgamma(number + 1.0) - math.lgamma(few + 1.0) - math.lgamma(number - few + 1.0)
    return choices + (number - few) * math.log(num_off / num_before)


@inner
def _declare(memory: DetectorState, length: int, found: ChangeBuffer) -> None:
    """Record the change, and begin a segment where it began."""
    place = found.size[0]
    found.declared[place] = memory.num_seen[0] - 1
    found.began[place] = memory.num_seen[0] - length
    found.before[place] = memory.level[0]
    memory.former[0] = memory.level[0]
    memory.level[0] = _median(memory, min(length, 32))
    found.after[place] = memory.level[0]
    found.size[0] = place + 1
    memory.began[0] = memory.num_seen[0] - length
    memory.up[0], memory.down[0] = 0.0, 0.0


@inner
def _cusum(memory: DetectorState, value: float, found: ChangeBuffer) -> None:
    """CUSUM in both directions; a single point counts at most three times the noise or the drift."""
    most = 3.0 * max(memory.noise[0], CREEP_DRIFT)
    off = min(max(value - memory.level[0], -most), most)
    drift = CREEP_DRIFT * (1.0 + memory.stay[0])
    memory.up[0] = max(0.0, memory.up[0] + off - drift)
    memory.down[0] = max(0.0, memory.down[0] - off - drift)
    if max(memory.up[0], memory.down[0]) > CREEP_LIMIT:
        length = min(16, memory.num_seen[0] - memory.began[0] - 1)
        if _is_off(memory, length):
            _declare(memory, length, found)
