"""Compiled code beside its sources: dropped when a source is newer, kept otherwise; and kernels that compute."""

from __future__ import annotations

import ast
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import takeup
from takeup.core.arrays import Floats
from takeup.core.compiled import drop_stale_code, inner, kernel

SOURCES = Path(takeup.__file__).parent
SAFE = {"Floats", "Ints", "None", "bool", "float", "int"}


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


def kernels() -> Iterator[tuple[str, str]]:
    """Every kernel in the sources, with what it returns."""
    for path in SOURCES.rglob("*.py"):
        if "core.compiled" in (text := path.read_text(encoding="utf-8")):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef) and "kernel" in map(ast.unparse, node.decorator_list):
                    assert node.returns is not None
                    yield f"{path.stem}.{node.name}", ast.unparse(node.returns)


def test_kernels_return_what_is_built_without_python_code() -> None:
    found = dict(kernels())
    numbers = {name: returns.removeprefix("tuple[").removesuffix("]").split(", ") for name, returns in found.items()}

    assert len(found) > 30
    assert {name: found[name] for name, parts in numbers.items() if not set(parts) <= SAFE} == {}
    assert [name for name, parts in numbers.items() if len(parts) > 1 and {"Floats", "Ints"} & set(parts)] == []


@kernel
def sum_of_sines(values: Floats, num_rounds: int) -> Floats:
    total = 0.0
    for place in range(num_rounds):
        total += np.sin(values[place % len(values)] + total)
    return values + total


def test_a_signal_handler_may_raise_while_a_kernel_runs() -> None:
    class TooLateError(Exception):
        pass

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLateError

    sum_of_sines(np.ones(3), 1)
    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.05)
        with pytest.raises(TooLateError):
            sum_of_sines(np.ones(3), 20_000_000)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)
