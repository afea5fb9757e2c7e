"""Starting a program on ranks: what is started, what is refused, and that every rank really runs."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from takeup.cli import takeup
from takeup.errors import BadInput, MissingEngine
from takeup.training.pipelines.engine import torchrun
from takeup.training.pipelines.engine.torchrun import command_of, start

GUIDE = Path(__file__).parents[4] / "docs/guides/adaptive-pipeline.md"
FENCE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.touch()
    return path


def test_a_dry_run_prints_what_would_be_started(program: Path) -> None:
    result = CliRunner().invoke(takeup, ["training", "run", "--ranks", "3", "--dry-run", str(program), "--steps", "7"])

    words = shlex.split(result.stdout)
    assert result.exit_code == 0
    assert words[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert words[-4:] == ["--nproc-per-node=3", str(program), "--steps", "7"]


def test_a_program_that_is_not_there_and_no_ranks_are_refused(program: Path) -> None:
    with pytest.raises(BadInput, match=r"there is no program nowhere\.py"):
        command_of(Path("nowhere.py"), 4, [])
    with pytest.raises(BadInput, match="the number of ranks is 0"):
        command_of(program, 0, [])


def test_without_torch_the_error_says_what_to_install(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("takeup.core.extras.find_spec", lambda name: None)

    with pytest.raises(MissingEngine, match="pip install"):
        start(program, 2, [])


@pytest.mark.engine
@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: pip install 'takeup[torch]'")
@pytest.mark.xdist_group("pytorch")
def test_the_program_of_the_guide_runs_on_every_rank_and_ends_well(
    program: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program.write_text(FENCE.findall(GUIDE.read_text("utf-8"))[0], encoding="utf-8")

    result = CliRunner().invoke(takeup, ["training", "run", "--ranks", "2", str(program)])
    said = capfd.readouterr()

    assert result.exit_code == 0, said.err  # also what is left to do when a process ends
    assert "after 30 steps" in said.out


def test_a_program_that_fails_is_told_by_the_exit_code(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchrun, "start", lambda *arguments: 3)

    assert CliRunner().invoke(takeup, ["training", "run", str(program)]).exit_code == 1
