"""Progress for people, on stderr only: a bar on a terminal, a line every two seconds anywhere else."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

Tick = Callable[[], None]

LINE_EVERY_S = 2.0


@contextmanager
def progress(
    title: str,
    total: int,
    *,
    quiet: bool = False,
    stream: TextIO | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Iterator[Tick]:
    """Within the block, call the function it gives once for each of the `total` steps done."""
    stream = sys.stderr if stream is None else stream
    if quiet:
        yield lambda: None
    elif stream.isatty():
        with _bar(title, total, stream) as tick:
            yield tick
    else:
        lines = _ProgressLines(title, total, stream, monotonic, monotonic())
        yield lines.tick
        lines.close()


@contextmanager
def _bar(title: str, total: int, stream: TextIO) -> Iterator[Tick]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    looks = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*looks, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)


@dataclass(slots=True)
class _ProgressLines:
    """Lines for a log file: none for quick work, few for slow work."""

    title: str
    total: int
    stream: TextIO
    monotonic: Callable[[], float]
    last_line_s: float
    num_done: int = 0
    is_slow: bool = False

    def tick(self) -> None:
        self.num_done += 1
        now_s = self.monotonic()
        if now_s - self.last_line_s >= LINE_EVERY_S and self.num_done < self.total:
            self._write(now_s)

    def close(self) -> None:
        now_s = self.monotonic()
        if self.is_slow or now_s - self.last_line_s > LINE_EVERY_S:
            self._write(now_s)

    def _write(self, now_s: float) -> None:
        self.is_slow = True
        self.last_line_s = now_s
        print(f"{self.title}: {self.num_done} of {self.total}", file=self.stream, flush=True)
