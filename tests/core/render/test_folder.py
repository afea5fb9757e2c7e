"""Reports as folders: which files, under which names, and nothing half-written."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from takeup.core.render import FORMATS, write
from takeup.core.report import Report, Series
from takeup.errors import BadInput, OutputFailed, UnknownName


def test_all_formats_are_written_under_plain_names(small_report: Report, tmp_path: Path) -> None:
    paths = write(small_report, tmp_path / "out")

    names = ["report.json", "report.html", "run-time-by-size.png", "run-time-by-size.svg"]
    assert [path.name for path in paths] == names
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(names)
    assert Report.load(tmp_path / "out" / "report.json") == small_report


def test_only_the_formats_asked_for_are_written(small_report: Report, tmp_path: Path) -> None:
    write(small_report, tmp_path, formats=("json", "png"))

    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json", "run-time-by-size.png"]


def test_an_unknown_format_is_refused_before_anything_is_written(small_report: Report, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="no format 'jsn'; did you mean 'json'"):
        write(small_report, tmp_path / "out", formats=("html", "jsn"))
    assert list(tmp_path.iterdir()) == []


def test_chart_names_are_unique_and_safe(small_report: Report, tmp_path: Path) -> None:
    titles = ["Hits", "hits!", "../../etc/passwd", "Größe", "…", "x" * 300]
    series = tuple(Series(title, "x", "y", ({"x": 1, "y": 1},)) for title in titles)

    paths = write(replace(small_report, series=series), tmp_path, formats=("svg",))

    names = ["hits.svg", "hits-2.svg", "etc-passwd.svg", "groe.svg", "chart.svg", "x" * 60 + ".svg"]
    assert [path.name for path in paths] == names
    assert {path.parent for path in paths} == {tmp_path}


def test_a_report_that_cannot_be_drawn_leaves_nothing(small_report: Report, tmp_path: Path) -> None:
    broken = replace(small_report, scenario={"rate": float("nan")})

    with pytest.raises(BadInput, match=r"report\.scenario\.rate"):
        write(broken, tmp_path / "out", formats=("html", "json"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("num_good_writes", [0, 1])  # each syncs the file and its folder
def test_a_full_disk_leaves_whole_files_only(
    small_report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_good_writes: int
) -> None:
    calls: list[int] = []

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 2 * num_good_writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)

    with pytest.raises(OutputFailed, match=r"report\.(json|html): No space left on device"):
        write(small_report, tmp_path, formats=("json", "html"))
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"][:num_good_writes]


def test_a_rename_that_fails_leaves_the_old_file(
    small_report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(small_report, tmp_path, formats=("html",))

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", refuse)

    with pytest.raises(OutputFailed, match="No space left on device"):
        write(replace(small_report, title="New"), tmp_path, formats=("html",))
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert "<title>LRC against LRU</title>" in (tmp_path / "report.html").read_text()


def test_hostile_text_can_be_written_in_every_format(hostile_report: Report, tmp_path: Path) -> None:
    assert len(write(hostile_report, tmp_path)) == len(FORMATS)
