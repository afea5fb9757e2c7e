"""From a cell to the Markov chain that one of its videos sees: other flows, capacity, variable bit rate, impatience."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.streaming.model import Capacity, Cell, Chain
from takeup.streaming.numerics import are_connected

Counts = npt.NDArray[np.int64]

MAX_STATES = 20_000

# Flows that share a cell: their number by kind, arrivals and departures, and what an arriving video finds -------------
#
# How it works. Every user in the cell gets the same share of it. With n users of which n_l are of kind l, the cell
# works with the relative efficiency g(n) (1 for plain sharing), and one flow of kind l, which alone would need 1/mu_l
# seconds,
#
#     arrives at rate lambda_l while n < K,         one of n_l leaves at rate n_l mu_l g(n) / n.
#
# Seen by one tagged video the state is the number of *others* of each kind, at most K - 1, and n counts the tagged one
# too. For constant capacity the numbers in the cell have a product form, whatever the mix of kinds:
#
#     P(n_1 .. n_m)  ~  n! / (n_1! .. n_m!)  *  prod_l (lambda_l / mu_l)^n_l  /  prod_{k <= n} g(k)
#
# Poisson arrivals see this law (arrivals at n = K are blocked), so an accepted video finds it conditioned on n < K.


@dataclass(frozen=True, slots=True)
class Flow:
    """One kind of flow: its arrival rate, and the rate at which it would finish if it had the cell to itself."""

    arrivals_per_s: float
    alone_per_s: float


def population(num_kinds: int, most: int) -> Counts:
    """All ways of having at most `most` flows of `num_kinds` kinds, one row each, ordered by their total."""
    if num_kinds == 1:
        return np.arange(most + 1, dtype=np.int64)[:, None]
    if (most + 1) ** num_kinds > 50 * MAX_STATES:
        raise BadInput(f"{num_kinds} kinds of up to {most} users make too many states; give fewer kinds or max_users")
    rows = (row for row in product(range(most + 1), repeat=num_kinds) if sum(row) <= most)
    return np.array(sorted(rows, key=lambda row: (sum(row), row)), dtype=np.int64)


def flow_generator(counts: Counts, flows: Sequence[Flow], efficiency: Floats, tagged: int) -> Floats:
    """Rates between the rows of `counts`, where `tagged` (0 or 1) more users share the cell with them."""
    users = counts.sum(axis=1) + tagged
    pace = np.where(users > 0, efficiency[np.maximum(users, 1) - 1] / np.maximum(users, 1), 0.0)
    base = int(counts.max(initial=0)) + 2
    weights = base ** np.arange(counts.shape[1])
    codes = counts @ weights
    order = np.argsort(codes)
    rates = np.zeros((len(counts), len(counts)))
    for kind, flow in enumerate(flows):
        room = np.flatnonzero(users < users.max())
        more = order[np.searchsorted(codes, codes[room] + weights[kind], sorter=order)]
        rates[room, more] += flow.arrivals_per_s
        rates[more, room] += counts[more, kind] * flow.alone_per_s * pace[more]
    np.fill_diagonal(rates, -rates.sum(axis=1))
    return rates


def arrival_law(counts: Counts, flows: Sequence[Flow], efficiency: Floats) -> tuple[Floats, float]:
    """The law of the others that an accepted video finds, and the share of arrivals that are blocked.

    `counts` holds every way of having at most K flows; the law covers those with fewer, in the same order.
    """
    total = counts.sum(axis=1)
    loads = np.array([math.log(flow.arrivals_per_s) - math.log(flow.alone_per_s) for flow in flows])
    log_efficiency = np.concatenate(([0.0], np.cumsum(np.log(efficiency))))
    log_factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, total.max(initial=0) + 1)))))
    orders = log_factorial[total] - log_factorial[counts].sum(axis=1)
    log_weight = orders + counts @ loads - log_efficiency[total]
    weight = np.exp(log_weight - log_weight.max())
    return law_at_admission(weight / weight.sum(), total)


def law_at_admission(law: Floats, total: Counts) -> tuple[Floats, float]:
    """Condition a law of all states on admission, and return the blocking probability."""
    has_room = total < total.max()
    accepted = law[has_room]
    if not accepted.sum() > 0:
        raise BadInput("the load is so high that practically no video is accepted; lower arrivals_per_s")
    return accepted / accepted.sum(), float(law[~has_room].sum())


# The chain that one tagged video sees in a shared cell, of constant or of changing capacity ---------------------------
#
# How it works. The tagged video needs a content of `mean_s` seconds and gets `speed * g(n) / n` seconds of video per
# second, n counting itself. For a capacity that changes, the state is the pair (level of capacity, others):
#
#     rates  =  kron(capacity rates, I)  +  for every level its own block of flow rates
#
# There is no product form then, so the law that arrivals see comes from one linear solve over all pairs of level and
# number of flows 0..K, conditioned on admission.

SLOWEST_FILL = 1e-9  # seconds of video per second in an outage, where nothing arrives


@dataclass(frozen=True, slots=True)
class TaggedVideo:
    """The video we follow: its fill rate when alone in the cell, its mean length, and the scatter of its service.

    `variance[n - 1]` is the variance per second of what one of n users receives, for a fill rate of 1 when alone.
    """

    speed: float
    mean_s: float
    variance: Floats | None = None


def shared_chain(
    flows: Sequence[Flow],
    tagged: TaggedVideo,
    efficiency: Floats,
    capacity: Capacity | None = None,
    departures: Floats | None = None,
) -> Chain:
    """What the tagged video sees among `flows`, at most `len(efficiency)` users at a time.

    `departures` takes the place of the efficiency for the pace at which flows leave, if some of them give up.
    """
    most = len(efficiency)
    if len(efficiency) * (1 if capacity is None else len(capacity.levels)) > MAX_STATES:
        raise BadInput(f"max_users is {most}, which makes too many states; keep it below {MAX_STATES}")
    counts, everyone = population(len(flows), most - 1), population(len(flows), most)
    if capacity is None:
        pace = efficiency if departures is None else departures
        seen = arrival_law(everyone, flows, pace)
        return _chain(flow_generator(counts, flows, pace, 1), counts, tagged, efficiency, seen)
    if not are_connected(capacity.generator):
        raise BadInput("some levels of capacity are never reached again from others; connect them by rates above zero")
    levels = [_at_level(flows, level) for level in capacity.levels]
    rates = _product_rates([flow_generator(counts, some, efficiency, 1) for some in levels], capacity)
    closed = _product_rates([flow_generator(everyone, some, efficiency, 0) for some in levels], capacity)
    total = np.tile(everyone.sum(axis=1), len(levels))
    seen = law_at_admission(stationary_law(closed), total)
    return _chain(rates, counts, tagged, efficiency, seen, capacity.levels)


def stationary_law(rates: Floats) -> Floats:
    """The law that a chain with these rates keeps; all its states must lead to each other."""
    system = rates.T.copy()
    system[-1] = 1.0
    target = np.zeros(len(rates))
    target[-1] = 1.0
    positive: Floats = np.maximum(np.linalg.solve(system, target), 0.0)
    return positive / float(positive.sum())


def _at_level(flows: Sequence[Flow], level: float) -> list[Flow]:
    return [replace(flow, alone_per_s=flow.alone_per_s * level) for flow in flows]


def _product_rates(blocks: list[Floats], capacity: Capacity) -> Floats:
    num = len(blocks[0])
    rates = np.asarray(np.kron(capacity.generator, np.eye(num)), dtype=np.float64)
    for place, block in enumerate(blocks):
        rates[place * num : (place + 1) * num, place * num : (place + 1) * num] += block
    np.fill_diagonal(rates, 0.0)
    np.fill_diagonal(rates, -rates.sum(axis=1))
    return rates


def _chain(
    rates: Floats,
    counts: Counts,
    tagged: TaggedVideo,
    efficiency: Floats,
    seen: tuple[Floats, float],
    levels: Floats | None = None,
) -> Chain:
    users = counts.sum(axis=1) + 1
    speed = tagged.speed * (np.ones(1) if levels is None else levels)
    fill = np.maximum(np.outer(speed, efficiency[users - 1] / users).ravel(), SLOWEST_FILL)
    scatter = np.zeros(len(efficiency)) if tagged.variance is None else tagged.variance
    return Chain(
        generator=rates,
        end=fill / tagged.mean_s,
        fill=fill,
        initial=seen[0],
        variance=np.outer(speed**2, scatter[users - 1]).ravel(),
        blocked_share=seen[1],
    )


# From a cell to the chain that its videos see -------------------------------------------------------------------------
#
# How it works. With plain sharing the cell delivers c seconds of video per second to whichever user. A scheduler that
# serves the user whose channel is best right now (Rayleigh fading, rate proportional to the signal) delivers c H_n to n
# users, with H_n = 1 + 1/2 + .. + 1/n. What one user gets in a slot of delta seconds is c delta X with probability 1/n,
# X the largest of n exponentials of mean 1, and nothing otherwise, so per second its mean and variance are
#
#     c H_n / n          c^2 delta [ (H_n^2 + H_n^(2)) / n  -  (H_n / n)^2 ],       H_n^(2) = 1 + 1/4 + .. + 1/n^2
#
# Xu, Elayoubi, Altman, El-Azouzi, Yu, "Flow Level QoE of Video Streaming in Wireless Networks", IEEE TMC 2016.

SLOT_S = 0.002  # scheduling interval
PICTURES_S = 1.0  # of video in a group of pictures, whose size varies


def chain_of(cell: Cell, tagged: int = 0, slot_s: float = SLOT_S) -> Chain:
    """What a video of class `tagged` of `cell.views` sees; `slot_s` matters for opportunistic cells only."""
    video = tagged_video(cell, tagged, slot_s)
    return with_vbr(shared_chain(flows_of(cell), video, efficiency_of(cell), cell.capacity), cell.variation, PICTURES_S)


def flows_of(cell: Cell) -> list[Flow]:
    """The videos of a cell as kinds of flows, one for each class of views."""
    return [Flow(cell.arrivals_per_s * view.share, cell.speed / view.mean_s) for view in cell.views]


def efficiency_of(cell: Cell) -> Floats:
    """How much more the cell delivers to 1, 2, .. max_users users than to one."""
    return _harmonic(cell.max_users, 1) if cell.opportunistic else np.ones(cell.max_users)


def tagged_video(cell: Cell, tagged: int, slot_s: float) -> TaggedVideo:
    """The video of class `tagged`, with the scatter of its service if the scheduler is opportunistic."""
    if not 0 <= tagged < len(cell.views):
        raise BadInput(f"tagged class {tagged} does not exist; the cell has classes 0 to {len(cell.views) - 1}")
    scatter = _slot_variance(cell.max_users, slot_s) if cell.opportunistic else None
    return TaggedVideo(cell.speed, cell.views[tagged].mean_s, scatter)


def _harmonic(most: int, power: int) -> Floats:
    return np.cumsum(1.0 / np.arange(1, most + 1, dtype=np.float64) ** power)


def _slot_variance(most: int, slot_s: float) -> Floats:
    if not 0 <= slot_s < np.inf:
        raise BadInput(f"slot_s is {slot_s}; give the length of a scheduling slot in seconds, such as {SLOT_S}")
    users, first, second = np.arange(1, most + 1), _harmonic(most, 1), _harmonic(most, 2)
    variance: Floats = slot_s * ((first**2 + second) / users - (first / users) ** 2)
    return variance


# What a video and its viewer add to a chain: variable bit rate, impatience --------------------------------------------
#
# Variable bit rate: groups of pictures of g seconds whose size has a coefficient of variation cv make the content that
# is played scatter by cv^2 g per second around its mean.
#
# Impatience is a rate of leaving while nothing plays. It enters the waits only: viewers stay during playback. The
# buffers of the others are not in the state, so their waiting is taken as a mean field: of n users a share waits, which
# is that of the tagged video itself while n users are there (`ImpatientCell`).


def with_vbr(chain: Chain, cv: float, gop_s: float) -> Chain:
    """Play a variable bit rate: sizes of groups of `gop_s` seconds have the coefficient of variation `cv`.

    A diffusion is right where many groups play before the buffer is empty: at a threshold of one group of 1 s and a
    `cv` of 1 it says 0.375 where a simulation says 0.306.
    """
    if not (0 <= cv < np.inf and 0 <= gop_s < np.inf):
        raise BadInput(f"cv is {cv} and gop_s {gop_s}; give finite numbers, zero or more")
    return replace(chain, variance=chain.variance + cv**2 * gop_s)


def impatient_chain(cell: Cell, per_s: float, waiting: Floats) -> Chain:
    """What a video sees when all viewers leave at `per_s` while they wait, and of n users `waiting[n - 1]` wait."""
    if len(cell.views) > 1 or cell.capacity is not None or cell.variation > 0:
        raise BadInput("viewers that give up are solved for one class of videos at a constant capacity; give those")
    (flow,) = flows_of(cell)
    efficiency, users = efficiency_of(cell), np.arange(1, cell.max_users + 1)
    departures = efficiency + users * per_s * waiting / flow.alone_per_s
    chain = shared_chain([flow], tagged_video(cell, 0, SLOT_S), efficiency, departures=departures)
    return with_abandonment(chain, per_s)


def with_abandonment(chain: Chain, per_s: float) -> Chain:
    """Let the viewer of this video leave at `per_s` while it waits; mean patience 1 / per_s. The others stay."""
    if not 0 <= per_s < np.inf:
        raise BadInput(f"the rate of giving up is {per_s} per second; give a finite number, zero or more")
    return replace(chain, give_up=np.full(chain.num_states, per_s))
