"""Adapter popularity and cache behaviour on two online-retail services: published measurements.

"Katz: Efficient Workflow Serving for Diffusion Models with Many Adapters", USENIX ATC 2025, section 3: table 1 (how
many adapters a request has), the popularity of adapters, and figure 6 (loads per request with a cache of 1 to 10
adapters on each instance). Figures are read off the vector graphics of the authors' artefact.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdapterUsage:
    """One kind of adapter on one service.

    `count_shares[n]`: requests with n of them. `cumulative`: (rank, share of uses of all up to that rank).
    `lru_loads[c - 1]` and `lfu_loads[c - 1]`: loads per request with a cache of c on each instance. `num_requests` and
    `num_instances` are those of the service, with the median and the largest number of requests of an instance.
    """

    num_instances: int
    num_requests: int
    median_requests: int
    most_requests: int
    count_shares: tuple[float, ...]
    cumulative: tuple[tuple[int, float], ...]
    lru_loads: tuple[float, ...]
    lfu_loads: tuple[float, ...]
    unique_per_request: float | None = None

    @property
    def num_adapters(self) -> int:
        return self.cumulative[-1][0]

    @property
    def mean_count(self) -> float:
        return sum(number * share for number, share in enumerate(self.count_shares))


def _ranked(total: int, *shares: float) -> tuple[tuple[int, float], ...]:
    return (*((rank, share / 100) for rank, share in enumerate(shares, start=1)), (total, 1.0))


def _points(*points: tuple[int, float]) -> tuple[tuple[int, float], ...]:
    return tuple((rank, share / 100) for rank, share in points)


_A = (165, 164_194, 933, 3_486)
_B = (302, 385_239, 723, 5_545)

MEASURED: dict[str, AdapterUsage] = {
    "a-controlnet": AdapterUsage(
        *_A,
        count_shares=(0.0, 0.305, 0.695),
        cumulative=_ranked(47, 31.1, 56.4, 73.5, 89.3, 97.6, 98.7, 98.9, 99.0, 99.1, 99.2, 99.3, 99.4),
        lru_loads=(1.534, 0.864, 0.561, 0.181, 0.012, 0.010, 0.009, 0.008, 0.008, 0.008),
        lfu_loads=(1.534, 1.005, 0.526, 0.183, 0.016, 0.012, 0.012, 0.011, 0.011, 0.010),
    ),
    "b-controlnet": AdapterUsage(
        *_B,
        count_shares=(0.019, 0.251, 0.699, 0.031),
        cumulative=_ranked(94, 22.2, 35.7, 49.2, 60.8, 71.5, 80.6, 87.8, 94.5, 96.2, 97.5, 98.8, 99.4, 99.7),
        lru_loads=(1.593, 1.036, 0.873, 0.617, 0.445, 0.290, 0.148, 0.074, 0.040, 0.011),
        lfu_loads=(1.593, 1.239, 1.036, 0.834, 0.597, 0.470, 0.359, 0.108, 0.065, 0.027),
    ),
    "a-lora": AdapterUsage(
        *_A,
        count_shares=(0.002, 0.088, 0.910),
        cumulative=_points(
            *((3, 9.3), (9, 19.3), (16, 26.0), (24, 30.1), (34, 33.6), (60, 39.5), (94, 44.7), (146, 49.8)),
            *((239, 55.7), (338, 60.2), (520, 65.8), (726, 70.1), (989, 74.2), (1329, 78.3), (1834, 82.8)),
            *((2640, 88.0), (3529, 92.4), (4501, 95.7), (6980, 100.0)),
        ),
        lru_loads=(1.880, 1.473, 1.460, 1.387, 1.371, 1.330, 1.312, 1.283, 1.264, 1.240),
        lfu_loads=(1.880, 1.862, 1.832, 1.801, 1.781, 1.761, 1.742, 1.726, 1.709, 1.694),
        unique_per_request=0.68,
    ),
    "b-lora": AdapterUsage(
        *_B,
        count_shares=(0.072, 0.736, 0.192),
        cumulative=_points(
            *((2, 26.6), (6, 40.4), (13, 52.5), (24, 60.1), (40, 65.2), (76, 70.2), (128, 73.7), (244, 78.2)),
            *((432, 82.3), (767, 86.0), (1219, 89.1), (1912, 92.2), (2691, 94.5), (4091, 97.3), (4501, 97.8)),
            (7463, 100.0),
        ),
        lru_loads=(0.894, 0.799, 0.734, 0.687, 0.648, 0.619, 0.594, 0.574, 0.556, 0.540),
        lfu_loads=(0.894, 0.806, 0.769, 0.735, 0.702, 0.678, 0.651, 0.622, 0.597, 0.575),
        unique_per_request=0.24,
    ),
}
