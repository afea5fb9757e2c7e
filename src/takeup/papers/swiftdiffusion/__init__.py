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

NOTES = (
    "the trace of the paper is not used: figures were read off the vector graphics of its artefact, and requests drawn",
    "seconds of images are means of the artefact's logs; all but swiftdiffusion carry its additions: 0.28 s for each "
    "ControlNet, 0.35 s for the look-up of nirvana",
    "for each GPU, swiftdiffusion makes no more images than diffusers in five of seven settings; its factor of 1.7 is "
    "0C/1L only",
    "the artefact sums LoRAs factor by factor and patches text encoders after the prompt was encoded; both are wrong",
    "the paper has no queue: rates, routing and admission are ours, with its seconds of steps and loads; in the queue "
    "swiftdiffusion has eight GPUs for every request, as its artefact is wired",
)


def reproduce(*, quiet: bool = False) -> Report:
    """All tables and figures, checked."""
    parts = (
        *(with_kind("restated", counts), with_kind("restated", popularity)),
        *(with_kind("simulation", locality), with_kind("restated", caches)),
        *(with_kind("arithmetic", speedups), with_kind("arithmetic", wire_bytes), bounds),
        *(with_kind("arithmetic", cross_terms), with_kind("arithmetic", drift)),
        *(single_requests, with_kind("simulation", queued_requests), with_kind("simulation", look_ahead)),
    )
    return report_parts("swiftdiffusion", parts, NOTES, quiet=quiet)
