"""Data model of streaming: a cell shared by videos, a player with thresholds, the Markov chain of both, an answer.

Content is measured in seconds of video throughout: a buffer of 5 s, a fill rate of 1.2 seconds of video per second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.report import Reported
from takeup.errors import BadInput, UnknownName


@dataclass(frozen=True, slots=True)
class Views:
    """One class of videos by length: its share of all arrivals, and its mean length (exponential within the class)."""

    share: float
    mean_s: float


@dataclass(frozen=True, slots=True)
class Capacity:
    """A cell whose throughput changes: levels relative to the mean, and the rates per second of going between them."""

    levels: Floats
    generator: Floats

    def __post_init__(self) -> None:
        n = len(self.levels)
        if n == 0 or self.generator.shape != (n, n):
            raise BadInput(f"{n} levels of capacity have rates of shape {self.generator.shape}; make them {n} x {n}")
        if not (np.isfinite(self.levels).all() and np.isfinite(self.generator).all()):
            raise BadInput("levels of capacity and their rates must be finite; look for nan in the log they came from")
        if self.levels.min() < 0 or self.levels.max() == 0:
            raise BadInput("levels of capacity must be zero or more, and one of them above zero")
        if not _are_rates(self.generator):
            raise BadInput("the rates between levels must be zero or more, with rows that sum to zero on the diagonal")


def _are_rates(generator: Floats) -> bool:
    """Zero or more off the diagonal, with rows that sum to zero."""
    off_diagonal = generator - np.diag(np.diag(generator))
    scale = max(1.0, float(np.abs(generator).max()))
    return bool(off_diagonal.min() >= 0 and np.abs(generator.sum(axis=1)).max() <= 1e-9 * scale)


@dataclass(frozen=True, slots=True)
class CapacityFit(Reported):
    """A fitted capacity and what was chosen for it; `misfit` is its relative error for a lone viewer.

    A link with outages has one state more than `num_slow` times `num_fast`. `pieces` are the measurements themselves,
    the rate of every second relative to the mean, by which predictions are checked.
    """

    capacity: Capacity
    mean_bps: float
    num_slow: int
    num_fast: int
    window_s: int
    misfit: float
    pieces: tuple[Floats, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Cell:
    """A radio cell or link that all its videos share equally, and the traffic that arrives at it.

    Videos arrive at random (Poisson), at most `max_users` download at a time, further ones are blocked. A video leaves
    when it is *downloaded*. `opportunistic` serves the user with the best channel, which makes sharing more efficient.
    `variation` is the coefficient of variation of the size of a second of video.
    """

    capacity_bps: float
    bitrate_bps: float
    arrivals_per_s: float
    max_users: int
    views: tuple[Views, ...] = (Views(1.0, 60.0),)
    opportunistic: bool = False
    capacity: Capacity | None = None
    variation: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.variation < math.inf:
            raise BadInput(f"variation is {self.variation}; give a finite coefficient of variation, zero or more")
        for name in ("capacity_bps", "bitrate_bps", "arrivals_per_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise BadInput(f"{name} is {value}; give a finite number above zero")
        if self.max_users < 1:
            raise BadInput(f"max_users is {self.max_users}; a cell serves at least one user")
        if not self.views or any(v.share <= 0 or not 0 < v.mean_s < math.inf for v in self.views):
            raise BadInput("every class of views needs a share above zero and a finite mean length above zero seconds")
        if abs(sum(v.share for v in self.views) - 1) > 1e-9:
            raise BadInput(f"the shares of the views add up to {sum(v.share for v in self.views):g}; make it 1")

    @property
    def speed(self) -> float:
        """Seconds of video per second that the whole cell can deliver."""
        return self.capacity_bps / self.bitrate_bps

    @property
    def mean_video_s(self) -> float:
        return sum(v.share * v.mean_s for v in self.views)

    @property
    def load(self) -> float:
        """Offered content over capacity; above 1 is allowed, because admission limits the users."""
        return self.arrivals_per_s * self.mean_video_s / self.speed


RULES = ("throughput", "bola", "bba", "dynamic")  # that choose a bitrate for the next segment


@dataclass(frozen=True, slots=True)
class Player:
    """When playback starts, and when it resumes after a stall: seconds of video in the buffer.

    Real players download whole segments, pause while their buffer is above a goal (`top_goal_s` at the highest bitrate,
    if that differs), choose a bitrate by a `rule`, pause playback with `pause_s` still in the buffer, and repeat a
    request that takes longer than `timeout_s`. Equations know the goal only; a replay of a log knows all.
    """

    start_s: float
    resume_s: float | None = None
    goal_s: float = math.inf
    segment_s: float = 0.0
    rule: str = "throughput"
    top_goal_s: float | None = None
    pause_s: float = 0.0
    timeout_s: float = math.inf

    def __post_init__(self) -> None:
        for name, value in (("start_s", self.start_s), ("resume_s", self.again_s)):
            if not (math.isfinite(value) and value >= 0):
                raise BadInput(f"{name} is {value}; give a finite number of seconds, zero or more")
        if not (min(self.goal_s, self.full_s) > 0 and 0 <= self.segment_s < math.inf):
            raise BadInput(f"goal_s is {self.goal_s}, segment_s {self.segment_s}; give seconds above zero")
        if not (0 <= self.pause_s < math.inf and self.timeout_s > 0):
            raise BadInput(f"pause_s is {self.pause_s}, timeout_s {self.timeout_s}; give zero or more, and above zero")
        if self.rule not in RULES:
            raise UnknownName("bitrate rule", self.rule, RULES)

    def check_fluid(self) -> None:
        """Refuse whole segments, where they would be ignored."""
        if self.segment_s > 0:
            raise BadInput("whole segments are played by the replay of a log only; leave segment_s out here")

    def check_unlimited(self) -> None:
        """Refuse a buffer goal or whole segments, where they would be ignored."""
        self.check_fluid()
        if self.goal_s < math.inf:
            raise BadInput("a buffer goal is known to equations, 'tagged' and the replay of a log; leave it out here")

    @property
    def again_s(self) -> float:
        """The resume threshold, which is the start threshold unless it was given."""
        return self.start_s if self.resume_s is None else self.resume_s

    @property
    def full_s(self) -> float:
        """The buffer goal at the highest bitrate."""
        return self.goal_s if self.top_goal_s is None else self.top_goal_s


@dataclass(frozen=True, slots=True)
class Chain:
    """What one video sees while it downloads: a Markov chain of states with a fill rate each.

    `generator` are the rates between states (rows sum to zero), `end` the rate at which the download ends in a state,
    `fill` the seconds of video that arrive per second, `drain` those that are played, `variance` the variance per
    second of the difference, `initial` the law of the state that an accepted video finds. `blocked_share` of the
    arrivals are turned away. `give_up` is the rate at which viewers leave while they wait, at the start or in a stall.
    """

    generator: Floats
    end: Floats
    fill: Floats
    initial: Floats
    drain: Floats = field(default_factory=lambda: np.empty(0))  # 1 in every state if absent
    variance: Floats = field(default_factory=lambda: np.empty(0))  # 0
    blocked_share: float = 0.0
    give_up: Floats = field(default_factory=lambda: np.empty(0))  # 0

    def __post_init__(self) -> None:
        n = len(self.fill)
        for name, usual in (("drain", 1.0), ("variance", 0.0), ("give_up", 0.0)):
            if len(getattr(self, name)) == 0:
                object.__setattr__(self, name, np.full(n, usual))
        self._check()

    @property
    def num_states(self) -> int:
        return len(self.fill)

    @property
    def killed(self) -> Floats:
        """The generator with the end of the download as a way out: rows sum to minus the end rate."""
        return self.generator - np.diag(self.end)

    def _check(self) -> None:
        n = len(self.fill)
        if n == 0:
            raise BadInput("a chain has no states; give it at least one")
        arrays = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "blocked_share"}
        shapes = {name: array.shape for name, array in arrays.items()}
        if any(shape != ((n, n) if name == "generator" else (n,)) for name, shape in shapes.items()):
            raise BadInput(f"a chain of {n} states needs {n} x {n} rates and vectors of {n}; found {shapes}")
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise BadInput("a chain must hold finite numbers only; look for nan or infinite rates")
        if not _are_rates(self.generator):
            raise BadInput("the rates of a chain must be zero or more, with rows that sum to zero on the diagonal")
        if min(self.fill.min(), self.drain.min()) <= 0:
            raise BadInput("fill and drain rates must be above zero; give an outage a tiny rate such as 1e-9")
        if min(self.end.min(), self.variance.min(), self.give_up.min()) < 0:
            raise BadInput("end rates, variances and rates of giving up must be zero or more")
        if self.initial.min() < 0 or abs(self.initial.sum() - 1) > 1e-9:
            raise BadInput(f"the initial law of a chain sums to {self.initial.sum():g}; make it 1")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its standard error: 0 where it is exact."""

    value: float
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class QoeMetrics(Reported):
    """What viewers experience, from equations or from a simulation; both fill the same fields.

    A stall is a buffer that runs empty while the download goes on; `num_stalls` counts them per video without the
    start-up. `stall_s` is the expected time spent in stalls, `finished_early` the share of videos that were downloaded
    before playback could start, `gave_up` the share of viewers that left while they waited.
    """

    source: str
    startup_s: Estimate
    stall_probability: Estimate
    num_stalls: Estimate
    stall_s: Estimate
    finished_early: Estimate
    blocked_share: Estimate
    num_videos: int = 0
    gave_up: Estimate = Estimate(0.0)

    def z_scores(self, other: QoeMetrics) -> dict[str, float]:
        """By how many standard errors two answers differ, for every quantity that has an error."""
        scores = {}
        for name in ("startup_s", "stall_probability", "num_stalls", "stall_s", "finished_early", "blocked_share"):
            mine, theirs = getattr(self, name), getattr(other, name)
            error = math.hypot(mine.error, theirs.error)
            if error > 0:
                scores[name] = (mine.value - theirs.value) / error
        return scores
