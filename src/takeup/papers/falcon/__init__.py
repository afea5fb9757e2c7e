"""FALCON reproduced: how well slow jobs are detected and mitigated, and which of the printed rules work as stated.

The traces of the paper are not public: jobs are drawn with its frequencies, durations and severities. Its mitigations
ran on many GPUs; here their arithmetic is checked; what real processes gain is in benchmarks/training/stragglers.py.
"""

from takeup.core.report import Report
from takeup.papers import report_parts, with_kind
from takeup.papers.falcon.detection import causes, drawn_jobs, iterations, printed_tables
from takeup.papers.falcon.mitigation import (
    at_scale,
    compound_faults,
    consolidation,
    gathering,
    planner,
    rebalancing,
    swaps,
)


def reproduce(*, quiet: bool = False) -> Report:
    """All tables and figures, checked."""
    parts = (
        *(with_kind("restated", causes), with_kind("arithmetic", printed_tables), drawn_jobs, iterations),
        *(rebalancing, consolidation, with_kind("restated", gathering), with_kind("arithmetic", swaps)),
        *(compound_faults, with_kind("arithmetic", at_scale), planner),
    )
    return report_parts("falcon", parts, quiet=quiet)
