"""Real throughput: logs from files."""

from __future__ import annotations

from takeup.streaming.traces.logs import ThroughputLog, read_log, read_logs

__all__ = ["ThroughputLog", "read_log", "read_logs"]
