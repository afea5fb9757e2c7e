"""Write the generated parts of the documentation: results, reference and the list of unreleased changes.

`python scripts/docs.py` writes them again; with `--check` it writes nothing and exits with 1 if a file is out of date.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import EnumType
from importlib import import_module
from math import isclose
from pathlib import Path
from types import ModuleType

import click
import headlines

from takeup.cli import takeup as command_tree
from takeup.core.files import write_atomically
from takeup.core.render.text import check_cells
from takeup.core.report import Check, Exercises, Report
from takeup.papers import PAPERS, reproduce
from takeup.rerun import RUNNERS

__all__ = ["api_reference", "changelog", "cli_reference", "main", "outdated", "pages", "results_page", "results_table"]

ROOT = Path(__file__).resolve().parent.parent
FIGURES = {  # where the cells of a paper come from
    "adaptra": "published and measured figures",
    "edge": "an independent program",
    "lerc": "the zip figure",
    "qoe": "an independent solution",
}
SHOWN = {  # the check of a paper that the README quotes
    "lrc": "largest time saved on PageRank, LRC over LRU",
    "lerc": "time saved, LERC over LRU",
    "edge": "auto, certified gap, mean",
    "qoe": "near criticality, smallest ratio",
    "adaptra": "14B, 60 ms on the last link, full over healthy",
    "gfs": "forecast, coverage of the 90 % bound",
    "falcon": "ours, accuracy over jobs",
    "swiftdiffusion": "images for a GPU-minute, takeup to swiftdiffusion",
    "instgenie": "95th percentile, ours to routing by tokens",
}
MOST_IGNORED = 3  # missed numbers that do not count and are listed one by one
RESULT = re.compile(r"\b\d+\.\d{3}\b")
SMALLEST_TOLERANCE = 1e-9  # of numbers that must agree exactly
KINDS = {"added": "Added", "changed": "Changed", "fixed": "Fixed", "removed": "Removed"}
DOMAINS = [f"takeup.{name}" for name in RUNNERS if name != "papers"]
ABOUT_RESULTS = """\
`takeup reproduce PAPER` prints these with their reasons. *The paper* is a number it prints. *Measured* is an
independent re-creation in another program. *Our bar* is a limit we set. *Simulation*: our decisions played in one of
our simulators; the others are computed by the code that a user runs. The reports also show numbers that do not count:
those that could not be checked against a paper's text (*not verified*), *arithmetic* on a paper's own numbers, and
generators compared with the table they were built from (*restated*). The workloads have the shape of the papers'
applications, not their sizes. LERC's cells depend on a random order of tenants: the draw that is compared was chosen to
be near the reference, and the report shows the spread over forty others. LERC's time saved depends on how long a load
takes, which is not known and was chosen with the paper's number in view: from 0 to 0.05 s it ranges from 0.44 to 0.27.
"""
GENERATED = "<!-- Written by scripts/docs.py; change the code and run `make docs`. -->"


def main() -> int:
    """Write every page that is out of date, or only name it if `--check` is given."""
    if "--check" not in sys.argv:  # built, not committed
        write_atomically(ROOT / "docs/reference/api.md", api_reference())
    stale = outdated()
    for path, text in stale.items():
        print(f"docs: {path.relative_to(ROOT)} {'is out of date' if '--check' in sys.argv else 'written'}")
        if "--check" not in sys.argv:
            write_atomically(path, text)
    return 1 if stale and "--check" in sys.argv else 0


def outdated() -> dict[Path, str]:
    """The pages whose text is not what it should be, with the text they should have."""
    return {
        path: text for path, text in pages().items() if not path.exists() or not _agree(path.read_text("utf-8"), text)
    }


def _agree(old: str, new: str) -> bool:
    """Equal, but for results within 0.5 %: gaps of solvers depend on the processor in their last digits."""
    if RESULT.sub("", old) != RESULT.sub("", new):
        return False
    pairs = zip(RESULT.findall(old), RESULT.findall(new), strict=True)
    return all(isclose(float(one), float(other), rel_tol=0.005) for one, other in pairs)


def pages() -> dict[Path, str]:
    """Every page with a generated part, whole and as it should be."""
    readme, changes = ROOT / "README.md", ROOT / "CHANGELOG.md"
    reports = {paper: reproduce(paper, quiet=True) for paper in PAPERS}
    measured = _between(readme.read_text("utf-8"), "headlines", _table(*headlines.table()))
    return {
        readme: _between(measured, "results", results_table(reports)),
        ROOT / "docs/takeup.svg": headlines.picture(),
        ROOT / "docs/reference/results.md": results_page(reports),
        changes: _between(changes.read_text("utf-8"), "unreleased", changelog(ROOT / "changes")),
        ROOT / "docs/reference/cli.md": cli_reference(),
    }


def _between(text: str, name: str, body: str) -> str:
    """The text with `body` between the two markers called `name`."""
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
    head, _, rest = text.partition(begin)
    _, found, tail = rest.partition(end)
    assert found, f"the markers of {name!r} are missing"
    return f"{head}{begin}{body}{end}{tail}"


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


# Results --------------------------------------------------------------------------------------------------------------


def results_table(reports: Mapping[str, Report]) -> str:
    """One row for each paper: how many checks hold, the one in `SHOWN`, and what fails."""
    rows = [_summary(paper, list(report.checks)) for paper, report in reports.items()]
    return _table(("paper", "checks that hold", "one of them", "what fails"), rows)


def _summary(paper: str, checks: list[Check]) -> tuple[str, ...]:
    counted = [check for check in checks if check.counts]
    num_holding = sum(check.holds for check in counted)
    missed = list(map(_said, (check for check in counted if not check.holds)))
    ignored = [check for check in checks if not check.counts and not check.holds]
    if len(ignored) > MOST_IGNORED:
        missed.append(f"{len(ignored)} numbers that are not verified differ")
    else:
        missed += map(_said, ignored)
    shown = next((check for check in counted if check.name == SHOWN.get(paper)), counted[0])
    name, _, expected, *_ = check_cells(shown)
    told = f"{name}: {float(shown.ours or 0):.3f} ({expected})"
    return paper.upper(), f"{num_holding} of {len(counted)}", told, "; ".join(missed)


def _said(check: Check) -> str:
    name, _, expected, *_ = check_cells(check)
    ignored = "not verified" if check.source == "unverified" else check.exercises
    suffix = "" if check.counts else f"; {ignored}, not counted"
    return f"{name} {float(check.ours or 0):.3g} ({expected}{suffix})"


def results_page(reports: Mapping[str, Report]) -> str:
    """Every check of every reproduced paper."""
    rows = [row for paper, report in reports.items() for row in result_rows(paper, report)]
    table = _table(("paper", "check", "ours", "expected", "source", "verdict"), rows)
    return f"# Results\n\n{GENERATED}\n\n{ABOUT_RESULTS}\n{table}"


def result_rows(paper: str, report: Report) -> Iterator[tuple[str, ...]]:
    """One row for each check that counts; the cells of a figure, which are many, share one."""
    counted = [check for check in report.checks if check.counts]
    cells = [check for check in counted if check.source == "measured" and check.relation == "near"]
    if cells:
        yield _row(paper, _largest_difference(cells, FIGURES.get(paper, "the reference")))
    for check in counted:
        if check not in cells:
            yield _row(paper, check)


def _largest_difference(cells: list[Check], figure: str) -> Check:
    """The worst of them in their own unit; in tolerances, where these are not the same for all."""
    differences = [abs(float(cell.ours or 0) - float(cell.expected or 0)) for cell in cells]
    limits = [max(cell.tolerance or 0.0, SMALLEST_TOLERANCE) for cell in cells]
    name = f"{len(cells)} cells of {figure}, largest difference"
    kind: Exercises = "simulation" if any(cell.exercises == "simulation" for cell in cells) else "product"
    if len(set(limits)) == 1:
        return replace(Check.at_most(name, max(differences), limits[0], source="measured"), exercises=kind)
    worst = max(difference / limit for difference, limit in zip(differences, limits, strict=True))
    return replace(Check.at_most(f"{name} in tolerances", worst, 1.0, source="measured"), exercises=kind)


def _row(paper: str, check: Check) -> tuple[str, ...]:
    name, _, expected, _, verdict, source = check_cells(check)
    return paper.upper(), name, f"{float(check.ours or 0):.3f}", expected, source, verdict


# Changes --------------------------------------------------------------------------------------------------------------


def changelog(folder: Path) -> str:
    """The fragments in `folder`, by kind and then by name."""
    text = "\n"
    for kind, heading in KINDS.items():
        fragments = sorted(folder.glob(f"*.{kind}.md"))
        if fragments:
            text += f"### {heading}\n\n" + "".join(f"- {_one_line(path)}\n" for path in fragments) + "\n"
    return text


def _one_line(path: Path) -> str:
    return " ".join(path.read_text("utf-8").split())


# Commands -------------------------------------------------------------------------------------------------------------


def cli_reference() -> str:
    """Every command with its arguments and options."""
    context = click.Context(command_tree, info_name="takeup", **command_tree.context_settings)
    head = f"# Command line\n\n{GENERATED}\n\nExit code 0: done. 1: a check failed. 2: a mistake.\n"
    return head + "".join(_command_section(inner) for inner in _contexts(context))


def _contexts(context: click.Context) -> Iterator[click.Context]:
    """The context of the command and of all commands below it."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None
            yield from _contexts(click.Context(command, context, name))


def _command_section(context: click.Context) -> str:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    rows = [_option_row(option) for option in command.params if isinstance(option, click.Option)]
    options = f"\n{_table(('option', 'default', 'meaning'), rows)}" if rows else ""
    return f"\n## {context.command_path}\n\n`{usage}`\n\n{inspect.cleandoc(command.help or '')}\n{options}"


def _option_row(option: click.Option) -> tuple[str, ...]:
    default = f"`{option.default}`" if option.show_default else ""
    return ", ".join(f"`{name}`" for name in option.opts), default, option.help or ""


# Names ----------------------------------------------------------------------------------------------------------------


def api_reference() -> str:
    """Every public name: what the domain packages export, with the first line of its description."""
    head = f"# Library\n\n{GENERATED}\n\nPublic names are those below; everything else may change.\n"
    return head + "".join(map(_module_section, DOMAINS))


def _module_section(name: str) -> str:
    module = import_module(name)
    rows = [_name_row(entry, _value(module, entry)) for entry in module.__all__]
    return f"\n## {name}\n\n{_first_line(module.__doc__)}\n\n{_table(('name', 'what it is'), rows)}"


def _value(module: ModuleType, entry: str) -> object:
    """What the name stands for; a module may hold a function of its own name."""
    found = getattr(module, entry)
    function = getattr(found, entry) if inspect.ismodule(found) else found
    return inspect.unwrap(function) if callable(function) else function  # a compiled function wraps a plain one


def _name_row(entry: str, value: object) -> tuple[str, ...]:
    if inspect.isfunction(value) or (inspect.isclass(value) and value.__module__.startswith("takeup")):
        return f"`{entry}{_signature(value)}`", _first_line(value.__doc__)
    return f"`{entry}`", _description(value)


def _signature(value: Callable[..., object]) -> str:
    """The names of the parameters, as far as it is meant to be called."""
    if getattr(value, "_is_protocol", False) or isinstance(value, EnumType):
        return ""
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:  # an exception without a constructor of its own
        return ""
    return f"({', '.join(_parameter(each) for each in parameters if not each.name.startswith('_'))})"


def _parameter(parameter: inspect.Parameter) -> str:
    return parameter.name if parameter.default is parameter.empty else f"{parameter.name}=..."


def _description(value: object) -> str:
    match value:
        case dict():
            return f"A mapping: {', '.join(f'`{key}`' for key in value)}."
        case tuple():
            return f"A tuple of {len(value)}."
        case int() | float() | str():
            return f"A constant: `{value!r}`."
        case click.Command():
            return f"A command: {_first_line(value.help)}"
    return "A type."


def _first_line(text: str | None) -> str:
    """The first paragraph of a description, on one line."""
    return " ".join(inspect.cleandoc(text or "").partition("\n\n")[0].split())


if __name__ == "__main__":
    sys.exit(main())
