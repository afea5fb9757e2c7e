"""Published statistics of a production fleet (cluster-trace-v2026-spot-gpu), and the presets built on them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from math import inf
from tomllib import loads
from types import MappingProxyType
from typing import Any

# Source: the node list of that trace (alibaba/clusterdata), and tables of counts, quantiles and shares that were
# computed from its 466,867 jobs over 184 days from 2024-03-01 (MIT, sultanul-ovi/GPU-Cluster-Spot-Resource-Dataset-
# Analysis). No row of the trace is here. What the tables leave open was filled in so that all of them hold together:
# the shares of requests, gangs and durations of each model are the ones nearest to independence that give the
# published totals of jobs, GPUs and GPU-seconds by model, by size and by duration. Which models spot jobs use is not
# published: our shares.

NUM_DAYS = 184
NUM_JOBS = 466_867
NUM_SPOT_JOBS = 51_154
NUM_ORGANISATIONS = 84
MONTH_DAYS = (31, 30, 31, 30, 31, 31)  # March to August 2024

# (share of high-priority jobs, seconds they last at most) in seven classes, straight lines of the logarithm between.
# The last class is longer than published, where it ends with the 184 days: here jobs are cut at the end of the window.
DURATION_LAW = (
    ((0.0, 1.0), (0.1356, 60.0)),
    ((0.1356, 60.0), (0.3854, 600.0)),
    ((0.3854, 600.0), (0.5144, 1216.0), (0.7320, 3600.0)),
    ((0.7320, 3600.0), (0.8549, 21_600.0)),
    ((0.8549, 21_600.0), (0.8933, 45_773.0), (0.9133, 86_400.0)),
    ((0.9133, 86_400.0), (0.9331, 259_200.0)),
    ((0.9331, 259_200.0), (0.9440, 461_465.0), (0.9888, 6_300_000.0), (1.0, 22_000_000.0)),
)
SPOT_MEDIAN_S, SPOT_SPREAD = 2095.0, 1.826  # a lognormal law with the published median and 90th percentile (21,740 s)
SPOT_MONTHLY_JOBS = (60, 9520, 7380, 9254, 12_095, 12_844)

# Jobs of several workers by their number; classes of the published histogram, which ends at 332.
GANG_LAW = (
    (2, 13_142), (3, 4600), (4, 5267), (5, 1689), (6, 1785), (7, 1566), (8, 2486), (12, 2505),
    (16, 2216), (24, 951), (32, 1675), (48, 326), (64, 659), (96, 151), (128, 150), (192, 115),
)  # fmt: skip
REQUESTS = (0.0, 1.0, 2.0, 4.0, 8.0)  # GPUs per worker; 0 stands for a fraction of one
LONG_REQUESTS = (0.3, 1.0, 0.5, 0.25, 0.125)  # how much rarer they are among jobs of more than three days
FRACTIONS = (0.1, 0.25, 0.5)

HOURLY_ARRIVALS = (
    22_451, 15_929, 14_089, 13_387, 12_921, 14_128, 14_232, 15_038, 15_945, 16_972, 25_057, 25_735,
    19_770, 19_276, 25_304, 25_039, 27_015, 25_376, 20_016, 21_189, 21_885, 19_162, 18_813, 18_138,
)  # fmt: skip
WEEKDAY_ARRIVALS = (0.945, 0.823, 0.921, 1.120, 1.172, 1.108, 0.911)  # the first day is a Friday


@dataclass(frozen=True, slots=True)
class PoolProfile:
    """One GPU model; `fleet_profiles.toml` says what the fields are."""

    nodes: tuple[tuple[int, int], ...]
    num_jobs: int
    spot_share: float
    request_shares: tuple[float, ...]
    gang_share: float
    gang_tilt: float
    largest_share: float
    duration_shares: tuple[float, ...]
    monthly_gpus: tuple[int, ...]
    organisations: tuple[tuple[int, float], ...]

    @property
    def num_gpus(self) -> int:
        return sum(size * count for size, count in self.nodes)

    @property
    def mean_gpus(self) -> float:
        """Mean demand of all months."""
        return sum(gpus * days for gpus, days in zip(self.monthly_gpus, MONTH_DAYS, strict=True)) / NUM_DAYS

    @property
    def num_high_jobs(self) -> int:
        return self.num_jobs - round(self.spot_share * NUM_SPOT_JOBS)


def _profiles() -> Mapping[str, PoolProfile]:
    """The GPU models by name, as `fleet_profiles.toml` has them."""
    text = (files(__package__) / "fleet_profiles.toml").read_text("utf-8")
    return {name: PoolProfile(**{key: _frozen(value) for key, value in it.items()}) for name, it in loads(text).items()}


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


PROFILES = MappingProxyType(_profiles())


# The fleets that can be generated, by name ----------------------------------------------------------------------------
#
# | name           | what                                                                                    |
# | -------------- | --------------------------------------------------------------------------------------- |
# | v2026          | six GPU models, 4,278 nodes, 466,867 jobs in 184 days, as published: A10 jobs need more |
# |                | GPUs on average than the list of nodes has, and their queue never ends                  |
# | v2026_served   | the same with A10 jobs that are short enough to be served                               |
# | a100_2296      | 287 nodes of eight A100, five months of history, then a month with the usual spot load  |
# | a100_2296_low  | the same with half the spot load                                                        |
# | a100_2296_high | the same with twice the spot load                                                       |
# | small          | two models, 24 nodes, a week: seconds                                                   |

AUGUST = 153  # the day on which it begins


@dataclass(frozen=True, slots=True)
class Preset:
    """Nodes as (GPUs, how many) by model; the last `num_days` of the published months; spot jobs from a day on.

    `high_load` and `spot_load` multiply the demand that corresponds to these nodes. Where demand exceeds
    `most_demand_share` of what the nodes have, long jobs are shortened.
    """

    nodes: Mapping[str, tuple[tuple[int, int], ...]]
    num_days: int = NUM_DAYS
    spot_from_day: int = 0
    high_load: float = 1.0
    spot_load: float = 1.0
    most_demand_share: float = inf


_V2026 = Preset(MappingProxyType({name: profile.nodes for name, profile in PROFILES.items()}))
_A100 = Preset(MappingProxyType({"A100-SXM4-80GB": ((8, 287),)}), spot_from_day=AUGUST)
_SMALL = Preset(
    MappingProxyType({"A100-SXM4-80GB": ((8, 16),), "H800": ((8, 8),)}), num_days=7, high_load=0.7, spot_load=2.0
)

PRESETS = MappingProxyType({
    "v2026": _V2026,
    "v2026_served": replace(_V2026, most_demand_share=0.85),
    "a100_2296": _A100,
    "a100_2296_low": replace(_A100, spot_load=0.5),
    "a100_2296_high": replace(_A100, spot_load=2.0),
    "small": _SMALL,
})  # fmt: skip
