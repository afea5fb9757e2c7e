"""Test all links of a job in the fewest passes, such that no rank takes part in two tests at a time.

That is an edge colouring of a graph: links of one colour are tested together. Even rings and trees need as many
passes as their busiest rank has links, whatever the number of ranks; no graph needs more than one pass beyond that
(Vizing), and the construction of Misra and Gries finds such passes. The ends of a link are the exclusive resources:
ranks, or network cards where several ranks share one.
"""

from collections import defaultdict
from collections.abc import Iterable
from itertools import count, cycle, pairwise

from takeup.errors import BadInput

Pair = tuple[int, int]


def ring_links(order: Iterable[int]) -> list[Pair]:
    """The links of a ring in this order; a ring of two ranks has one link."""
    ranks = list(order)
    links = list(zip(ranks, ranks[1:] + ranks[:1], strict=True))
    return links if len(ranks) > 2 else links[: len(ranks) - 1]


def link_passes(links: Iterable[Pair]) -> list[list[Pair]]:
    """The links in passes; in each, no end occurs twice. Duplicates, in either direction, are tested once."""
    colours = _EdgeColouring()
    for link in sorted({(min(link), max(link)) for link in links}):
        if link[0] == link[1]:
            raise BadInput(f"a link from {link[0]} to itself cannot be tested; give pairs of different ends")
        colours.add(*link)
    passes: dict[int, list[Pair]] = defaultdict(list)
    for (one, other), colour in sorted(colours.coloured_links()):
        passes[colour].append((one, other))
    return [passes[colour] for colour in sorted(passes)]


class _EdgeColouring:
    """`end -> colour -> other end`; every colour occurs at most once at every end."""

    def __init__(self) -> None:
        self._at: dict[int, dict[int, int]] = defaultdict(dict)

    def coloured_links(self) -> Iterable[tuple[Pair, int]]:
        """Every link once, with its colour."""
        return (((one, other), colour) for one, at in self._at.items() for colour, other in at.items() if one < other)

    def add(self, one: int, other: int) -> None:
        """Colour one more link, recolouring conflicting ones."""
        ours, theirs = self._free(one), self._free(other)
        path = self._path(other, ours, theirs)
        if one in path:  # an odd cycle; never in a tree or bipartite graph
            self._add_by_fan(one, other)
        else:
            self._swap(path, ours, theirs)
            self._set(one, other, ours)

    def _add_by_fan(self, one: int, other: int) -> None:
        """The construction of Misra and Gries, which always succeeds."""
        fan = self._fan(one, other)
        ours, theirs = self._free(one), self._free(fan[-1])
        self._swap(self._path(one, theirs, ours), theirs, ours)
        fits = (n for n, end in enumerate(fan) if theirs not in self._at[end] and self._is_fan(one, fan[: n + 1]))
        self._rotate(one, fan[: next(fits) + 1], theirs)

    def _free(self, end: int) -> int:
        """The first colour that no link of this end has."""
        return next(colour for colour in count() if colour not in self._at[end])

    def _colour(self, one: int, other: int) -> int | None:
        return next((colour for colour, end in self._at[one].items() if end == other), None)

    def _fan(self, one: int, first: int) -> list[int]:
        """A maximal fan: neighbours in sequence, each linked in a colour that is free at the one before it."""
        fan = [first]
        while (more := self._next_of_fan(one, fan)) is not None:
            fan.append(more)
        return fan

    def _next_of_fan(self, one: int, fan: list[int]) -> int | None:
        last = self._at[fan[-1]]
        return next((end for colour, end in self._at[one].items() if colour not in last and end not in fan), None)

    def _is_fan(self, one: int, fan: list[int]) -> bool:
        """Whether the sequence is still a fan after colours have been swapped."""
        return all(self._colour(one, after) not in self._at[before] for before, after in pairwise(fan))

    def _path(self, start: int, first: int, second: int) -> list[int]:
        """The ends of the path from here on which two colours alternate, beginning with the first."""
        path = [start]
        while (end := self._at[path[-1]].get(first)) is not None:
            path.append(end)
            first, second = second, first
        return path

    def _swap(self, path: list[int], first: int, second: int) -> None:
        """Exchange the two colours along their path."""
        hops = list(pairwise(path))
        for hop in hops:
            self._remove(*hop)
        for hop, colour in zip(hops, cycle((second, first)), strict=False):
            self._set(*hop, colour)

    def _rotate(self, one: int, fan: list[int], last: int) -> None:
        """Give every link of the fan the colour of the next, and the last one a colour free at both ends."""
        colours = [self._remove(one, end) for end in fan[1:]]
        for end, colour in zip(fan, [*colours, last], strict=True):
            self._set(one, end, colour)

    def _set(self, one: int, other: int, colour: int) -> None:
        self._at[one][colour] = other
        self._at[other][colour] = one

    def _remove(self, one: int, other: int) -> int:
        colour = self._colour(one, other)
        assert colour is not None
        del self._at[one][colour], self._at[other][colour]
        return colour
