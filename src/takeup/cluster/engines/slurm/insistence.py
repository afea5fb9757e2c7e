"""Hedged requests: re-send a slow idempotent command, and take the first answer.

Every five seconds slurmctld fetches IDs for new jobs from its accounting database. A command that changes such a job at
that moment sleeps for a whole second, even if the ID arrives a moment later; a command sent then is served at once. So
an idempotent command is sent again, and late answers are awaited before anything else is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Answer = TypeVar("Answer")
PAUSES_S = (0.15, 0.25, 0.4)


@dataclass(slots=True)
class HedgedCalls(Generic[Answer]):
    """Hedged calls: a command is sent again after each of `pauses_s`, as long as no answer has arrived."""

    send: Callable[[Sequence[str]], Answer]
    pauses_s: tuple[float, ...] = PAUSES_S
    _late: list[Future[Answer]] = field(default_factory=list, init=False)

    def call(self, arguments: Sequence[str]) -> Answer:
        """The first answer; duplicates may still be in flight when this returns."""
        pool = ThreadPoolExecutor(len(self.pauses_s) + 1)
        asked = [pool.submit(self.send, arguments)]
        for pause_s in self.pauses_s:
            if wait(asked, pause_s, FIRST_COMPLETED).done:
                break
            asked.append(pool.submit(self.send, arguments))
        pool.shutdown(wait=False)
        answered = wait(asked, return_when=FIRST_COMPLETED).done
        self._late += [each for each in asked if each not in answered]
        return answered.pop().result()

    def settle(self) -> None:
        """Wait for duplicates in flight; their answers are discarded."""
        late, self._late = self._late, []
        wait(late)
