"""One module per paper: its tables and figures, run here and compared with the printed numbers.

Expected numbers are in `numbers/*.toml`, each with its source: `paper` (printed there), `unverified` (remembered, not
checked against the text, and never decisive), `measured` (an independent measurement) or `bar` (set by us).
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.resources import files
from typing import Any, Literal, NamedTuple, TypeAlias

from takeup.core.progress import progress
from takeup.core.report import Check, Exercises, Report, Series, Table
from takeup.core.scenario import Scenario, validate
from takeup.errors import UnknownName

PAPERS = {
    "lrc": "LRC: Dependency-Aware Cache Management for Data Analytics Clusters (INFOCOM 2017)",
    "lerc": "LERC: Coordinated Cache Management for Data-Parallel Systems (GLOBECOM 2017)",
    "edge": "Joint Subcarrier and CPU Time Allocation for Mobile Edge Computing (GLOBECOM 2016)",
    "qoe": "Flow Level QoE of Video Streaming in Wireless Networks (IEEE TMC 2016)",
    "adaptra": "Attack of the Bubbles: Straggler-Resilient Pipeline Parallelism (ADAPTRA, NSDI 2026)",
    "gfs": "GFS: A Preemption-aware Scheduling Framework for GPU Clusters (ASPLOS 2026)",
    "falcon": "GREYHOUND: Hunting Fail-Slows in Hybrid-Parallel Training at Scale (FALCON, USENIX ATC 2025)",
    "swiftdiffusion": "Katz: Efficient Workflow Serving for Diffusion Models with Many Adapters (USENIX ATC 2025)",
    "instgenie": "FlashPS: Efficient Generative Image Editing with Mask-aware Caching (InstGenIE, EuroSys 2026)",
}

Numbers: TypeAlias = dict[str, Any]  # the expected numbers of a paper, as its file has them


class PaperScenario(Scenario):
    """Which paper to reproduce."""

    domain: Literal["papers"] = "papers"
    verb: Literal["reproduce"] = "reproduce"
    paper: str


def reproduce(paper: str, *, quiet: bool = False) -> Report:
    """Run the experiments of a paper and check our numbers against the printed ones."""
    if paper not in PAPERS:
        raise UnknownName("paper", paper, PAPERS)
    report = import_module(f"takeup.papers.{paper}").reproduce(quiet=quiet)
    assert isinstance(report, Report)
    return report


def run_again(values: Mapping[str, Any], source: str, *, quiet: bool = False) -> Report:
    """Reproduce the paper that a report names."""
    return reproduce(validate(PaperScenario, values, source).paper, quiet=quiet)


def numbers(paper: str) -> Numbers:
    """The expected numbers of a paper, as stored in its file."""
    return tomllib.loads((files(__package__) / "numbers" / f"{paper}.toml").read_text(encoding="utf-8"))


# Result of one part of a reproduction, and the report of all parts ----------------------------------------------------


class Findings(NamedTuple):
    """One part of the report."""

    checks: tuple[Check, ...]
    tables: tuple[Table, ...] = ()
    series: tuple[Series, ...] = ()


Part: TypeAlias = Callable[[Numbers], Findings]


def of_kind(exercises: Exercises, checks: Iterable[Check]) -> tuple[Check, ...]:
    """The same checks, which exercise this."""
    return tuple(replace(check, exercises=exercises) for check in checks)


def with_kind(exercises: Exercises, part: Part) -> Part:
    """The same part, whose checks exercise this."""

    def found(expected: Numbers) -> Findings:
        findings = part(expected)
        return findings._replace(checks=of_kind(exercises, findings.checks))

    return found


def quoted_checks(part: Numbers, ours: Mapping[str, float]) -> list[Check]:
    """Numbers of a part that are only quoted, compared with ours: within a tenth, and for the reason that it gives."""
    return [
        Check.near(name, ours[key], part[key], 0.1 * part[key], unit=unit, source=part["source"], why=part["why"])
        for key, name, unit in part["rows"]
    ]


def report_parts(paper: str, parts: Sequence[Part], *, quiet: bool) -> Report:
    """Run all parts of a paper, and concatenate them into a report with the notes of its numbers."""
    expected, found = numbers(paper), []
    with progress(f"reproduce {paper}", len(parts), quiet=quiet) as tick:
        for part in parts:
            found.append(part(expected))
            tick()
    return paper_report(paper, expected["setting"]["seed"], found, tuple(expected["setting"]["notes"]))


def paper_report(paper: str, seed: int, parts: Sequence[Findings], notes: tuple[str, ...]) -> Report:
    """Concatenate all parts of a paper into a report."""
    return Report(
        PAPERS[paper],
        "papers",
        {"domain": "papers", "verb": "reproduce", "paper": paper},
        seed,
        tuple(table for part in parts for table in part.tables),
        tuple(series for part in parts for series in part.series),
        tuple(check for part in parts for check in part.checks),
        notes,
    )
