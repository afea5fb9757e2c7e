"""The command lines of the guides, pasted one after the other into an empty folder: each ends well.

A line that needs something of the reader's own, or an engine that other tests start, is named with the reason.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from command_line import Run

ROOT = Path(__file__).parent.parent
PAGES = [*sorted((ROOT / "docs/guides").glob("*.md")), ROOT / "docs/gallery.md"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
IN_TABLE = re.compile(r"^\| [^|]+ \| `(takeup [^`]+)` \|$", re.MULTILINE)
SAVED = re.compile(r"Save this as `([\w.]+)`:\s+```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
NOT_PASTED = {
    r"--sacct jobs\.": "records of the reader's own; tests/cluster/experiment/test_cluster_whatif.py",
    r"--engine (slurm|kubernetes)": "a cluster; tests/cluster/engines",
    r"^takeup serve ": "runs until it is stopped; tests/serving/server",
    r"^takeup training (watch|run|lab)": "processes of torchrun; tests/training",
    r"TRACE\.parquet|TEMPLATE|FOLDER": "a name to be replaced",
    r"--on tcp:": "a cluster of Dask; tests/core/test_sweep.py",
    r"a100_2296": "minutes; tests/cluster",
    r"^takeup streaming live": "replays many sessions; tests/streaming",
    r"lru,mru": "a package of another author; tests/core/test_plugins.py",
}


def lines(page: Path) -> list[str]:
    """The lines of a page that call takeup, in order, in blocks and in tables."""
    text = page.read_text("utf-8")
    shown = [line for language, body in FENCE.findall(text) if not language for line in body.splitlines()]
    return [line for line in shown if line.startswith("takeup ")] + IN_TABLE.findall(text)


def reason_not_to_paste(line: str) -> str:
    return next((reason for pattern, reason in NOT_PASTED.items() if re.search(pattern, line)), "")


PASTED = [page for page in PAGES if any(not reason_not_to_paste(line) for line in lines(page))]


@pytest.mark.engine
@pytest.mark.timeout(1800)  # compiles kernels the first time
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # diffusers with numpy 2.4
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("page", PASTED, ids=lambda page: page.stem)
def test_the_lines_of_a_guide_can_be_pasted_one_after_the_other(page: Path, run: Run, tmp_path: Path) -> None:
    for name in ("tests", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name, body in SAVED.findall(page.read_text("utf-8")):
        (tmp_path / name).write_text(body)
    if page.stem == "gallery":
        assert run("example", "--all").code == 0
    for line in lines(page):
        if not reason_not_to_paste(line):
            outcome = run(*shlex.split(line, comments=True)[1:])
            assert outcome.code == 0, f"{line}\n{outcome.err}"


def test_no_reason_is_left_over() -> None:
    everything = [line for page in PAGES for line in lines(page)]

    assert [pattern for pattern in NOT_PASTED if not any(re.search(pattern, line) for line in everything)] == []
    assert len(everything) >= 45


def test_a_guide_writes_the_samples_it_reads() -> None:
    from takeup.example import SAMPLES

    for page in PAGES:
        if page.stem not in {"gallery", "file-formats"}:
            written = [word for line in lines(page) if line.startswith("takeup example") for word in line.split()[2:]]
            named = {word for line in lines(page) for word in line.split() if word in SAMPLES}
            assert named == set(written), page.name
