"""Published statistics of a production fleet (cluster-trace-v2026-spot-gpu), and the presets built on them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType

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
    """One GPU model. Shares follow `REQUESTS` and the classes of `DURATION_LAW`.

    `gang_tilt` is the power of the number of workers by which gangs are more frequent than in `GANG_LAW`.
    `monthly_gpus` is the mean demand of each month, all jobs together. `organisations` are (number, share of jobs).
    """

    nodes: tuple[tuple[int, int], ...]  # (GPUs of a node, how many such nodes)
    num_jobs: int
    spot_share: float  # of all spot jobs
    request_shares: tuple[float, ...]
    gang_share: float
    gang_tilt: float
    largest_share: float  # of the pool, that one job takes at most
    duration_shares: tuple[float, ...]
    monthly_gpus: tuple[int, ...]
    organisations: tuple[tuple[int, float], ...]

    @property
    def num_gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(size * count for size, count in self.nodes)

    @property
    def mean_gpus(self) -> float:
        """Mean demand of all months."""
        return sum(gpus * days for gpus, days in zip(self.monthly_gpus, MONTH_DAYS, strict=True)) / NUM_DAYS

    @property
    def num_high_jobs(self) -> int:
        """Jobs that are not spot."""
        return self.num_jobs - round(self.spot_share * NUM_SPOT_JOBS)


PROFILES = MappingProxyType({
    "A10": PoolProfile(
        nodes=((1, 2494),), num_jobs=228_643, spot_share=0.05,
        request_shares=(0.194, 0.806, 0.0, 0.0, 0.0), gang_share=0.018, gang_tilt=-0.357, largest_share=0.125,
        duration_shares=(0.2351, 0.2624, 0.3725, 0.0461, 0.0140, 0.0041, 0.0656),
        monthly_gpus=(3500, 3947, 3771, 3402, 2986, 2626),
        organisations=((13, 0.722), (19, 0.058), (18, 0.032), (34, 0.032), (3, 0.031), (7, 0.021), (23, 0.020)),
    ),
    "A100-SXM4-80GB": PoolProfile(
        nodes=((8, 432),), num_jobs=169_020, spot_share=0.70,
        request_shares=(0.0, 0.658, 0.098, 0.082, 0.162), gang_share=0.077, gang_tilt=0.331, largest_share=0.125,
        duration_shares=(0.0119, 0.2027, 0.3224, 0.2463, 0.1304, 0.0434, 0.0430),
        monthly_gpus=(2187, 2389, 2405, 2962, 3191, 3317),
        organisations=((57, 0.372), (66, 0.186), (67, 0.089), (37, 0.075), (4, 0.070), (24, 0.042), (14, 0.023)),
    ),
    "GPU-series-1": PoolProfile(
        nodes=((1, 902), (4, 10), (8, 77)), num_jobs=18_911, spot_share=0.05,
        request_shares=(0.259, 0.574, 0.048, 0.048, 0.071), gang_share=0.090, gang_tilt=-0.150, largest_share=0.125,
        duration_shares=(0.0755, 0.1996, 0.2597, 0.1036, 0.0476, 0.0161, 0.2979),
        monthly_gpus=(745, 910, 1240, 1365, 1414, 1463),
        organisations=((19, 0.557), (13, 0.364), (18, 0.044), (57, 0.019), (4, 0.007), (21, 0.006), (58, 0.002)),
    ),
    "H800": PoolProfile(
        nodes=((8, 219),), num_jobs=11_097, spot_share=0.02,
        request_shares=(0.0, 0.184, 0.054, 0.054, 0.708), gang_share=0.348, gang_tilt=0.820, largest_share=0.5,
        duration_shares=(0.0102, 0.2409, 0.2317, 0.2628, 0.1612, 0.0827, 0.0105),
        monthly_gpus=(1073, 1091, 1230, 1514, 1355, 1326),
        organisations=((57, 0.965), (43, 0.033), (19, 0.002)),
    ),
    "GPU-series-2": PoolProfile(
        nodes=((8, 122),), num_jobs=30_397, spot_share=0.12,
        request_shares=(0.0, 0.151, 0.125, 0.254, 0.470), gang_share=0.700, gang_tilt=-0.958, largest_share=0.25,
        duration_shares=(0.0168, 0.4390, 0.3653, 0.1043, 0.0347, 0.0103, 0.0296),
        monthly_gpus=(552, 724, 630, 910, 835, 834),
        organisations=((57, 0.604), (4, 0.277), (18, 0.084), (20, 0.017), (43, 0.012), (24, 0.003), (28, 0.001)),
    ),
    "A800-SXM4-80GB": PoolProfile(
        nodes=((8, 22),), num_jobs=8799, spot_share=0.06,
        request_shares=(0.0, 0.329, 0.196, 0.168, 0.307), gang_share=0.205, gang_tilt=-0.325, largest_share=0.25,
        duration_shares=(0.0674, 0.2891, 0.4124, 0.1243, 0.0531, 0.0172, 0.0366),
        monthly_gpus=(97, 130, 115, 149, 147, 147),
        organisations=((57, 0.999), (43, 0.001)),
    ),
})  # fmt: skip


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
