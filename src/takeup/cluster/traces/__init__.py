"""Where workloads come from: trace files and a generator; all end in a `Workload`."""

from __future__ import annotations

from takeup.cluster.traces.alibaba_v2026 import read_v2026
from takeup.cluster.traces.generated import PRESETS, generate
from takeup.cluster.traces.loaded import Loaded, Options
from takeup.cluster.traces.plain import ColumnNames, read_plain

__all__ = ["PRESETS", "ColumnNames", "Loaded", "Options", "generate", "read_plain", "read_v2026"]
