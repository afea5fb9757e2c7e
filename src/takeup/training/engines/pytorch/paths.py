"""Which way the messages of a stage take: the ordinary one, or that of delegates where a link is slow or has failed.

Stages on the host send and receive over Gloo, on connections that are watched. Stages on an accelerator leave ordinary
messages to PyTorch and NCCL, which carry them on streams of the device; where there is no NCCL between them, all their
links have delegates.

The four ends of a stage: activations to the stage ahead and from the one behind, gradients to the one behind and from
the one ahead. Both ranks of a link must choose the same way, before the same iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from functools import partial
from typing import Any, Literal

from takeup.training.engines.pytorch.arrivals import Arrivals
from takeup.training.engines.pytorch.delegate import Incoming, Outgoing, private_group
from takeup.training.engines.pytorch.way import Way

__all__ = ["Carrier", "Paths"]

Carrier = Literal["gloo", "nccl", "delegates"]  # of ordinary messages
NAMES = ("fwd", "bwd")  # as PyTorch calls the two directions
WORDS = ("the activations", "the gradients")


class Paths:
    """The ways of one stage; `ranks` are those of all stages, in order."""

    def __init__(
        self,
        stage: Any,
        ranks: list[int],
        arrivals: tuple[Arrivals, Arrivals],
        timeout: timedelta,
        carrier: Carrier = "gloo",
    ) -> None:
        self._arrivals = arrivals
        self._carrier = carrier
        number = stage.stage_index
        made = {link: _connect(number, link, ranks, timeout) for link in sorted((number, number - 1), key=_even_first)}
        self._ways = (made[number], made[number - 1])  # ahead and behind: where F and where I are sent to
        for direction, name in enumerate(NAMES):
            for verb, ours in (("send", self._send), ("recv", self._receive)):
                method = f"get_{name}_{verb}_ops"
                setattr(stage, method, partial(ours, direction, getattr(stage, method)))
        self.use(())

    @property
    def failed(self) -> frozenset[int]:
        """The links of this rank whose ordinary way is broken."""
        return frozenset(way.number for way in self._ways if way is not None and way.failed)

    def use(self, links: Collection[int]) -> None:
        """From the next iteration on these links have delegates, and no others that work."""
        for way in self._ways:
            if way is not None:
                way.delegated = self._carrier == "delegates" or way.number in links

    def may_receive_early(self, direction: int) -> bool:
        """Whether receives may be posted before their turn: messages of NCCL keep the order in which they are posted,
        sends and receives of a link together, so there each has to wait for its turn.
        """
        way = self._ways[1 - direction]
        return way is None or not self._by_nccl(way)

    def begin(self) -> None:
        """An iteration begins."""
        for way in self._ways:
            if way is not None:
                way.begin()

    def flush(self) -> None:
        """Return when all messages have left; the runtime of PyTorch knows of none."""
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

    def _by_nccl(self, way: Way) -> bool:
        return self._carrier == "nccl" and not way.delegated


def _even_first(link: int) -> int:
    return link % 2


def _connect(stage: int, link: int, ranks: list[int], timeout: timedelta) -> Way | None:
    """A group for each direction of a link, made by both of its ranks; None where there is no link.

    PyTorch names groups by how many a rank has made, so all ranks must make as many, in the same order: first those of
    even links, then of odd ones. Where there is no link, a rank makes groups of itself alone.
    """
    members, here = ranks[max(0, link) : link + 2], stage - link
    groups = [private_group(members, timeout) for _ in range(2)]
    if len(members) < 2:
        return None
    outgoing = Outgoing(groups[here], 1 - here, f"the end of sending {WORDS[here]} from stage {stage}", timeout)
    return Way(link, here, (outgoing, Incoming(groups[1 - here], 1 - here)), timeout)
