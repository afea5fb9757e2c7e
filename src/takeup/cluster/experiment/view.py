"""A report that is redrawn periodically while work goes on, on a terminal only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from takeup.core.render import to_text
from takeup.core.report import Report

DRAW_EVERY_S = 0.25


@dataclass(slots=True)
class LiveView:
    """The live area of the terminal; the report is built only when a redraw is due."""

    live: Live
    monotonic: Callable[[], float] = time.monotonic
    _drawn_s: float = field(default=-inf, init=False)

    def draw(self, picture: Callable[[], Report]) -> None:
        """Show how things are now, unless that was shown a moment ago."""
        now_s = self.monotonic()
        if now_s - self._drawn_s < DRAW_EVERY_S:
            return
        self._drawn_s = now_s
        console = self.live.console
        text = to_text(picture(), width=console.width, colour=console.color_system is not None)
        self.live.update(Text.from_ansi(text), refresh=True)


@contextmanager
def live_view(*, quiet: bool, stream: TextIO | None = None) -> Iterator[LiveView | None]:
    """A view for the duration of the block; None if `quiet` or if the stream is not a terminal."""
    stream = sys.stderr if stream is None else stream
    if quiet or not stream.isatty():
        yield None
        return
    console = Console(file=stream)
    with Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop") as live:
        yield LiveView(live)
