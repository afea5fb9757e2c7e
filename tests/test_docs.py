"""The documentation is true: generated parts are current, what it names exists, and what it shows runs."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import headlines
import numpy as np
import pytest

from reproduced import reproduced, together
from takeup.caching.policies import POLICIES
from takeup.caching.traces import WORKLOADS
from takeup.cli import COMMANDS
from takeup.cli import takeup as command_tree
from takeup.core.report import Check, Report
from takeup.edge import engines as edge_engines
from takeup.edge.policies import POLICIES as ALLOCATIONS
from takeup.edge.traces.generators import SETTINGS
from takeup.papers import PAPERS
from takeup.rerun import RUNNERS
from takeup.streaming import Capacity, Cell, Player, read_log, solve_cell
from takeup.streaming.simulate import SIMULATORS

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "changes/*.md",
        "designs/*.md",
        "src/**/*.md",
        "benchmarks/*.md",
        "tests/**/*.md",
    )
    for path in ROOT.glob(pattern)
)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ON_THE_COMMAND_LINE = {
    "caching": (*POLICIES, *WORKLOADS, "spark", "dask"),
    "edge": (*ALLOCATIONS, *SETTINGS, *edge_engines.ENGINES),
    "streaming": tuple(SIMULATORS),
}
NAMES = ON_THE_COMMAND_LINE | {"streaming": ("doubling", "diffusion", "sparse", *SIMULATORS)}


def pairs(names: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    return [(domain, name) for domain, known in names.items() for name in known]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def load_script() -> Any:
    """scripts/docs.py as a module."""
    spec = importlib.util.spec_from_file_location("docs_script", ROOT / "scripts" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


docs = load_script()


# Generated parts ------------------------------------------------------------------------------------------------------


@together
@pytest.mark.timeout(1800)  # if it comes first, it reproduces all papers: ten minutes on a busy machine
def test_generated_parts_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "reproduce", lambda paper, quiet: reproduced(paper))

    assert [name_of(path) for path in docs.outdated()] == [], "run `make docs`"


def test_check_names_a_stale_page_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = docs.ROOT / "docs" / "stale.md"
    monkeypatch.setattr(docs, "outdated", lambda: {page: "new text"})
    monkeypatch.setattr(sys, "argv", ["docs.py", "--check"])

    assert docs.main() == 1
    assert capsys.readouterr().out == f"docs: {Path('docs/stale.md')} is out of date\n"
    assert not page.exists()


def test_only_what_stands_between_the_markers_is_replaced() -> None:
    text = "before\n<!-- x:begin -->\nold\n<!-- x:end -->\nafter\n"

    assert docs._between(text, "x", "new\n") == text.replace("old", "new")


def test_the_cells_of_a_figure_share_one_row_and_what_is_not_verified_has_none() -> None:
    cells = [Check.near(f"cell {ours}", ours, 0.5, 0.02, source="measured") for ours in (0.5, 0.51, 0.485)]
    others = Check.near("old", 1.0, 9.0, 0.1, source="unverified"), Check.at_least("new", 1.0, 0.5)
    rows = list(docs.result_rows("lerc", Report("r", "papers", {}, 1, checks=(*cells, *others))))

    assert rows == [
        ("LERC", "3 cells of the zip figure, largest difference", "0.015", "at most 0.02", "measured", "holds"),
        ("LERC", "new", "1.000", "at least 0.5", "our bar", "holds"),
    ]


def test_cells_with_tolerances_of_their_own_are_compared_in_tolerances() -> None:
    cells = (Check.near("a", 1.0, 1.5, 1.0, source="measured"), Check.near("b", 0.1, 0.108, 0.01, source="measured"))
    (row,) = docs.result_rows("other", Report("r", "papers", {}, 1, checks=cells))

    assert row[1] == "2 cells of the reference, largest difference in tolerances"
    assert row[2:] == ("0.800", "at most 1", "measured", "holds")


def test_a_bound_on_what_was_measured_elsewhere_has_a_row_of_its_own() -> None:
    checks = (Check.near("a", 1.0, 1.5, 1.0, source="measured"), Check.at_most("factor", 1.3, 3.0, source="measured"))
    rows = list(docs.result_rows("other", Report("r", "papers", {}, 1, checks=checks)))

    assert [row[1:] for row in rows] == [
        ("1 cells of the reference, largest difference", "0.500", "at most 1", "measured", "holds"),
        ("factor", "1.300", "at most 3", "measured", "holds"),
    ]


def test_the_readme_counts_what_holds_and_names_what_fails() -> None:
    checks = (
        Check.at_least("kept", 1.0, 0.5),
        Check.near("gain", 0.61, 0.6, 0.02, source="paper"),
        Check.at_most("days", 8.0, 0.0),
        Check.at_most("not ours", 8.0, 0.0, source="unverified"),
    )
    table = docs.results_table({"gfs": Report("r", "papers", {}, 1, checks=checks)})

    failing = "days 8 (at most 0); not ours 8 (at most 0; not verified, not counted)"
    assert table.splitlines()[2:] == [f"| GFS | 2 of 3 | kept: 1.000 (at least 0.5) | {failing} |"]


def test_the_check_that_the_readme_quotes_is_one_of_the_paper() -> None:
    results = (ROOT / "docs/reference/results.md").read_text("utf-8")

    assert set(docs.SHOWN) == set(PAPERS)
    assert [name for paper, name in docs.SHOWN.items() if f"| {paper.upper()} | {name}" not in results] == []


def test_fragments_are_gathered_by_kind(tmp_path: Path) -> None:
    (tmp_path / "b.fixed.md").write_text("Now it\nworks.\n")
    (tmp_path / "a.added.md").write_text("A thing.\n")
    (tmp_path / "README.md").write_text("How to.\n")

    assert docs.changelog(tmp_path) == "\n### Added\n\n- A thing.\n\n### Fixed\n\n- Now it works.\n\n"


@pytest.mark.parametrize(
    ("old", "new", "agree"),
    [
        ("gap 2.287 at most 6", "gap 2.289 at most 6", True),
        ("gap 2.287 at most 6", "gap 2.387 at most 6", False),
        ("gap 2.287 at most 6", "gap 2.287 at most 7", False),
        ("gap 2.287", "gap 2.287 and 1.000", False),
    ],
)
def test_results_may_differ_in_their_last_digits_only(old: str, new: str, agree: bool) -> None:
    assert docs._agree(old, new) is agree


def test_every_fragment_has_a_kind_we_know() -> None:
    names = [path.name for path in (ROOT / "changes").iterdir() if path.name != "README.md"]

    assert all(name.split(".")[1:] in [[kind, "md"] for kind in docs.KINDS] for name in names)


def test_the_readme_quotes_the_newest_reports_of_every_engine() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    cells = [cell for row in headlines.table()[1] for cell in row]

    assert [cell for cell in cells if cell not in readme] == []
    assert (ROOT / "docs/takeup.svg").read_text("utf-8") == headlines.picture()


def test_the_newest_report_is_the_one_of_the_latest_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for day, ours in (("2026-11-09", 1), ("2026-11-10", 2)):
        (tmp_path / f"x_amd_{day}.md").write_text(f"| who | median (s) |\n| --- | --- |\n| takeup | {ours},000.5 |\n")
    monkeypatch.setattr(headlines, "RESULTS", tmp_path)

    assert headlines.newest("x").number("median (s)", who="takeup") == 2000.5
    with pytest.raises(AssertionError, match="no row with"):
        headlines.newest("x").number("mean (s)", who="takeup")


# Names ----------------------------------------------------------------------------------------------------------------


def contexts(context: click.Context) -> Iterator[click.Context]:
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None
            yield from contexts(click.Context(command, context, name))


ROOT_CONTEXT = click.Context(command_tree, info_name="takeup", **command_tree.context_settings)


@pytest.mark.parametrize("context", list(contexts(ROOT_CONTEXT)), ids=lambda context: context.command_path)
def test_every_command_and_option_is_in_the_reference(context: click.Context) -> None:
    reference = (ROOT / "docs/reference/cli.md").read_text("utf-8")
    _, found, rest = reference.partition(f"## {context.command_path}\n")
    section = rest.partition("\n## ")[0]
    options = [option for option in context.command.params if isinstance(option, click.Option)]

    assert found
    assert context.command.help
    assert all(f"`{option.opts[0]}`" in section and option.help for option in options)


@pytest.mark.parametrize(("domain", "name"), pairs(NAMES))
def test_everything_with_a_name_has_a_row_in_its_domain(domain: str, name: str) -> None:
    assert f"\n| `{name}` | " in (ROOT / f"src/takeup/{domain}/README.md").read_text("utf-8")


@pytest.mark.parametrize(("domain", "name"), pairs(ON_THE_COMMAND_LINE))
def test_the_help_names_everything_that_can_be_named(domain: str, name: str) -> None:
    reference = (ROOT / "docs/reference/cli.md").read_text("utf-8").partition(f"## takeup {domain}\n")[2]

    assert re.search(rf"\b{name}\b", reference)


@pytest.mark.parametrize("domain", [name for name in COMMANDS if name in RUNNERS])
def test_every_domain_on_the_command_line_is_described(domain: str) -> None:
    assert f"[{domain}]({headlines.URL}/src/takeup/{domain}/README.md)" in (ROOT / "README.md").read_text("utf-8")
    assert (ROOT / f"docs/concepts/{domain}.md").exists()


@pytest.mark.parametrize("paper", PAPERS)
def test_every_paper_has_results_in_the_readme_and_is_named_in_the_help(paper: str) -> None:
    reference = (ROOT / "docs/reference/cli.md").read_text("utf-8").partition("## takeup reproduce\n")[2]

    assert f"\n| {paper.upper()} | " in (ROOT / "README.md").read_text("utf-8")
    assert re.search(rf"\b{paper}\b", reference)


# Links ----------------------------------------------------------------------------------------------------------------


def broken_links(page: Path, text: str) -> list[str]:
    """Links to files that are not there: relative ones, and those of README to this repository, which are absolute."""
    targets = [target for target in LINK.findall(FENCE.sub("", text)) if not target.startswith("#")]
    ours = [target for target in targets if not target.startswith("http")]
    broken = [target for target in ours if not (page.parent / target.partition("#")[0]).exists()]
    places = [target.removeprefix(headlines.URL + "/") for target in targets if target.startswith(headlines.URL)]
    places += [target.removeprefix(headlines.RAW + "/") for target in targets if target.startswith(headlines.RAW)]
    return broken + [place for place in places if not (ROOT / place).exists()]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text("utf-8")) == []


def test_a_broken_link_is_found() -> None:
    assert broken_links(ROOT / "README.md", "[here](LICENSE) and [there](nowhere.md#x)") == ["nowhere.md#x"]


def test_a_broken_absolute_link_is_found() -> None:
    assert broken_links(ROOT / "README.md", f"[here]({headlines.URL}/nowhere.md)") == ["nowhere.md"]


def test_the_links_of_the_readme_work_on_a_package_index() -> None:
    readme = FENCE.sub("", (ROOT / "README.md").read_text("utf-8"))

    assert [target for target in LINK.findall(readme) if not target.startswith("https://")] == []


def test_every_guide_and_concept_is_in_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text("utf-8")
    built = {"index.md", "api.md"}
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md") if path.name not in built]

    assert pages
    assert [str(page) for page in pages if f"({page.as_posix()})" not in index] == []


# Commands and programs that are shown ---------------------------------------------------------------------------------


def shown_lines(page: Path, program: str) -> Iterator[str]:
    """Lines in code blocks that call the program."""
    for _, body in FENCE.findall(page.read_text("utf-8")):
        yield from (line for line in body.splitlines() if line.startswith(f"{program} "))


SHOWN = [(name_of(page), line) for page in PAGES for line in shown_lines(page, "takeup")]


@pytest.mark.parametrize(("page", "line"), SHOWN)
def test_every_takeup_line_is_understood(page: str, line: str) -> None:
    context: click.Context = ROOT_CONTEXT
    words = shlex.split(line, comments=True)[1:]
    while isinstance(context.command, click.Group):
        command = context.command.get_command(context, words[0])
        assert command is not None, f"{page}: no command {words[0]}"
        context, words = click.Context(command, context, words[0]), words[1:]
    parsed = context.command.make_context(context.info_name, words, ROOT_CONTEXT)

    assert parsed.params


def test_files_of_this_repository_that_commands_name_exist() -> None:
    words = [word for _, line in SHOWN for word in shlex.split(line) if word.startswith("tests/")]

    assert words
    assert [word for word in words if not (ROOT / word).exists()] == []


def test_every_make_line_names_a_target() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    used = {line.split()[1] for page in PAGES for line in shown_lines(page, "make")}

    assert {"run", "test"} <= used <= targets


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_every_example_prints_what_stands_beside_it(example: Path, tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, example], check=False, cwd=tmp_path, capture_output=True, text=True)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == example.with_suffix(".out").read_text("utf-8")


def test_the_first_program_of_the_readme_prints_what_stands_below_it(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    program = next(body for language, body in FENCE.findall(readme) if language == "python")
    ran = subprocess.run([sys.executable, "-c", program], check=False, cwd=tmp_path, capture_output=True, text=True)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == readme.partition(program)[2].split("```")[2].lstrip("\n")
    assert ran.stdout == (ROOT / "examples/compare_policies.out").read_text("utf-8")


def test_the_table_of_the_guide_is_what_the_command_says() -> None:
    from takeup.rerun import run_scenario

    guide = (ROOT / "docs/guides/what-if-from-an-event-log.md").read_text("utf-8")
    log = str(ROOT / "tests/caching/data/window-short-of-memory.eventlog.gz")
    policies, sizes = ["spark", "lrc", "dag"], ["recorded", "50%"]
    scenario = {"domain": "caching", "verb": "whatif", "trace": log, "policies": policies, "capacities": sizes}
    report = run_scenario({**scenario, "miss": "level", "profile": "online"}, "guide", quiet=True)

    for policy, memory_mb, _, hits, low, high, recomputed, *_, ratio, least, most in report.tables[0].rows:
        cells = f"{memory_mb:.1f} | {hits:.3f} | {low:.3f} | {high:.3f} | {recomputed} | {ratio:.3f}"
        assert f"| {policy} | {cells} | {least:.3f} | {most:.3f} |\n" in guide


def test_the_example_worked_by_hand_is_the_one_that_is_printed() -> None:
    concept = (ROOT / "docs/concepts/caching.md").read_text("utf-8")
    printed = (ROOT / "examples/group_table.out").read_text("utf-8")
    rows = [re.findall(r"\d/\d", line) for line in concept.splitlines() if re.search(r"\d/\d", line)]

    assert rows == [re.findall(r"\d/\d", line) for line in printed.splitlines() if re.search(r"\d/\d", line)]


def test_what_streaming_works_by_hand_is_what_is_printed() -> None:
    concept = (ROOT / "docs/concepts/streaming.md").read_text("utf-8")
    by_hand, by_solver, *table = (ROOT / "examples/stall_probability.out").read_text("utf-8").splitlines()
    printed = re.findall(r"0\.\d{4}", by_hand)

    assert printed == re.findall(r"0\.\d{4}", by_solver)
    assert re.findall(r"^\| (?:together|alone) \| .* = (0\.\d{4}) \|$", concept, re.MULTILINE)[-2:] == printed
    for line in table:
        start, stalls, wait = re.findall(r"[\d.]+", line)
        assert f"| {start} s | {stalls} | {wait} s |\n" in concept


def test_stalls_on_a_link_of_two_time_scales_are_what_the_concept_says() -> None:
    concept = (ROOT / "docs/concepts/streaming.md").read_text("utf-8")
    cell, swing = Cell(2.8e6, 360e3, 0.1, 10), np.array([[-1.0, 1.0], [1.0, -1.0]])
    assert f"| constant | {solve_cell(cell, Player(5.0)).stall_probability.value:.4f} |\n" in concept

    for stay_s in (0.1, 1, 10, 60):
        varying = replace(cell, capacity=Capacity(np.array([0.5, 1.5]), swing / stay_s))
        assert f"| {stay_s} s | {solve_cell(varying, Player(5.0)).stall_probability.value:.4f} |\n" in concept


def test_the_stalls_of_the_guide_are_what_the_command_says() -> None:
    from takeup.rerun import run_scenario

    guide = (ROOT / "docs/guides/predict-from-a-throughput-log.md").read_text("utf-8")
    question = {"domain": "streaming", "verb": "predict", "arrivals_per_s": [0.1, 0.12], "start_s": [2, 5, 10]}
    log = str(ROOT / "tests/streaming/data/drive.csv")
    fitted = run_scenario(question | {"log": log}, "guide", quiet=True).tables[0].rows
    constant = (
        run_scenario(question | {"capacity_bps": read_log(Path(log)).mean_bps}, "guide", quiet=True).tables[0].rows
    )

    for model, mean in zip(fitted, constant, strict=True):
        assert f"| {model[0]:g} | {model[2]:g} s | {mean[4]:.4f} | {model[4]:.4f} | " in guide


def test_the_thresholds_and_limits_of_the_guide_are_what_the_commands_say() -> None:
    from takeup.rerun import run_scenario

    guide = " ".join((ROOT / "docs/guides/choose-a-start-threshold.md").read_text("utf-8").split())
    best = run_scenario({"domain": "streaming", "verb": "optimise"}, "guide", quiet=True).tables[0].rows
    limits = run_scenario({"domain": "streaming", "verb": "size"}, "guide", quiet=True).tables[0].rows
    arrivals, capacity, users = (row[1] for row in limits)

    assert f"it is {best[0][2]:.1f} s" in guide
    assert f"{arrivals:.3f} arrivals per second, {capacity:.2f} Mbit/s, {users:.0f} users" in guide


def test_the_scenario_and_the_task_table_of_the_guides_can_be_run(tmp_path: Path) -> None:
    from takeup.core.scenario import load_scenario
    from takeup.rerun import run_scenario

    pages = [ROOT / f"docs/guides/{name}.md" for name in ("compare-policies", "bring-your-own-trace")]
    blocks = {language: body for page in pages for language, body in FENCE.findall(page.read_text("utf-8"))}
    (tmp_path / "scenario.toml").write_text(blocks["toml"])
    (tmp_path / "jobs.csv").write_text(blocks["csv"])
    scenario = run_scenario(load_scenario(tmp_path / "scenario.toml"), "guide", quiet=True)
    trace = {"domain": "caching", "verb": "compare", "trace": str(tmp_path / "jobs.csv"), "capacities": ["12MB"]}

    assert len(scenario.tables[0].rows) == 4
    assert run_scenario(trace, "guide", quiet=True).tables[0].rows[0][0] == "lru"
