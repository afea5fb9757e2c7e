"""Ask again, beside a command that takes its time, and take the first answer.

Every five seconds slurmctld gets numbers for new jobs from its accounting database. Whoever changes such a job in that
moment is put to sleep for a whole second, even if the number comes a moment later; who asks then is served at once. So
a command that may be given twice is given again, and late answers are waited for before anything else is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["Insistence"]

Answer = TypeVar("Answer")
PAUSES_S = (0.15, 0.25, 0.4)


@dataclass(slots=True)
class Insistence(Generic[Answer]):
    """Commands that are given once more after each of these pauses, as long as no answer came."""

    call: Callable[[Sequence[str]], Answer]
    pauses_s: tuple[float, ...] = PAUSES_S
    _late: list[Future[Answer]] = field(default_factory=list, init=False)

    def ask(self, arguments: Sequence[str]) -> Answer:
        """The first answer; further ones may be on their way when this returns."""
        pool = ThreadPoolExecutor(len(self.pauses_s) + 1)
        asked = [pool.submit(self.call, arguments)]
        for pause_s in self.pauses_s:
            if wait(asked, pause_s, FIRST_COMPLETED).done:
                break
            asked.append(pool.submit(self.call, arguments))
        pool.shutdown(wait=False)
        answered = wait(asked, return_when=FIRST_COMPLETED).done
        self._late += [each for each in asked if each not in answered]
        return answered.pop().result()

    def settle(self) -> None:
        """Wait for what is on its way; what it says does not matter any more."""
        late, self._late = self._late, []
        wait(late)
