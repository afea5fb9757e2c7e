"""Settings for the whole suite."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from command_line import Outcome, Run
from takeup.core import compiled

# Without bytecode (PYTHONDONTWRITEBYTECODE is set and uv compiles none), every server, replica and driver that a test
# starts would compile torch from source, which takes longer than the test. The suite caches bytecode in a folder of its
# own.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # two workers share two cores, and our matrices are small

# No deadlines: tests never judge by wall time. CI draws the same examples every time, other runs draw new ones, and
# `make test-random` draws new ones and prints the seed.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

# Long groups begin first, so that no worker is left alone with one. Papers compile most kernels on one worker while the
# other runs engines. Watched ranks run concurrently with papers, which need one core, and not with other engines.
FIRST = ("papers", "watch", "diffusers", "spark", "pytorch", "slurm")
WITH_KERNELS = ("caching", "cluster", "edge", "streaming", "training")


# In CI a skipped test is a failure, unless its reason begins with one of these.
ALLOWED_SKIPS: dict[str, str] = {
    "needs github.com/itu-p1203/itu-p1203": "it is on no package index, and its licence is for research only",
}


@pytest.fixture(autouse=True, scope="session")
def kernels_stay_compiled() -> None:
    """For a small file `takeup try` runs kernels as plain Python, and then all that are imported in its process."""
    compiled.run_plain = lambda: None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a domain stay on one worker, which compiles its kernels once; some have a smaller group."""
    for item in items:
        domain = item.path.relative_to(Path(__file__).parent).parts[0]
        if any(marker.args == ("papers",) for marker in item.iter_markers("xdist_group")):
            item.add_marker(pytest.mark.paper)
        if domain in WITH_KERNELS and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(domain))
    items.sort(key=_begins)


def _begins(item: pytest.Item) -> int:
    """Where the group of a test stands in the order in which groups begin."""
    marker = item.get_closest_marker("xdist_group")
    order = (*FIRST, *WITH_KERNELS)
    return order.index(marker.args[0]) if marker is not None and marker.args[0] in order else len(order)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """In CI, a skip that is not allowed fails its test."""
    report: pytest.TestReport = (yield).get_result()
    _fail_if_not_allowed(report, item.nodeid)


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, None]:
    """The same for a module that skips itself, as `importorskip` does."""
    report: pytest.CollectReport = (yield).get_result()
    _fail_if_not_allowed(report, collector.nodeid)


def _fail_if_not_allowed(report: pytest.TestReport | pytest.CollectReport, name: str) -> None:
    if os.environ.get("CI") and report.outcome == "skipped" and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if not reason.startswith(tuple(ALLOWED_SKIPS)):
            report.outcome = "failed"
            report.longrepr = f"{name} was skipped in CI: {reason}\n(allowed: ALLOWED_SKIPS in tests/conftest.py)"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run `takeup` in this process, in an empty folder."""
    from takeup.cli import main  # only tests of commands pay for it

    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["takeup", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), captured.out, captured.err)

    return call
