"""`takeup tour`: run every installed system on its embedded workload, compared with its baselines."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from takeup.core.files import write_atomically
from takeup.core.report import Report
from takeup.output import say, with_provenance
from takeup.rerun import run_scenario


@dataclass(frozen=True, slots=True)
class TourStop:
    """One system: what it is about in a sentence, and the scenario that shows it."""

    system: str
    sentence: str
    scenario: Mapping[str, Any]


STOPS = (
    TourStop(
        "lrc",
        "Iterative jobs recompute dropped blocks. Counting readers still to come keeps the right ones.",
        {
            "domain": "caching",
            "verb": "compare",
            "workload": "pagerank",
            "policies": ["lru", "lrc", "dag", "min"],
            "capacities": ["20%", "30%", "40%"],
            "miss": "recompute",
        },
    ),
    TourStop(
        "lerc",
        "A task is fast only if all its inputs are in memory. Counting only complete groups makes hits effective.",
        {
            "domain": "caching",
            "verb": "compare",
            "workload": "zip",
            "policies": ["lru", "lrc", "lerc", "dag", "min"],
            "capacities": ["20%", "40%", "60%", "80%"],
            "cost_model": "all-or-nothing",
        },
    ),
    TourStop(
        "edge",
        "Planning radio first and CPU second wastes both. Planned together they serve more, with a proven gap.",
        {
            "domain": "edge",
            "verb": "compare",
            "policies": ["local", "radio_first", "cpu_first", "joint", "joint_plus", "auto"],
            "num_instances": 4,
        },
    ),
    TourStop(
        "qoe",
        "Videos stall because other viewers come and go. Equations say how often, in a millisecond.",
        {
            "domain": "streaming",
            "verb": "predict",
            "arrivals_per_s": [0.08, 0.1, 0.12],
            "start_s": [2.0, 5.0, 10.0, 20.0],
        },
    ),
    TourStop(
        "adaptra",
        "One slow link idles a whole pipeline. A schedule with slack on that link pays its delay once.",
        {
            "domain": "training",
            "verb": "compare",
            "policies": ["one_f_one_b", "zb_h1", "zb_h2", "adaptra"],
            "delays_ms": [0, 20, 40],
        },
    ),
    TourStop(
        "gfs",
        "Spot jobs get evicted without notice. A demand forecast says which capacity can be guaranteed, and when.",
        {
            "domain": "cluster",
            "verb": "compare",
            "workload": "small",
            "policies": ["fifo", "yarn_cs", "lyra", "gfs_published", "gfs"],
        },
    ),
    TourStop(
        "falcon",
        "In a slow job all ranks look equally slow. The culprit is the rank that arrives last and waits least.",
        {"domain": "papers", "verb": "reproduce", "paper": "falcon"},
    ),
    TourStop(
        "swiftdiffusion",
        "Every image request brings its own LoRAs and ControlNets. Step-level batching serves more of them per GPU.",
        {
            "domain": "serving",
            "verb": "compare",
            "designs": ["diffusers", "static", "nirvana", "swiftdiffusion", "takeup"],
            "rates_per_s": [0.25, 0.5, 1.0],
            "num_requests": 600,
        },
    ),
    TourStop(
        "instgenie",
        "Most edits change a tenth of an image. Cached activations of the rest are loaded while blocks compute.",
        {"domain": "papers", "verb": "reproduce", "paper": "instgenie"},
    ),
)


@click.command()
@click.option("--out", default="takeup-tour", show_default=True, type=click.Path(path_type=Path), help="The folder.")
@click.option("--json", "as_json", is_flag=True, help="Print all reports as JSON instead of text.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def tour(out: Path, as_json: bool, quiet: bool) -> None:
    """Run every system and its baselines on its default workload; charts and an HTML report go to a folder."""
    from takeup.core.render import IndexEntry, index_html, to_text, write

    reports: dict[str, Report] = {}
    entries = []
    for stop in STOPS:
        if not quiet:
            say(f"{stop.system}: running (the first time, kernels are compiled, which takes about twenty seconds)")
        report = with_provenance(run_scenario(dict(stop.scenario), "tour", quiet=quiet))
        reports[stop.system] = report
        write(report, out / stop.system)
        entries.append(IndexEntry.of(report, f"{stop.system}/report.html", stop.sentence))
        if not as_json:
            click.echo(f"\n{stop.system.upper()}. {stop.sentence}\n\n{to_text(report)}", nl=False)
    write_atomically(out / "index.html", index_html(entries, "takeup: the tour"))
    if as_json:
        click.echo(json.dumps({system: json.loads(report.to_json()) for system, report in reports.items()}))
    say(f"\nopen {out / 'index.html'} in a browser for tables and charts")
