"""SwiftDiffusion reproduced: the measured services, the formulas, and whole systems with images per GPU.

Nothing here needs a GPU or PyTorch: traces are drawn, designs simulated with published seconds, formulas computed.
Exactness against stock diffusers is in the tests, and what a GPU reaches in benchmarks/serving.
"""

from takeup.core.report import Report
from takeup.papers import report_parts, with_kind
from takeup.papers.swiftdiffusion.designs import (
    bounds,
    cross_terms,
    drift,
    look_ahead,
    queued_requests,
    single_requests,
    speedups,
    wire_bytes,
)
from takeup.papers.swiftdiffusion.trace import caches, counts, locality, popularity


def reproduce(*, quiet: bool = False) -> Report:
    """All tables and figures, checked."""
    parts = (
        *(with_kind("restated", counts), with_kind("restated", popularity)),
        *(with_kind("simulation", locality), with_kind("restated", caches)),
        *(with_kind("arithmetic", speedups), with_kind("arithmetic", wire_bytes), bounds),
        *(with_kind("arithmetic", cross_terms), with_kind("arithmetic", drift)),
        *(single_requests, with_kind("simulation", queued_requests), with_kind("simulation", look_ahead)),
    )
    return report_parts("swiftdiffusion", parts, quiet=quiet)
