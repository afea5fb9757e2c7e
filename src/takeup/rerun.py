"""`takeup rerun`: repeat the run that a report or a scenario file describes, and say whether the numbers agree."""

from itertools import zip_longest
from pathlib import Path
from typing import Any

import click

from takeup.core.lazy import find
from takeup.core.report import Report
from takeup.errors import BadScenario
from takeup.output import output_options, say, show

RUNNERS = {
    "caching": "takeup.caching.experiment:run_again",
    "cluster": "takeup.cluster.experiment:run_again",
    "edge": "takeup.edge.experiment:run_again",
    "serving": "takeup.serving.experiment:run_again",
    "streaming": "takeup.streaming.experiment:run_again",
    "training": "takeup.training.experiment:run_again",
    "papers": "takeup.papers:run_again",
}


def run_scenario(values: dict[str, Any], source: str, *, quiet: bool = False) -> Report:
    """Run the scenario in `values`, whichever domain it belongs to."""
    domain = values.get("domain")
    if not isinstance(domain, str):
        raise BadScenario(f"{source}: the key 'domain' is missing; add a line such as 'domain = \"caching\"'")
    report = find("domain", domain, RUNNERS)(values, source, quiet=quiet)
    assert isinstance(report, Report)
    return report


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@output_options
@click.pass_context
def rerun(ctx: click.Context, file: Path, as_json: bool, out: Path | None, quiet: bool) -> None:
    """Repeat the run of FILE, a report.json or a scenario .toml. Exit code 1 if a report's numbers changed."""
    if file.suffix == ".toml":
        from takeup.core.scenario import load_scenario

        show(run_scenario(load_scenario(file), str(file), quiet=quiet), as_json=as_json, out=out)
        return
    before = Report.load(file)
    after = run_scenario(dict(before.scenario), str(file), quiet=quiet)
    show(after, as_json=as_json, out=out)
    if before.scenario.get("verb") == "run":
        say("a real engine was measured again; its times differ from run to run")
        return
    changed = _changed_tables(before, after)
    say(f"changed since {file}: {', '.join(changed)}" if changed else f"the same numbers as in {file}")
    ctx.exit(1 if changed else 0)


def _changed_tables(before: Report, after: Report) -> list[str]:
    """Titles of the tables that changed, new and missing ones included."""
    pairs = zip_longest(before.tables, after.tables)
    return [(old or new).title for old, new in pairs if old != new]
