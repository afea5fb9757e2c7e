"""Compiled code beside its sources: dropped when a source is newer, kept otherwise; and kernels that compute."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from takeup.core.compiled import drop_stale_code, inner, kernel


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sources from second 100 and compiled code of the first, from second 200."""
    (tmp_path / "__pycache__").mkdir()
    for name, second in (
        ("first.py", 100),
        ("second.py", 100),
        ("__pycache__/first.nbi", 200),
        ("__pycache__/first.1.nbc", 200),
        ("__pycache__/first.pyc", 50),
    ):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (second, second))
    return tmp_path


def names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "__pycache__").iterdir()}


def drop(folder: Path) -> None:
    drop_stale_code(str(folder / "__init__.py"))


def test_code_newer_than_all_sources_is_kept(folder: Path) -> None:
    drop(folder)

    assert names(folder) == {"first.nbi", "first.1.nbc", "first.pyc"}


@pytest.mark.parametrize("changed", ["first.py", "second.py"])
def test_a_newer_source_anywhere_in_the_folder_drops_all_compiled_code(folder: Path, changed: str) -> None:
    os.utime(folder / changed, (300, 300))
    drop(folder)

    assert names(folder) == {"first.pyc"}  # not ours


def test_one_stale_file_takes_the_others_with_it(folder: Path) -> None:
    os.utime(folder / "__pycache__" / "first.nbi", (90, 90))
    drop(folder)

    assert names(folder) == {"first.pyc"}


def test_a_folder_without_compiled_code_is_fine(tmp_path: Path) -> None:
    (tmp_path / "only.py").touch()
    drop(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["only.py"]


def test_a_folder_that_cannot_be_read_or_changed_is_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    os.utime(folder / "first.py", (300, 300))
    monkeypatch.setattr(Path, "unlink", refuse)
    drop(folder)
    monkeypatch.setattr(Path, "stat", refuse)
    drop(folder)

    monkeypatch.undo()
    assert names(folder) == {"first.nbi", "first.1.nbc", "first.pyc"}


@pytest.mark.parametrize("place", ["not there", "empty"])
def test_a_folder_without_sources_is_silent(tmp_path: Path, place: str) -> None:
    (tmp_path / "empty").mkdir()
    drop(tmp_path / place)

    assert (tmp_path / "empty").is_dir()


def test_a_kernel_computes_what_the_function_says() -> None:
    @inner
    def double(number: int) -> int:
        return 2 * number

    @kernel
    def quadruple(number: int) -> int:
        return double(double(number))

    assert quadruple(5) == 20


def test_a_kernel_divides_as_arrays_do() -> None:
    @kernel
    def ratio(above: float, below: float) -> float:
        return above / below

    assert ratio(1.0, 0.0) == float("inf")
