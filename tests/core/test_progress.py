"""Progress: silence for quick work, few lines for slow work, a bar only for a terminal."""

from __future__ import annotations

import io

import pytest

from takeup.core.progress import progress


class Terminal(io.StringIO):
    """A stream that claims that a person is watching."""

    def isatty(self) -> bool:
        return True


def lines_of(steps_s: list[float], end_s: float = 0.0, total: int | None = None) -> list[str]:
    """What is written when each step takes that long."""
    now_s = [50.0]
    stream = io.StringIO()
    with progress("compare", total or len(steps_s), stream=stream, monotonic=lambda: now_s[0]) as tick:
        for step_s in steps_s:
            now_s[0] += step_s
            tick()
        now_s[0] += end_s
    return stream.getvalue().splitlines()


def test_quick_work_is_silent() -> None:
    assert lines_of([0.1] * 19) == []


def test_slow_work_gets_a_line_every_two_seconds_and_a_closing_line() -> None:
    assert lines_of([0.5] * 10) == ["compare: 4 of 10", "compare: 8 of 10", "compare: 10 of 10"]


def test_one_slow_step_gets_only_the_closing_line() -> None:
    assert lines_of([3.0]) == ["compare: 1 of 1"]


def test_a_slow_end_is_told() -> None:
    assert lines_of([0.1, 0.1], end_s=5) == ["compare: 2 of 2"]


def test_work_that_stops_short_says_how_far_it_came() -> None:
    assert lines_of([3.0], total=4) == ["compare: 1 of 4", "compare: 1 of 4"]


def fail_after_one_tick(stream: io.StringIO) -> None:
    now_s = iter([0.0, 10.0, 20.0])
    with progress("compare", 5, stream=stream, monotonic=lambda: next(now_s)) as tick:
        tick()
        raise ZeroDivisionError


def test_a_failure_passes_through_without_a_closing_line() -> None:
    stream = io.StringIO()
    with pytest.raises(ZeroDivisionError):
        fail_after_one_tick(stream)

    assert stream.getvalue() == "compare: 1 of 5\n"


def test_quiet_says_nothing_however_slow() -> None:
    stream = Terminal()
    now_s = iter(range(0, 1000, 100))
    with progress("compare", 2, quiet=True, stream=stream, monotonic=lambda: next(now_s)) as tick:
        tick()
        tick()

    assert stream.getvalue() == ""


def test_a_terminal_gets_a_bar_with_title_and_count() -> None:
    stream = Terminal()
    with progress("compare", 3, stream=stream) as tick:
        for _ in range(3):
            tick()

    assert "compare" in stream.getvalue()
    assert "3/3" in stream.getvalue()


def test_nothing_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = iter(range(0, 1000, 10))
    with progress("compare", 2, monotonic=lambda: next(now_s)) as tick:
        tick()
        tick()

    assert capsys.readouterr().out == ""


def test_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = iter(range(0, 1000, 10))
    with progress("compare", 2, monotonic=lambda: next(now_s)) as tick:
        tick()
        tick()

    assert capsys.readouterr().err == "compare: 1 of 2\ncompare: 2 of 2\n"
