"""One link as one of its ranks sees it: what it sends and receives, the ordinary way or by delegates, whatever happens.

How it works. If the connection of the ordinary way breaks, a rank notices when what it waits for fails, or when the
other one tells it: over the delegate, from which message on it has nothing. Each sends again what the other lacks; and
all later messages take the delegates. Tensors are kept until it is certain that they arrived: activations until their
gradients are back, gradients for one iteration more. Messages are known by iteration and micro-batch, so none is taken
for another.

A thread listens for what the other rank lacks. It cannot be called back from Gloo, and a process that ends with it
there ends with an error. So a rank that ends says goodbye to its neighbours, and they answer.
"""

from __future__ import annotations

import atexit
import logging
import weakref
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from datetime import timedelta
from functools import partial
from threading import Lock
from typing import Any

import torch

from takeup.training.engines.pytorch.arrivals import Waitable, first_words
from takeup.training.engines.pytorch.delegate import Incoming, Outgoing
from takeup.training.engines.pytorch.worker import Worker

__all__ = ["Way", "leave"]

LOG = logging.getLogger("takeup.training")
Key = tuple[int, int]  # iteration and micro-batch
GOODBYE = (-1, -1)  # in place of what is lacking
ANSWER_S = 5.0  # within which a neighbour that is alive answers
FOREVER = timedelta(days=365)  # Gloo closes all connections of a group when one wait in it takes too long


class Way:
    """The link `number`, over which this rank sends `direction`: 0 for activations, 1 for gradients."""

    def __init__(self, number: int, direction: int, delegates: tuple[Outgoing, Incoming], timeout: timedelta) -> None:
        self.number = number
        self.delegated = False
        self.failed = False
        self._kept_for = direction  # iterations
        self._outgoing, self._incoming = delegates
        self._timeout = timeout
        self._iteration = 0
        self._log: dict[Key, Sequence[torch.Tensor]] = {}
        self._sent: list[list[Waitable]] = []
        self._lock, self._worker = Lock(), Worker("takeup-fallback")
        self._requested = self._was_requested = False
        self._broken: Future[None] = Future()
        self._flusher = Worker("takeup-flush")
        self._said_goodbye = False
        self._lacking = Worker("takeup-asked").submit(partial(self._outgoing.asked, FOREVER))
        self._lacking.add_done_callback(self._told)
        _WAYS.add(self)

    def begin(self) -> None:
        """An iteration begins, so what was sent before the last one has arrived."""
        with self._lock:
            self._iteration += 1
            self._was_requested = self._requested  # receives of one iteration all begin the same way, in order
            self._forget_before(self._iteration - self._kept_for)

    def send(self, microbatch: int, ops: Sequence[Any]) -> None:
        """Send what these operations of PyTorch would."""
        tensors = [op.tensor for op in ops]
        with self._lock:
            failed, delegated = self.failed, self.delegated
            if not failed and not delegated:
                self._log[self._iteration, microbatch] = tensors
        if failed:
            self._worker.submit(partial(self._outgoing.send, tensors))  # behind what is sent again
        elif delegated:
            self._outgoing.send(tensors)
        else:
            self._send_plainly(ops)

    def receive(self, microbatch: int, ops: Sequence[Any]) -> list[Waitable]:
        """Begin to receive what these operations of PyTorch would."""
        if self._was_requested or (self.delegated and not self.failed):
            return self._incoming.receive([op.tensor for op in ops])
        return [_Guarded(self, microbatch, ops)]

    def flush(self) -> None:
        """Return when what was sent has left, as far as that can be known."""
        sent, self._sent = [work for works in self._sent for work in works], []
        if sent:
            self._wait_until_left(sent)
        if not self.failed:
            self._outgoing.flush()
        with self._lock:
            self._forget_before(self._iteration + 1 - self._kept_for)  # all gradients are back

    def _wait_until_left(self, sent: Sequence[Waitable]) -> None:
        left: Future[Any] = self._flusher.submit(lambda: [work.wait(FOREVER) for work in sent])
        wait([left, self._broken], self._timeout.total_seconds(), FIRST_COMPLETED)  # nobody may take it any more
        if not left.done():
            self.fail(TimeoutError("a message was not taken"))
        elif error := left.exception():
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """The ordinary way is broken: from now on delegates carry everything, also what may be lost."""
        with self._lock:
            if self.failed:
                return
            self.failed, kept = True, dict(self._log)
        self._broken.set_result(None)
        LOG.warning("link %d failed, its messages take the delegates from now on (%s)", self.number, first_words(error))
        self._worker.submit(partial(self._send_again, kept))

    def after_failure(self, microbatch: int, tensors: Sequence[torch.Tensor]) -> list[Waitable]:
        """Begin to receive from the delegate; the first time, the other rank is told where to begin."""
        if not self._requested:
            self._requested = True
            self._incoming.ask(torch.tensor([self._iteration, microbatch]))
        return self._incoming.receive(tensors)

    def _told(self, lacking: Future[torch.Tensor]) -> None:
        """The other rank lacks something, or is gone: then all that is waited for will fail by itself."""
        if lacking.exception() is not None:
            return
        if _is_goodbye(lacking.result()):
            self.say_goodbye()
        else:
            self.fail(ConnectionError("the other rank lacks messages"))

    def say_goodbye(self) -> Future[torch.Tensor]:
        """Tell the other rank that nothing will be asked for any more; done when it has said so too, or is gone."""
        with self._lock:
            said, self._said_goodbye = self._said_goodbye, True
        if not said:
            with suppress(RuntimeError):  # it is gone
                self._incoming.ask(torch.tensor(GOODBYE))
        return self._lacking

    def _forget_before(self, iteration: int) -> None:
        self._log = {key: tensors for key, tensors in self._log.items() if key[0] >= iteration}

    def _send_plainly(self, ops: Sequence[Any]) -> None:
        try:
            self._sent.append([op.op(op.tensor, group=op.group, tag=op.tag, group_dst=op.group_peer) for op in ops])
        except RuntimeError as error:
            self.fail(error)

    def _send_again(self, kept: dict[Key, Sequence[torch.Tensor]]) -> None:
        """Send all that the other rank lacks, once it has said so."""
        lacking = self._lacking.result(self._timeout.total_seconds())
        iteration, microbatch = lacking.tolist()
        for key in sorted(kept):
            if key >= (iteration, microbatch) and not _is_goodbye(lacking):
                self._outgoing.send(kept[key])


_WAYS: weakref.WeakSet[Way] = weakref.WeakSet()


@atexit.register
def leave() -> None:
    """Say goodbye to all neighbours, when the process ends."""
    wait([way.say_goodbye() for way in list(_WAYS)], ANSWER_S)


def _is_goodbye(lacking: torch.Tensor) -> bool:
    return tuple(lacking.tolist()) == GOODBYE


class _Guarded:
    """A message by the ordinary way, or by the delegate if that breaks."""

    def __init__(self, way: Way, microbatch: int, ops: Sequence[Any]) -> None:
        self._way = way
        self._microbatch = microbatch
        self._tensors = [op.tensor for op in ops]
        self._works: list[Waitable] | None = None if way.failed else self._begun(ops)

    def wait(self, timeout: timedelta) -> None:
        """Return when it has come, either way."""
        if self._works is not None and self._came(self._works, timeout):
            return
        self._works = self._way.after_failure(self._microbatch, self._tensors)
        for work in self._works:
            work.wait(timeout)

    def land(self) -> None:
        """What is computed from now on waits for copies to the accelerator."""
        for work in self._works or ():
            if land := getattr(work, "land", None):
                land()

    def _begun(self, ops: Sequence[Any]) -> list[Waitable] | None:
        try:
            return [op.op(op.tensor, group=op.group, tag=op.tag, group_src=op.group_peer) for op in ops]
        except RuntimeError as error:
            self._way.fail(error)
            return None

    def _came(self, works: list[Waitable], timeout: timedelta) -> bool:
        try:
            for work in works:
                work.wait(timeout)
        except RuntimeError as error:
            self._way.fail(error)
            return False
        return True
