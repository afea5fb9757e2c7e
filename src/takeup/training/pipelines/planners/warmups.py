"""How many forwards every stage computes before its first backward: the slack that hides a slow link.

Wu et al., "Attack of the Bubbles" (ADAPTRA, PipeMorph), NSDI 2026, Lemma 1, Theorem 1, Algorithms 1 and 2. Slackness
D_i is the warm-up of stage i less that of stage i + 1. A delay c of link i is absorbed if and only if

    tF_i + tB_i + 2 c  <=  D_i (tF_(i+1) + tB_(i+1))

Two things differ from the paper. Slackness is never clipped at N - 2 S, which gives no slack at N = 2 S and negative
counts below; it is limited by micro-batches and memory. And the delays that are absorbed are computed by solving the
same formula for c, so that a first plan can be made for them (see `AdaptraInitial`).
"""

import math
from collections.abc import Sequence

from takeup.training.pipelines.profile import Profile, Stage

ROUNDING = 1e-9  # rounding tolerance of a quotient that should be an integer, in operations


def spread_warmups(most: int, num_stages: int) -> tuple[int, ...]:
    """Algorithm 1: warm-ups from `most` down to 1 that maximize the least slackness."""
    if num_stages == 1:
        return (1,)
    each, rest = divmod(most - 1, num_stages - 1)
    warmups = [most]
    for link in range(num_stages - 1):
        warmups.append(warmups[-1] - each - (1 if link < rest else 0))
    return tuple(warmups)


def adapt_warmups(profile: Profile) -> tuple[int, ...]:
    """Algorithm 2: as much slackness as the delay of every link requires, and at least 2."""
    warmups = [1]
    for here, after, link in reversed(list(zip(profile.stages, profile.stages[1:], profile.links, strict=False))):
        delay_s = link.delay_s + profile.hop_s
        warmups.insert(
            0, warmups[0] + _slackness(_pair_s(here) + 2 * delay_s, _pair_s(after), profile.num_microbatches)
        )
    return tuple(warmups)


def _slackness(needed_s: float, per_step_s: float, most: int) -> int:
    if per_step_s <= 0:
        return most
    return max(2, min(most, math.ceil(needed_s / per_step_s - ROUNDING)))


def absorbed_delays_s(profile: Profile, warmups: Sequence[int]) -> tuple[float, ...]:
    """The largest delay of every link that these warm-ups absorb."""
    return tuple(
        max(0.0, ((warmups[i] - warmups[i + 1]) * _pair_s(after) - _pair_s(here)) / 2)
        for i, (here, after) in enumerate(zip(profile.stages, profile.stages[1:], strict=False))
    )


def clip_warmups(profile: Profile, warmups: Sequence[int], caps: Sequence[int]) -> tuple[int, ...]:
    """The largest non-increasing warm-ups (Lemma 1) within these that micro-batches and memory allow."""
    found: list[int] = []
    for stage, warmup in enumerate(warmups):
        before = found[-1] if found else profile.num_microbatches
        found.append(max(1, min(warmup, before, caps[profile.placement[stage]])))
    return tuple(found)


def _pair_s(stage: Stage) -> float:
    return stage.forward_s + stage.backward_s
