"""Joint subcarrier and CPU-time allocation reproduced: Figure 2, two sweeps, and the loss of each method.

The body of the paper could not be read. Its setting is known, so every curve is computed again, on our instances, and
compared with an independent program; gaps to the optimum are compared with bars set by us.
"""

from __future__ import annotations

from takeup.core.progress import progress
from takeup.core.report import Report
from takeup.papers import numbers
from takeup.papers.edge.curves import cpu_sweep, figure_2, radio_sweep
from takeup.papers.edge.radio_tight import radio_tight
from takeup.papers.findings import paper_report

NOTES = (
    "devices lie uniformly in the area and fade with an exponential power gain; the public re-drawing of Figure 2 uses "
    "a uniform radius and an amplitude instead, which shifts all curves",
    "gaps are shares of the saving, not of the energy: near zero energy a ratio of energies explodes",
)


def reproduce(*, quiet: bool = False) -> Report:
    """All curves and gaps, checked."""
    expected = numbers("edge")
    num_steps = sum(
        len(expected[part][axis])
        for part, axis in (
            ("figure_2", "num_devices"),
            ("cpu_sweep", "edge_mhz"),
            ("radio_sweep", "num_subcarriers"),
        )
    )
    with progress("reproduce edge", num_steps + expected["radio_tight"]["num_instances"], quiet=quiet) as tick:
        parts = (
            figure_2(expected, tick),
            cpu_sweep(expected, tick),
            radio_sweep(expected, tick),
            radio_tight(expected, tick),
        )
    return paper_report("edge", expected["setting"]["seed"], parts, NOTES)
