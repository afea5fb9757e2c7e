"""Two step engines in lockstep: every request is submitted to both, at the same step boundary.

Before every step rank 0 sends rank 1 the new requests, the cancelled ones and the current time. Everything else is
derived deterministically on both sides: which requests share a call, which are late, when a request is done. Each rank
loads LoRAs independently; they take effect at the first step at which both have them: `Loras(...,
agree=exchange.agree)`.
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

NAP_S = 0.001


class SharedClock:
    """The time as broadcast by rank 0. Pass one to the engine of each rank."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(frozen=True, slots=True)
class _Word:
    """The message that rank 0 sends before a step."""

    now_s: float
    requests: tuple[Request, ...]
    withdrawn: tuple[int, ...]
    is_last: bool = False


class Leader:
    """Rank 0. Call `submit` and `cancel` from any thread; `advance`, `run` and `stop` from one.

    Cancel a ticket with `cancel` of the leader, so that rank 1 is informed too.
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
        """Prepare the request here and submit it to both ranks; blocks until the current step ends."""
        run = self._engine.family.prepare(request)
        with self._lock:
            self._new.append(request)
            return self._engine.enter(run, on_step)

    def cancel(self, ticket: Ticket) -> None:
        """Remove the request from both ranks at the next step boundary."""
        with self._lock:
            self._leaving.append(ticket)

    def advance(self) -> int:
        """One step on both ranks. Returns the number of network calls on this rank."""
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
        """Stop the other rank."""
        self._exchange.told(_Word(self._time_s(), (), (), is_last=True))


class Follower:
    """Rank 1: replays what the leader does."""

    def __init__(self, engine: StepEngine, exchange: Exchange, clock: SharedClock) -> None:
        self._engine, self._exchange, self._clock = engine, exchange, clock
        self.tickets: dict[int, Ticket] = {}

    def run(self) -> None:
        """Run until the leader stops."""
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
