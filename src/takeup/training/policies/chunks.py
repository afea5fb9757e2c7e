"""Cut the stage of every rank into chunks, so that each rank processes a micro-batch several times.

In `rounds` the chunks of rank r are stages r, P + r, 2 P + r ...; in a `v` rank r has the stages r and 2 P - 1 - r, so
that the first and the last stage share a rank. The work of a rank is divided equally.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from takeup.errors import BadInput
from takeup.training.model.pipeline import Link, Profile, Stage


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
