"""Where workloads come from: trace files and a generator; all end in a `Workload`.

`read_trace` recognises a file by its columns; `read_plain` takes any table whose columns you name. Names are loaded on
first use: the generator needs no reader of files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from takeup.core.lazy import lazy_names

if TYPE_CHECKING:
    from takeup.cluster.traces.alibaba_v2025 import read_v2025
    from takeup.cluster.traces.alibaba_v2026 import read_v2026
    from takeup.cluster.traces.generated import PRESETS, generate
    from takeup.cluster.traces.loaded import Loaded, Options
    from takeup.cluster.traces.openb import read_openb
    from takeup.cluster.traces.others import read_helios, read_philly
    from takeup.cluster.traces.plain import ColumnNames, read_plain
    from takeup.cluster.traces.recognised import read_trace

__all__ = [
    "PRESETS",
    "ColumnNames",
    "Loaded",
    "Options",
    "generate",
    "read_helios",
    "read_openb",
    "read_philly",
    "read_plain",
    "read_trace",
    "read_v2025",
    "read_v2026",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "alibaba_v2025": ("read_v2025",),
        "alibaba_v2026": ("read_v2026",),
        "generated": ("PRESETS", "generate"),
        "loaded": ("Loaded", "Options"),
        "openb": ("read_openb",),
        "others": ("read_helios", "read_philly"),
        "plain": ("ColumnNames", "read_plain"),
        "recognised": ("read_trace",),
    },
)
