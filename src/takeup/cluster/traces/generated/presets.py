"""The fleets that can be generated, by name.

| name           | what                                                                                    |
| -------------- | --------------------------------------------------------------------------------------- |
| v2026          | six GPU models, 4,278 nodes, 466,867 jobs in 184 days, as published: A10 jobs need more |
|                | GPUs on average than the list of nodes has, and their queue never ends                  |
| v2026_served   | the same with A10 jobs that are short enough to be served                               |
| a100_2296      | 287 nodes of eight A100, five months of history, then a month with the usual spot load  |
| a100_2296_low  | the same with half the spot load                                                        |
| a100_2296_high | the same with twice the spot load                                                       |
| small          | two models, 24 nodes, a week: seconds                                                   |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType

from takeup.cluster.traces.generated.published import NUM_DAYS, PROFILES

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
