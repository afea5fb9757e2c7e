"""InstGenIE (FlashPS) reproduced: sizes, operations, plans and routes by computation; its seconds on GPUs are quoted.

The masks, templates and traces of the paper are not public. Masks are drawn from beta distributions with its means,
templates by Zipf's law.
"""

from __future__ import annotations

from takeup.core.progress import progress
from takeup.core.report import Report
from takeup.papers import numbers
from takeup.papers.findings import paper_report
from takeup.papers.instgenie.parts import operations, plans, routes, template_size

NOTES = (
    "masks are drawn from beta distributions with the published means (0.11, 0.19, 0.35), for the data are not public; "
    "templates follow Zipf's law",
    "the paper's rule for loads (Algorithm 1) decides block by block and is not the best plan; ours is",
    "its code uses the rule nowhere: all blocks are loaded, keys and values in Flux, outputs of attention elsewhere",
    "its network called SDXL is a try-on network with the shape of Stable Diffusion 1.5; its seconds are no others'",
    "routes are simulated with the seconds of steps that we measured for SDXL on one H200",
)


def reproduce(*, quiet: bool = False) -> Report:
    """What can be computed, checked."""
    expected = numbers("instgenie")
    parts_of = (template_size, operations, plans, routes)
    parts = []
    with progress("reproduce instgenie", len(parts_of), quiet=quiet) as tick:
        for part in parts_of:
            parts.append(part(expected))
            tick()
    return paper_report("instgenie", expected["setting"]["seed"], parts, NOTES)
