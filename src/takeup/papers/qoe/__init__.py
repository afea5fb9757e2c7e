"""Flow-level QoE reproduced: how long viewers wait and how often playback stalls in a cell that videos share.

The text of the paper could not be read beyond its abstract, which prints no number. So the equations, derived again
here, are compared with an independent solution of them, with simulations run here, and with the claims of the abstract:
that arrivals and departures of other flows cause stalls, and that variances matter little.
"""

from takeup.core.report import Report
from takeup.papers import report_parts
from takeup.papers.qoe.claims import best_thresholds, critical_rate, fading, flow_dynamics, variable_rate
from takeup.papers.qoe.reference import fixed_lengths, reference_cells, simulated_cells, solvers_agree, startup_law


def reproduce(*, quiet: bool = False) -> Report:
    """All cells, laws and claims, checked."""
    parts = (
        *(reference_cells, solvers_agree, simulated_cells, startup_law, fixed_lengths),
        *(flow_dynamics, fading, variable_rate, critical_rate, best_thresholds),
    )
    return report_parts("qoe", parts, quiet=quiet)
