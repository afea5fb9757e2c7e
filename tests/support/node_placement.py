"""Node placement: keep reductions off slow links, and put slow nodes where they cost least; predicted by simulation.

Nodes form a grid of replicas and stages. The nodes of a replica are a pipeline and send activations, those of a stage
reduce gradients in a ring, which moves far more bytes. First the rings are reordered, which costs nothing. If a slow
link remains, nodes are swapped: of all exchanges of two nodes, and then of three, the one is taken that saves most by
simulation, as long as any saves. The paper exchanges two nodes by a rule and does not reorder rings.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, pairwise, permutations

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.training.pipelines.planners.baselines import OneFOneB
from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.timing.evaluation import timeline_of

# The ring order of ranks: a slow link hurts only between neighbours, and the order is free ----------------------------
#
# The time of a ring is that of its slowest link, so the order with the fastest slowest link is sought (bottleneck TSP).
# That is hard in general (a Hamiltonian cycle), but a few slow links are easily avoided: segments of the ring are
# reversed (2-opt) as long as that makes its slowest links faster. Small rings are enumerated completely.

FEW_RANKS = 7  # 360 orders


def slowest_s(order: Sequence[int], link_s: Floats) -> float:
    """The time of the slowest link of the ring; `link_s[a, b]` is that of the link between two ranks."""
    return float(max((link_s[one, other] for one, other in _ring_links(order)), default=0.0))


def best_ring(order: Sequence[int], link_s: Floats) -> tuple[int, ...]:
    """An order with a fast slowest link; the given one if no better is found."""
    if len(order) < 4:
        return tuple(order)  # all orders have the same links
    if len(order) <= FEW_RANKS:
        orders = [(order[0], *rest) for rest in permutations(order[1:]) if rest[0] <= rest[-1]]
        return min([tuple(order), *orders], key=lambda each: slowest_s(each, link_s))
    return _two_opt(tuple(order), link_s)


def _ring_links(order: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(order, (*order[1:], order[0]), strict=True)) if len(order) > 1 else []


def _two_opt(order: tuple[int, ...], link_s: Floats) -> tuple[int, ...]:
    """Reverse segments of the ring while that helps."""
    while True:
        turned = min(_reversals(order), key=lambda each: _badness(each, link_s))
        if _badness(turned, link_s) >= _badness(order, link_s):
            return order
        order = turned


def _reversals(order: tuple[int, ...]) -> list[tuple[int, ...]]:
    places = combinations(range(1, len(order) + 1), 2)
    return [order[:start] + order[start:end][::-1] + order[end:] for start, end in places if end - start > 1]


def _badness(order: Sequence[int], link_s: Floats) -> tuple[float, ...]:
    """Link times in decreasing order, compared lexicographically: fewer slow ones are better, too."""
    return tuple(sorted((float(link_s[pair]) for pair in _ring_links(order)), reverse=True))


Places = tuple[tuple[int, ...], ...]
FEW_NODES = 12  # up to this number of nodes, exchanges of three are tried, too


@dataclass(frozen=True)
class NodeGrid:
    """Nodes, and the work of an iteration.

    `places[replica][stage]` is a node; it takes `factors[node]` times as long as a healthy one, and a byte takes
    `byte_s[a, b]` seconds from one node to another. A forward of a micro-batch takes `forward_s`, its backward twice as
    long.
    """

    places: Places
    factors: tuple[float, ...]
    byte_s: Floats
    num_microbatches: int
    forward_s: float
    activation_bytes: int
    gradient_bytes: int
    _known_s: dict[tuple[float, ...], float] = field(default_factory=dict, repr=False, compare=False)
    _known_rings: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        nodes = [node for row in self.places for node in row]
        if not nodes or len({len(row) for row in self.places}) != 1 or sorted(nodes) != list(range(len(nodes))):
            raise BadInput(f"places are {self.places}; give a grid in which every node, from 0 on, comes once")
        if len(self.factors) != len(nodes) or self.byte_s.shape != (len(nodes), len(nodes)):
            raise BadInput(f"factors and byte_s must be for {len(nodes)} nodes")

    @cached_property
    def rings(self) -> Places:
        """The best ring order of each stage."""
        return tuple(self._ring(ring) for ring in zip(*self.places, strict=True))

    def _ring(self, nodes: tuple[int, ...]) -> tuple[int, ...]:
        if nodes not in self._known_rings:
            self._known_rings[nodes] = best_ring(nodes, self.byte_s)
        return self._known_rings[nodes]

    @property
    def critical(self) -> set[int]:
        """The bottleneck nodes: those of the slowest pipeline and of the slowest ring."""
        pipeline = max(self.places, key=self._pipeline_s)
        ring = max(self.rings, key=lambda each: slowest_s(each, self.byte_s))
        return {*pipeline, *ring}

    @cached_property
    def iteration_s(self) -> float:
        """The slowest pipeline, then the slowest ring in its best order."""
        return self.pipelines_s + self.reduce_s(self.rings)

    @property
    def pipelines_s(self) -> float:
        """The slowest pipeline, by simulation of 1F1B."""
        return max(self._pipeline_s(row) for row in self.places)

    def reduce_s(self, rings: Places) -> float:
        """The slowest ring, in this order: every byte passes every link but one, twice."""
        number = len(self.places)
        moved_bytes = 2 * (number - 1) / number * self.gradient_bytes
        return moved_bytes * max(slowest_s(ring, self.byte_s) for ring in rings)

    def _pipeline_s(self, row: tuple[int, ...]) -> float:
        key = (
            *(self.factors[node] for node in row),
            *(float(self.byte_s[pair]) for pair in pairwise(row)),
        )
        if key not in self._known_s:
            self._known_s[key] = self._simulated_s(key[: len(row)], key[len(row) :])
        return self._known_s[key]

    def _simulated_s(self, factors: Sequence[float], byte_s: Sequence[float]) -> float:
        stages = tuple(Stage(self.forward_s * each, self.forward_s * each, self.forward_s * each) for each in factors)
        links = tuple(Link(0.0, self.activation_bytes * each) for each in byte_s)
        profile = Profile(stages, links, self.num_microbatches, can_split=False)
        return timeline_of(OneFOneB().plan(profile).schedule, profile).iteration_s


@dataclass(frozen=True, slots=True)
class PlacementChange:
    """Node placement, ring orders and the predicted time; `kept` is the placement to restore on recovery."""

    places: Places
    rings: Places
    kept: Places
    before_s: float
    after_s: float
    num_moved: int
    reason: str

    @property
    def saving_s(self) -> float:
        """Time saved per iteration."""
        return self.before_s - self.after_s


def improve_placement(grid: NodeGrid, *, num_iterations: float, pause_s: float) -> PlacementChange:
    """Changes that pay off within `num_iterations`, if moving nodes costs `pause_s`; reordering rings is free."""
    before_s = grid.pipelines_s + grid.reduce_s(tuple(zip(*grid.places, strict=True)))
    free_s = grid.iteration_s
    moved = _descended(grid)
    gain_s = num_iterations * (free_s - moved.iteration_s)
    if moved.places != grid.places and gain_s > pause_s:
        num_moved = _num_moved(grid, moved)
        reason = f"moving {num_moved} nodes saves {gain_s:.4g} s in {num_iterations:.4g} iterations for {pause_s:.4g} s"
        return PlacementChange(moved.places, moved.rings, grid.places, before_s, moved.iteration_s, num_moved, reason)
    reason = "other orders of the rings save without a pause" if free_s < before_s else "nothing would pay off"
    return PlacementChange(grid.places, grid.rings, grid.places, before_s, free_s, 0, reason)


def _descended(grid: NodeGrid) -> NodeGrid:
    """Steepest descent: exchange nodes as long as that saves; of equally good exchanges, the first."""
    while True:
        best = min(_exchanged(grid), key=lambda each: each.iteration_s, default=grid)
        if best.iteration_s >= grid.iteration_s * (1 - 1e-9):
            return grid
        grid = best


def _exchanged(grid: NodeGrid) -> Iterator[NodeGrid]:
    nodes, critical = range(len(grid.factors)), grid.critical
    for one, other in combinations(nodes, 2):
        if one in critical or other in critical:
            yield _renamed(grid, {one: other, other: one})
    if len(grid.factors) <= FEW_NODES:
        for one, two, three in combinations(nodes, 3):
            yield _renamed(grid, {one: two, two: three, three: one})
            yield _renamed(grid, {one: three, three: two, two: one})


def _renamed(grid: NodeGrid, names: dict[int, int]) -> NodeGrid:
    return replace(grid, places=tuple(tuple(names.get(node, node) for node in row) for row in grid.places))


def _num_moved(one: NodeGrid, other: NodeGrid) -> int:
    return sum(
        a != b for mine, theirs in zip(one.places, other.places, strict=True) for a, b in zip(mine, theirs, strict=True)
    )


# Consolidation --------------------------------------------------------------------------------------------------------


def consolidated(stages: Places, factors: Sequence[float]) -> Places:
    """The same stages with slow devices gathered in as few of them as possible, inner ones first.

    Each stage takes as long as its slowest device. The slowest stage stays as slow, so only filling the pipeline gets
    faster: the sum over stages is minimal.
    """
    size, healthy = len(stages[0]), min(factors)
    devices = sorted((device for stage in stages for device in stage), key=lambda device: -factors[device])
    portions = [devices[start : start + size] for start in range(0, len(devices), size)]  # the sort is stable
    left, found = set(range(len(stages))), dict[int, tuple[int, ...]]()
    for portion in portions:
        is_slow = factors[portion[0]] > healthy
        place = max(left, key=lambda stage: _welcome(stages, stage, portion, is_slow))
        left.remove(place)
        found[place] = tuple(portion)
    return tuple(found[place] for place in range(len(stages)))


def _welcome(stages: Places, stage: int, portion: Sequence[int], is_slow: bool) -> tuple[bool, int, int]:
    """Sort key: inner stages first for slow devices, as outer ones have more work; then most of them already there."""
    is_inner = 0 < stage < len(stages) - 1
    return is_slow and is_inner, len(set(stages[stage]) & set(portion)), -stage
