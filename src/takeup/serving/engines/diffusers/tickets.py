"""The caller's handle of a request: progress, cancellation, and the final latents."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from takeup.serving.engines.diffusers.runs import DenoisingRun
from takeup.serving.model import Cancelled, Expired, State

OnStep = Callable[[int, int], None]
"""Hears how many steps are done, and of how many."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One request in the engine. Can be queried and cancelled from any thread."""

    number: int
    run: DenoisingRun
    on_step: OnStep | None = None
    state: State = "waiting"
    finished: Future[DenoisingRun] = field(default_factory=Future)
    _withdrawn: bool = False

    @property
    def is_over(self) -> bool:
        return self.finished.done()

    def cancel(self) -> None:
        """Remove the request at the next step boundary; no effect once it has ended."""
        self._withdrawn = True

    def result(self, timeout_s: float | None = None) -> DenoisingRun:
        """The finished run; raises the error that ended it otherwise."""
        return self.finished.result(timeout_s)

    def leaves(self, now_s: float) -> bool:
        """End the request if it was cancelled or its deadline has passed. Returns whether it is over."""
        deadline_s = self.run.request.deadline_s
        if self._withdrawn:
            self.end("cancelled", Cancelled(f"the request was cancelled after {self._progress()}"))
        elif deadline_s is not None and now_s > deadline_s:
            self.end(
                "expired", Expired(f"the deadline passed after {self._progress()}; allow more time or fewer steps")
            )
        return self.is_over

    def end(self, state: State, error: BaseException | None = None) -> None:
        """Set the final state and resolve the future."""
        self.state = state
        if error is None:
            self.finished.set_result(self.run)
        else:
            self.finished.set_exception(error)

    def _progress(self) -> str:
        return f"{self.run.step} of {len(self.run.timesteps)} steps"
