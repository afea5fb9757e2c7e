"""Settings for the whole suite."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from command_line import Outcome, Run

# Where nobody may write bytecode (and uv installs none), every server, replica and driver that a test starts would
# compile torch and its like anew, which takes longer than the test. For the suite it is kept apart, in a folder that
# pytest has anyway.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # two workers share two cores, and our matrices are small

# Tests never judge by wall time. CI looks at the same examples every time; elsewhere each run looks at new ones.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

# Long groups begin first, so that no worker is left alone with one. Papers compile most kernels on one worker while the
# other has engines. Ranks that are watched run beside papers, which need one core, and not beside other engines.
FIRST = ("papers", "watch", "diffusers", "spark", "pytorch", "slurm")
WITH_KERNELS = ("caching", "cluster", "edge", "streaming", "training")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a domain stay on one worker, which compiles its kernels once; some have a smaller group."""
    for item in items:
        domain = item.path.relative_to(Path(__file__).parent).parts[0]
        if domain in WITH_KERNELS and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(domain))
    items.sort(key=_begins)


def _begins(item: pytest.Item) -> int:
    """Where the group of a test stands in the order in which groups begin."""
    marker = item.get_closest_marker("xdist_group")
    order = (*FIRST, *WITH_KERNELS)
    return order.index(marker.args[0]) if marker is not None and marker.args[0] in order else len(order)


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
