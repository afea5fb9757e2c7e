"""Which way the messages of a stage take: the ordinary one, or that of delegates where a link is slow or has failed.

The four ends of a stage: activations to the stage ahead and from the one behind, gradients to the one behind and from
the one ahead. Both ranks of a link must choose the same way, before the same iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from functools import partial
from typing import Any

from takeup.training.engines.pytorch.arrivals import Arrivals
from takeup.training.engines.pytorch.delegate import Incoming, Outgoing, private_group
from takeup.training.engines.pytorch.way import Way

__all__ = ["Paths"]

NAMES = ("fwd", "bwd")  # as PyTorch calls the two directions
WORDS = ("the activations", "the gradients")


class Paths:
    """The ways of one stage; `ranks` are those of all stages, in order."""

    def __init__(self, stage: Any, ranks: list[int], arrivals: tuple[Arrivals, Arrivals], timeout: timedelta) -> None:
        self._arrivals = arrivals
        number = stage.stage_index
        made = {link: _connect(number, link, ranks, timeout) for link in sorted((number, number - 1), key=_even_first)}
        self._ways = (made[number], made[number - 1])  # ahead and behind: where F and where I are sent to
        for direction, name in enumerate(NAMES):
            for verb, ours in (("send", self._send), ("recv", self._receive)):
                method = f"get_{name}_{verb}_ops"
                setattr(stage, method, partial(ours, direction, getattr(stage, method)))

    @property
    def failed(self) -> frozenset[int]:
        """The links of this rank whose ordinary way is broken."""
        return frozenset(way.number for way in self._ways if way is not None and way.failed)

    def use(self, links: Collection[int]) -> None:
        """From the next iteration on these links have delegates, and no others that work."""
        for way in self._ways:
            if way is not None:
                way.delegated = way.number in links

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
        way.send(microbatch, plain(microbatch))
        return []

    def _receive(self, direction: int, plain: Callable[[int], list[Any]], microbatch: int) -> list[Any]:
        way = self._ways[1 - direction]
        assert way is not None
        self._arrivals[direction].posted(microbatch, way.receive(microbatch, plain(microbatch)))
        return []


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
