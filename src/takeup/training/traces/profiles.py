"""Random profiles: uneven stages, and some slow links."""

from __future__ import annotations

from numpy.random import Generator

from takeup.training.model.pipeline import Link, Profile, Stage


def random_profile(
    random: Generator,
    num_stages: int,
    num_microbatches: int,
    *,
    op_ms: tuple[float, float] = (10.0, 20.0),
    spread_share: float = 0.15,
    slow_share: float = 1 / 3,
    slow_ms: tuple[float, float] = (5.0, 60.0),
) -> Profile:
    """A pipeline whose operations differ by stage and kind, and in which some links have a latency.

    Operation times are drawn from `op_ms` and varied by up to `spread_share`; a link is slow with probability
    `slow_share`, by a time from `slow_ms`.
    """
    means_s = random.uniform(*op_ms, (num_stages, 3)) / 1e3
    times_s = means_s * random.uniform(1 - spread_share, 1 + spread_share, (num_stages, 3))
    stages = tuple(Stage(forward_s, backward_s, weight_s) for forward_s, backward_s, weight_s in times_s.tolist())
    is_slow = random.random(num_stages - 1) < slow_share
    delays_s = random.uniform(*slow_ms, num_stages - 1) / 1e3
    links = tuple(Link(float(delay_s) if slow else 0.0) for slow, delay_s in zip(is_slow, delays_s, strict=True))
    return Profile(stages, links, num_microbatches)
