"""Flow-level QoE reproduced: how long viewers wait and how often playback stalls in a cell that videos share.

The text of the paper could not be read beyond its abstract, which prints no number. So the equations, derived again
here, are compared with an independent solution of them, with simulations run here, and with the claims of the abstract:
that arrivals and departures of other flows cause stalls, and that variances matter little.
"""

from takeup.core.progress import progress
from takeup.core.report import Report
from takeup.papers import numbers, paper_report
from takeup.papers.qoe.claims import best_thresholds, critical_rate, fading, flow_dynamics, variable_rate
from takeup.papers.qoe.reference import fixed_lengths, reference_cells, simulated_cells, solvers_agree, startup_law

NOTES = (
    "the cell (2.8 Mbit/s, videos of 360 kbit/s and 60 s, ten users) and the form of the cost are remembered as this "
    "group's, not verified; the paper's own figures could not be read",
    "measured numbers come from an independent program that solves the same equations; they are compared to half of "
    "their last digit, mean start-up delays to a whole one",
)


def reproduce(*, quiet: bool = False) -> Report:
    """All cells, laws and claims, checked."""
    expected = numbers("qoe")
    setting = expected["setting"]
    num_steps = len(setting["arrivals_per_s"]) * (len(setting["starts_s"]) + 1) + len(
        expected["fixed_length"]["stalls"]
    )
    with progress("reproduce qoe", num_steps + 2, quiet=quiet) as tick:
        parts = (
            reference_cells(expected),
            solvers_agree(expected),
            simulated_cells(expected, tick),
            startup_law(expected, tick),
            fixed_lengths(expected, tick),
            flow_dynamics(expected),
            fading(expected, tick),
            variable_rate(expected),
            critical_rate(expected, tick),
            best_thresholds(expected),
        )
    return paper_report("qoe", setting["seed"], parts, NOTES)
