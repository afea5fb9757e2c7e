"""Published schedules to compare with: GPipe, 1F1B, interleaved 1F1B, zero bubble (ZB-H1, ZB-H2) and ZB-V."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from takeup.errors import BadInput
from takeup.training.pipelines.planners.warmups import clip_warmups
from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.schedule import Op, OpKind, PipelinePlan, Schedule
from takeup.training.pipelines.timing.evaluation import generate_schedule, make_plan

# Cut the stage of every rank into chunks, so that each rank processes a micro-batch several times ---------------------
#
# In `rounds` the chunks of rank r are stages r, P + r, 2 P + r ...; in a `v` rank r has the stages r and 2 P - 1 - r,
# so that the first and the last stage share a rank. The work of a rank is divided equally.


def round_robin_chunks(profile: Profile, num_chunks: int) -> Profile:
    """The same ranks with `num_chunks` chunks each; a profile already laid out in rounds is returned unchanged."""
    ranks = tuple(range(profile.num_ranks))
    if not profile.one_stage_per_rank and profile.placement == ranks * (profile.num_stages // profile.num_ranks):
        return profile
    return _cut_stages(profile, ranks * num_chunks)


def v_shaped_chunks(profile: Profile) -> Profile:
    """The same ranks with two chunks each; a profile already laid out in a V is returned unchanged."""
    ranks = tuple(range(profile.num_ranks))
    placement = ranks + ranks[::-1]
    return profile if profile.placement == placement else _cut_stages(profile, placement)


def _cut_stages(profile: Profile, placement: tuple[int, ...]) -> Profile:
    if not profile.one_stage_per_rank or profile.placement != tuple(range(profile.num_stages)):
        raise BadInput(f"stages are placed {profile.placement}; give one stage for each rank, in order")
    num_chunks = len(placement) // profile.num_ranks
    stages = tuple(_chunk_of(profile.stages[rank], num_chunks) for rank in placement)
    links = tuple(_chunk_link(profile, here, after) for here, after in pairwise(placement))
    return replace(profile, stages=stages, links=links, placement=placement)


def _chunk_of(stage: Stage, num_chunks: int) -> Stage:
    memory_bytes = None if stage.memory_bytes is None else stage.memory_bytes // num_chunks
    return Stage(
        stage.forward_s / num_chunks,
        stage.backward_s / num_chunks,
        stage.weight_s / num_chunks,
        -(-stage.activation_bytes // num_chunks),
        memory_bytes,
        stage.tail_s / num_chunks,
    )


def _chunk_link(profile: Profile, here: int, after: int) -> Link:
    """The measured link between neighbours; from the last rank to the first, which is unmeasured, the slowest."""
    if here == after:
        return Link()
    if abs(here - after) == 1:
        return profile.links[min(here, after)]
    return max(profile.links, key=lambda link: link.delay_s)


# GPipe: all forwards, then all backwards ------------------------------------------------------------------------------
#
# Huang et al., NeurIPS 2019. Simple, and every rank holds all micro-batches at once.


@dataclass(frozen=True, slots=True)
class GPipe:
    """Forwards of all stages of a rank from the first on, backwards from the last on."""

    name: str = "gpipe"

    def plan(self, profile: Profile) -> PipelinePlan:
        """A fixed order, independent of the times."""
        count = range(profile.num_microbatches)
        orders = [
            [Op(stage, OpKind.FORWARD, m) for stage in stages for m in count]
            + [Op(stage, OpKind.FULL_BACKWARD, m) for stage in reversed(stages) for m in count]
            for stages in profile.chunks
        ]
        schedule = Schedule.of_ops(orders, profile.placement, profile.num_microbatches)
        return make_plan(self.name, profile, schedule, ("all forwards come before the first backward",))


# 1F1B: a few forwards to warm up, then one backward for each forward --------------------------------------------------
#
# Narayanan et al., SOSP 2019 (PipeDream-Flush). Stage i of S warms up with S - i forwards, just enough to keep all
# stages busy when links cost nothing, and holds as many micro-batches.


@dataclass(frozen=True, slots=True)
class OneFOneB:
    """The schedule that most frameworks use."""

    name: str = "one_f_one_b"

    def plan(self, profile: Profile) -> PipelinePlan:
        """A fixed order, independent of the times."""
        if not profile.one_stage_per_rank:
            raise BadInput(f"{self.name!r} needs one stage on every rank; use 'interleaved_1f1b' for several")
        warmups = [min(profile.num_microbatches, profile.num_stages - i) for i in range(profile.num_stages)]
        orders = [_one_f_one_b_order(stage, warmup, profile.num_microbatches) for stage, warmup in enumerate(warmups)]
        schedule = Schedule.of_ops(orders, profile.placement, profile.num_microbatches)
        return make_plan(self.name, profile, schedule, (f"warm-ups {tuple(warmups)}: one for each stage to come",))


def _one_f_one_b_order(stage: int, warmup: int, num_microbatches: int) -> list[Op]:
    order = [Op(stage, OpKind.FORWARD, m) for m in range(warmup)]
    for microbatch in range(num_microbatches):
        order.append(Op(stage, OpKind.FULL_BACKWARD, microbatch))
        if microbatch + warmup < num_microbatches:
            order.append(Op(stage, OpKind.FORWARD, microbatch + warmup))
    return order


# Interleaved 1F1B: every rank has several chunks of the model, so bubbles shrink and the number of messages grows -----
#
# Narayanan et al., SC 2021. Micro-batches go through the chunks of a rank in rounds; rank r of P warms up with
# 2 (P - r - 1) forwards more than what the first chunks of a round need.


@dataclass(frozen=True, slots=True)
class Interleaved:
    """Cuts stages into `num_chunks` of equal work, unless the profile is already laid out in rounds."""

    name: str = "interleaved_1f1b"
    num_chunks: int = 2

    def plan(self, profile: Profile) -> PipelinePlan:
        """A fixed order, independent of the times."""
        cut = round_robin_chunks(profile, self.num_chunks)
        per_round = self._per_round(cut)
        orders = [_interleaved_order(cut, rank, per_round) for rank in range(cut.num_ranks)]
        schedule = Schedule.of_ops(orders, cut.placement, cut.num_microbatches)
        reason = f"{len(cut.chunks[0])} chunks on every rank, {per_round} micro-batches in a round"
        return make_plan(self.name, cut, schedule, (reason,))

    def _per_round(self, profile: Profile) -> int:
        count = profile.num_microbatches
        num_rounds = max(1, count // profile.num_ranks)
        if count % num_rounds:
            raise BadInput(
                f"{self.name!r} cannot share {count} micro-batches among {num_rounds} rounds; "
                "give a multiple of the number of ranks"
            )
        return count // num_rounds


def _interleaved_order(profile: Profile, rank: int, per_round: int) -> list[Op]:
    stages, count = profile.chunks[rank], profile.num_microbatches
    num_chunks, total = len(stages), len(stages) * count

    def place(number: int) -> tuple[int, int]:
        """The chunk and the micro-batch of the n-th forward."""
        in_round = number % (per_round * num_chunks)
        return in_round // per_round, number // (per_round * num_chunks) * per_round + in_round % per_round

    forwards = [Op(stages[chunk], OpKind.FORWARD, m) for chunk, m in map(place, range(total))]
    backwards = [Op(stages[-1 - chunk], OpKind.FULL_BACKWARD, m) for chunk, m in map(place, range(total))]
    warmup = min(total, (num_chunks - 1) * per_round + 2 * (profile.num_ranks - 1 - rank))
    if warmup == total:
        return forwards + backwards
    steady = [op for pair in zip(forwards[warmup:], backwards, strict=False) for op in pair]
    return forwards[:warmup] + steady + backwards[total - warmup :]


# Zero bubble: split the backward, and fill bubbles with weight gradients. Links are not considered --------------------
#
# Qi et al., ICLR 2024. `zb_h1` warms up like 1F1B and holds as many micro-batches; `zb_h2` warms up with 2 (S - i) - 1
# forwards, holds twice as many, and has no bubbles if all operations take equally long. Both come from the same
# generator as the adaptive schedules, with the measured operation times and links that cost nothing.


@dataclass(frozen=True, slots=True)
class ZeroBubble:
    """Holds `per_stage` micro-batches per pipeline stage, or as many as memory allows."""

    name: str = "zb_h1"
    per_stage: int = 1

    def plan(self, profile: Profile) -> PipelinePlan:
        """A schedule for the operation times; link delays are ignored."""
        num = profile.num_stages
        caps = [min(limit, self.per_stage * num) for limit in profile.live_limits()]
        wanted = [self.per_stage * (num - stage) - self.per_stage + 1 for stage in range(num)]
        warmups = clip_warmups(profile, wanted, caps)
        no_links = replace(profile, links=(Link(),) * len(profile.links), hop_s=0.0, max_sends=None)
        reason = f"warm-ups {warmups}, at most {max(caps)} micro-batches at once; links are not considered"
        return make_plan(self.name, profile, generate_schedule(no_links, warmups, caps), (reason,))


# ZB-V: two chunks on every rank, laid out as a V, and a split backward: no bubbles with the memory of 1F1B ------------
#
# Qi et al., "Pipeline Parallelism with Controllable Memory", 2024, in the fixed order that PyTorch's runtime uses too.

DOWN, UP = 0, 1  # the two chunks of a rank: down and up the V


@dataclass(frozen=True, slots=True)
class ZeroBubbleV:
    """Cuts stages into two chunks of equal work, unless the profile is already laid out in a V."""

    name: str = "zbv"

    def plan(self, profile: Profile) -> PipelinePlan:
        """A fixed order, independent of the times."""
        cut = v_shaped_chunks(profile)
        orders = [_zbv_order(cut, rank) for rank in range(cut.num_ranks)]
        schedule = Schedule.of_ops(orders, cut.placement, cut.num_microbatches)
        return make_plan(
            self.name, cut, schedule, ("rank r has the stages r and 2 P - 1 - r, so that rank 0 has both ends",)
        )


def _zbv_order(profile: Profile, rank: int) -> list[Op]:
    """Expand the pattern for at least 2 P - 1 micro-batches, then truncate it."""
    stages, done = profile.chunks[rank], dict[tuple[int, OpKind], int]()
    count = max(2 * profile.num_ranks - 1, profile.num_microbatches)
    order = []
    for chunk, kind in _zbv_pattern(profile.num_ranks, rank, count):
        microbatch = done.get((chunk, kind), 0)
        done[chunk, kind] = microbatch + 1
        if microbatch < profile.num_microbatches:
            order.append(Op(stages[chunk], kind, microbatch))
    return order


def _zbv_pattern(num_ranks: int, rank: int, count: int) -> Iterator[tuple[int, OpKind]]:
    forward, backward, weight = OpKind.FORWARD, OpKind.INPUT_GRADIENT, OpKind.WEIGHT_GRADIENT
    later = num_ranks - rank
    yield from [(DOWN, forward)] * (2 * later - 1)
    yield from [(UP, forward), (DOWN, forward)] * rank
    yield from [(UP, forward), (UP, backward), (UP, weight)] * later
    num_down = 2 * later - 1 + rank
    for step in range(count - num_ranks):
        if num_down + step < count:
            yield DOWN, forward
        yield from [(DOWN, backward), (DOWN, weight), (UP, forward), (UP, backward), (UP, weight)]
    yield from [(DOWN, backward), (UP, backward)] * rank
    yield from [(DOWN, backward), (DOWN, weight)] * later
    yield from [(UP, weight)] * rank
    yield from [(DOWN, weight)] * rank
