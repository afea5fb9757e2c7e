"""Routing of a stage's messages: the ordinary transport, or delegates where a link is slow or has failed.

Stages on the host send and receive over Gloo, with failure detection. Stages on an accelerator leave ordinary messages
to PyTorch and NCCL, which carry them on device streams; without NCCL, all their links use delegates.

The four endpoints of a stage: activations to the next stage and from the previous one, gradients to the previous stage
and from the next one. Both ranks of a link must select the same route, before the same iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from functools import partial
from typing import Any, Literal

from takeup.training.engines.pytorch.arrivals import PendingReceives
from takeup.training.engines.pytorch.delegate import DelegateReceiver, DelegateSender, private_group
from takeup.training.engines.pytorch.way import LinkEndpoint

Carrier = Literal["gloo", "nccl", "delegates"]  # of ordinary messages
NAMES = ("fwd", "bwd")  # as PyTorch calls the two directions
WORDS = ("the activations", "the gradients")


class StageRoutes:
    """The links of one stage; `ranks` are those of all stages, in order."""

    def __init__(
        self,
        stage: Any,
        ranks: list[int],
        arrivals: tuple[PendingReceives, PendingReceives],
        timeout: timedelta,
        carrier: Carrier = "gloo",
    ) -> None:
        self._arrivals = arrivals
        self._carrier = carrier
        number = stage.stage_index
        made = {link: _connect(number, link, ranks, timeout) for link in sorted((number, number - 1), key=_even_first)}
        self._ways = (made[number], made[number - 1])  # next and previous stage: destinations of F and I
        for direction, name in enumerate(NAMES):
            for verb, ours in (("send", self._send), ("recv", self._receive)):
                method = f"get_{name}_{verb}_ops"
                setattr(stage, method, partial(ours, direction, getattr(stage, method)))
        self.use(())

    @property
    def failed(self) -> frozenset[int]:
        """Links of this rank whose ordinary connection is broken."""
        return frozenset(way.number for way in self._ways if way is not None and way.failed)

    def use(self, links: Collection[int]) -> None:
        """From the next iteration on, use delegates on these links and on no other working links."""
        for way in self._ways:
            if way is not None:
                way.delegated = self._carrier == "delegates" or way.number in links

    def may_receive_early(self, direction: int) -> bool:
        """Whether receives may be posted out of order: not with NCCL, which matches the sends and receives of a link
        in the order in which they are posted.
        """
        way = self._ways[1 - direction]
        return way is None or not self._by_nccl(way)

    def begin(self) -> None:
        """Start an iteration."""
        for way in self._ways:
            if way is not None:
                way.begin()

    def flush(self) -> None:
        """Block until all messages have been sent; PyTorch's runtime does not track them."""
        for way in self._ways:
            if way is not None:
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


def _even_first(link: int) -> int:
    return link % 2


def _connect(stage: int, link: int, ranks: list[int], timeout: timedelta) -> LinkEndpoint | None:
    """Create a process group for each direction of a link, on both of its ranks; None where there is no link.

    PyTorch names groups by a per-rank counter, so all ranks must create equally many, in the same order: first those of
    even links, then of odd ones. Where there is no link, a rank creates groups that contain only itself.
    """
    members, here = ranks[max(0, link) : link + 2], stage - link
    groups = [private_group(members, timeout) for _ in range(2)]
    if len(members) < 2:
        return None
    outgoing = DelegateSender(groups[here], 1 - here, f"the end of sending {WORDS[here]} from stage {stage}", timeout)
    return LinkEndpoint(link, here, (outgoing, DelegateReceiver(groups[1 - here], 1 - here)), timeout)
