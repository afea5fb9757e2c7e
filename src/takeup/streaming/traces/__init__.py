"""Real throughput: logs from files, and the Markov-modulated capacity fitted to them."""

from __future__ import annotations

from takeup.streaming.traces.fit import Fit, fit_capacity
from takeup.streaming.traces.logs import ThroughputLog, read_log, read_logs

__all__ = ["Fit", "ThroughputLog", "fit_capacity", "read_log", "read_logs"]
