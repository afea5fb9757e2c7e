"""Routing of a stage's messages: the ordinary transport, or delegates where a link is slow or has failed.

Stages on the host send and receive over Gloo, with failure detection. Stages on an accelerator leave ordinary messages
to PyTorch and NCCL, which carry them on device streams; without NCCL, all their links use delegates.

The four endpoints of a stage: activations to the next stage and from the previous one, gradients to the previous stage
and from the next one. Both ranks of a link must select the same route, before the same iteration.
"""

import atexit
import logging
import weakref
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from datetime import timedelta
from functools import partial
from threading import Lock
from typing import Any, Literal

import torch

from takeup.training.pipelines.engine import messages

# One endpoint of a link: sends and receives over the ordinary connection or delegates, with failover between them -----
#
# How it works. If the ordinary connection breaks, a rank notices when a wait fails, or when its peer reports over the
# delegate the first message that it is missing. Each rank resends what the other is missing, and all later messages
# use the delegates. Tensors are kept until they have certainly arrived: activations until their gradients are back,
# gradients for one more iteration. Messages are identified by iteration and micro-batch, so none is mistaken for
# another.
#
# A thread listens for resend requests of the peer. It cannot be interrupted while blocked in Gloo, and a process that
# exits with the thread still there fails. So a rank that exits sends a goodbye to its neighbours, and they answer.

LOG = logging.getLogger("takeup.training")
Key = tuple[int, int]  # iteration and micro-batch
GOODBYE = (-1, -1)  # sent instead of a resend request
ANSWER_S = 5.0  # timeout for the answer of a live neighbour
FOREVER = timedelta(days=365)  # Gloo closes all connections of a group when one wait in it takes too long


class LinkEndpoint:
    """The link `number`, over which this rank sends `direction`: 0 for activations, 1 for gradients."""

    def __init__(
        self,
        number: int,
        direction: int,
        delegates: tuple[messages.DelegateSender, messages.DelegateReceiver],
        timeout: timedelta,
    ) -> None:
        self.number = number
        self.delegated = False
        self.failed = False
        self._kept_for = direction  # iterations
        self._outgoing, self._incoming = delegates
        self._timeout = timeout
        self._iteration = 0
        self._log: dict[Key, Sequence[torch.Tensor]] = {}
        self._sent: list[list[messages.Waitable]] = []
        self._lock, self._worker = Lock(), messages.WorkerThread("takeup-fallback")
        self._requested = self._was_requested = False
        self._broken: Future[None] = Future()
        self._flusher = messages.WorkerThread("takeup-flush")
        self._said_goodbye = False
        self._lacking = messages.WorkerThread("takeup-asked").submit(partial(self._outgoing.asked, FOREVER))
        self._lacking.add_done_callback(self._told)
        _ENDPOINTS.add(self)

    def begin(self) -> None:
        """Start an iteration; messages sent before the previous one have arrived and are dropped from the log."""
        with self._lock:
            self._iteration += 1
            self._was_requested = self._requested  # one route per iteration, to keep receives in order
            self._forget_before(self._iteration - self._kept_for)

    def send(self, microbatch: int, ops: Sequence[Any]) -> None:
        tensors = [op.tensor for op in ops]
        with self._lock:
            failed, delegated = self.failed, self.delegated
            if not failed and not delegated:
                self._log[self._iteration, microbatch] = tensors
        if failed:
            self._worker.submit(partial(self._outgoing.send, tensors))  # after the resent messages
        elif delegated:
            self._outgoing.send(tensors)
        else:
            self._send_plainly(ops)

    def receive(self, microbatch: int, ops: Sequence[Any]) -> list[messages.Waitable]:
        if self._was_requested or (self.delegated and not self.failed):
            return self._incoming.receive([op.tensor for op in ops])
        return [_FailoverReceive(self, microbatch, ops)]

    def flush(self) -> None:
        """Block until sent messages have left, as far as that can be known."""
        sent, self._sent = [work for works in self._sent for work in works], []
        if sent:
            self._wait_until_left(sent)
        if not self.failed:
            self._outgoing.flush()
        with self._lock:
            self._forget_before(self._iteration + 1 - self._kept_for)  # all gradients are back

    def _wait_until_left(self, sent: Sequence[messages.Waitable]) -> None:
        left: Future[Any] = self._flusher.submit(lambda: [work.wait(FOREVER) for work in sent])
        wait([left, self._broken], self._timeout.total_seconds(), FIRST_COMPLETED)  # the peer may never receive it
        if not left.done():
            self.fail(TimeoutError("a message was not taken"))
        elif error := left.exception():
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Fail over: delegates carry everything from now on, including messages that may have been lost."""
        with self._lock:
            if self.failed:
                return
            self.failed, kept = True, dict(self._log)
        self._broken.set_result(None)
        LOG.warning(
            "link %d failed, its messages take the delegates from now on (%s)", self.number, messages.first_words(error)
        )
        self._worker.submit(partial(self._send_again, kept))

    def after_failure(self, microbatch: int, tensors: Sequence[torch.Tensor]) -> list[messages.Waitable]:
        """Post receives on the delegate; the first call tells the peer from which message on to resend."""
        if not self._requested:
            self._requested = True
            self._incoming.ask(torch.tensor([self._iteration, microbatch]))
        return self._incoming.receive(tensors)

    def _told(self, lacking: Future[torch.Tensor]) -> None:
        """Handle a resend request or goodbye of the peer; if the peer is gone, pending waits fail by themselves."""
        if lacking.exception() is not None:
            return
        if _is_goodbye(lacking.result()):
            self.say_goodbye()
        else:
            self.fail(ConnectionError("the other rank lacks messages"))

    def say_goodbye(self) -> Future[torch.Tensor]:
        """Tell the peer that there will be no more requests; the future completes when it has answered or is gone."""
        with self._lock:
            said, self._said_goodbye = self._said_goodbye, True
        if not said:
            with suppress(RuntimeError):  # the peer is gone
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
        """Resend all messages that the peer is missing, once it has reported them."""
        lacking = self._lacking.result(self._timeout.total_seconds())
        iteration, microbatch = lacking.tolist()
        for key in sorted(kept):
            if key >= (iteration, microbatch) and not _is_goodbye(lacking):
                self._outgoing.send(kept[key])


_ENDPOINTS: weakref.WeakSet[LinkEndpoint] = weakref.WeakSet()


@atexit.register
def say_goodbye_to_all() -> None:
    """Send a goodbye to all neighbours at process exit."""
    wait([way.say_goodbye() for way in list(_ENDPOINTS)], ANSWER_S)


def _is_goodbye(lacking: torch.Tensor) -> bool:
    return tuple(lacking.tolist()) == GOODBYE


class _FailoverReceive:
    """A receive over the ordinary connection that fails over to the delegate."""

    def __init__(self, way: LinkEndpoint, microbatch: int, ops: Sequence[Any]) -> None:
        self._way = way
        self._microbatch = microbatch
        self._tensors = [op.tensor for op in ops]
        self._works: list[messages.Waitable] | None = None if way.failed else self._begun(ops)

    def wait(self, timeout: timedelta) -> None:
        """Block until it has arrived over either connection."""
        if self._works is not None and self._came(self._works, timeout):
            return
        self._works = self._way.after_failure(self._microbatch, self._tensors)
        for work in self._works:
            work.wait(timeout)

    def land(self) -> None:
        """Make the current stream wait for copies to the accelerator."""
        for work in self._works or ():
            if land := getattr(work, "land", None):
                land()

    def _begun(self, ops: Sequence[Any]) -> list[messages.Waitable] | None:
        try:
            return [op.op(op.tensor, group=op.group, tag=op.tag, group_src=op.group_peer) for op in ops]
        except RuntimeError as error:
            self._way.fail(error)
            return None

    def _came(self, works: list[messages.Waitable], timeout: timedelta) -> bool:
        try:
            for work in works:
                work.wait(timeout)
        except RuntimeError as error:
            self._way.fail(error)
            return False
        return True


Carrier = Literal["gloo", "nccl", "delegates"]  # of ordinary messages
NAMES = ("fwd", "bwd")  # as PyTorch calls the two directions
WORDS = ("the activations", "the gradients")


class StageRoutes:
    """The links of one stage; `ranks` are those of all stages, in order."""

    def __init__(
        self,
        stage: Any,
        ranks: list[int],
        arrivals: tuple[messages.PendingReceives, messages.PendingReceives],
        timeout: timedelta,
        carrier: Carrier = "gloo",
    ) -> None:
        self._arrivals = arrivals
        self._carrier = carrier
        number = stage.stage_index
        made = {
            link: _connect(number, link, ranks, timeout)
            for link in sorted((number, number - 1), key=lambda link: link % 2)
        }
        self._ways = (made[number], made[number - 1])  # next and previous stage: destinations of F and I
        self._present = [way for way in self._ways if way is not None]
        for direction, name in enumerate(NAMES):
            for verb, ours in (("send", self._send), ("recv", self._receive)):
                method = f"get_{name}_{verb}_ops"
                setattr(stage, method, partial(ours, direction, getattr(stage, method)))
        self.use(())

    @property
    def failed(self) -> frozenset[int]:
        """Links of this rank whose ordinary connection is broken."""
        return frozenset(way.number for way in self._present if way.failed)

    def use(self, links: Collection[int]) -> None:
        """From the next iteration on, use delegates on these links and on no other working links."""
        for way in self._present:
            way.delegated = self._carrier == "delegates" or way.number in links

    def may_receive_early(self, direction: int) -> bool:
        """Whether receives may be posted out of order: not with NCCL, which matches the sends and receives of a link
        in the order in which they are posted.
        """
        way = self._ways[1 - direction]
        return way is None or not self._by_nccl(way)

    def begin(self) -> None:
        for way in self._present:
            way.begin()

    def flush(self) -> None:
        """Block until all messages have been sent; PyTorch's runtime does not track them."""
        for way in self._present:
            way.flush()

    def _send(self, direction: int, plain: Callable[[int], list[Any]], microbatch: int) -> list[Any]:
        way = self._ways[direction]
        assert way is not None
        if self._by_nccl(way):
            return plain(microbatch)
        way.send(microbatch, plain(microbatch))
        return []

    def _receive(self, direction: int, plain: Callable[[int], list[Any]], microbatch: int) -> list[Any]:
        way = self._ways[1 - direction]
        assert way is not None
        if self._by_nccl(way):
            return plain(microbatch)
        self._arrivals[direction].posted(microbatch, way.receive(microbatch, plain(microbatch)))
        return []

    def _by_nccl(self, way: LinkEndpoint) -> bool:
        return self._carrier == "nccl" and not way.delegated


def _connect(stage: int, link: int, ranks: list[int], timeout: timedelta) -> LinkEndpoint | None:
    """Create a process group for each direction of a link, on both of its ranks; None where there is no link.

    PyTorch names groups by a per-rank counter, so all ranks must create equally many, in the same order: first those of
    even links, then of odd ones. Where there is no link, a rank creates groups that contain only itself.
    """
    members, here = ranks[max(0, link) : link + 2], stage - link
    groups = [messages.private_group(members, timeout) for _ in range(2)]
    if len(members) < 2:
        return None
    outgoing = messages.DelegateSender(
        groups[here], 1 - here, f"the end of sending {WORDS[here]} from stage {stage}", timeout
    )
    return LinkEndpoint(link, here, (outgoing, messages.DelegateReceiver(groups[1 - here], 1 - here)), timeout)
