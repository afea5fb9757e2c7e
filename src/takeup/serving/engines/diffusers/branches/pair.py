"""Two step engines that go in step: what one is asked, both are asked, at the same boundary.

Before every step rank 0 tells rank 1 what came in, what was withdrawn, and what time it is. All else follows on both
sides from the same facts: who shares a call, who is late, when a request is done. LoRAs are loaded by each rank for
itself, and felt from the first step on at which both have them: `Loras(..., agree=exchange.agree)`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from takeup.serving.engines.diffusers.branches.exchange import Exchange
from takeup.serving.engines.diffusers.steps import StepEngine
from takeup.serving.engines.diffusers.tickets import OnStep, Ticket
from takeup.serving.model import Request

__all__ = ["Follower", "Leader", "SharedClock"]

NAP_S = 0.001


class SharedClock:
    """The time as rank 0 tells it. Give one to the engine of each rank."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True, slots=True)
class _Word:
    """What rank 0 says before a step."""

    now_s: float
    requests: tuple[Request, ...]
    withdrawn: tuple[int, ...]
    is_last: bool = False


class Leader:
    """Rank 0. `submit` and `cancel` from any thread; `advance`, `run` and `stop` from one.

    A ticket is withdrawn by `cancel` of the leader, so that the other rank hears of it.
    """

    def __init__(
        self,
        engine: StepEngine,
        exchange: Exchange,
        clock: SharedClock,
        time_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._exchange, self._clock, self._time_s = engine, exchange, clock, time_s
        self._lock = threading.RLock()
        self._new: list[Request] = []
        self._leaving: list[Ticket] = []

    def submit(self, request: Request, on_step: OnStep | None = None) -> Ticket:
        """Prepare the request here and hand it to both ranks; waits for the end of a step."""
        run = self._engine.family.prepare(request)
        with self._lock:
            self._new.append(request)
            return self._engine.enter(run, on_step)

    def cancel(self, ticket: Ticket) -> None:
        """Let the request leave both ranks at the next boundary."""
        with self._lock:
            self._leaving.append(ticket)

    def advance(self) -> int:
        """One step on both ranks; the number of network calls it took here."""
        with self._lock:
            requests, self._new = tuple(self._new), []
            leaving, self._leaving = self._leaving, []
            self._clock.now_s = self._time_s()
            self._exchange.told(_Word(self._clock.now_s, requests, tuple(ticket.number for ticket in leaving)))
            for ticket in leaving:
                ticket.cancel()
            return self._engine.advance()

    def run(self) -> None:
        """Advance until nothing is left to do."""
        while self._engine.num_running:
            if not self.advance():
                time.sleep(NAP_S)

    def stop(self) -> None:
        """Let the other rank go."""
        self._exchange.told(_Word(self._time_s(), (), (), is_last=True))


class Follower:
    """Rank 1: does what the leader does."""

    def __init__(self, engine: StepEngine, exchange: Exchange, clock: SharedClock) -> None:
        self._engine, self._exchange, self._clock = engine, exchange, clock
        self.tickets: dict[int, Ticket] = {}

    def run(self) -> None:
        """Until the leader stops."""
        while not (word := self._exchange.told(None)).is_last:
            self._hear(word)
            self._engine.advance()

    def _hear(self, word: _Word) -> None:
        self._clock.now_s = word.now_s
        for request in word.requests:
            ticket = self._engine.submit(request)
            self.tickets[ticket.number] = ticket
        for number in word.withdrawn:
            if number in self.tickets:
                self.tickets[number].cancel()
        self.tickets = {number: ticket for number, ticket in self.tickets.items() if not ticket.is_over}
