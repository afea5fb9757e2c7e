"""Pipelines for tests: drawn ones with whole milliseconds, so that moments often coincide."""

from __future__ import annotations

from hypothesis import strategies as st

from takeup.training.pipelines.profile import Link, Profile, Stage


def ms(seconds: float) -> float:
    """Milliseconds, to the nanosecond."""
    return round(1e3 * seconds, 6)


@st.composite
def profiles(
    draw: st.DrawFn, most_stages: int = 4, most_microbatches: int = 6, chunked: bool = True, shared: bool = False
) -> Profile:
    """Any pipeline that the simulator knows: chunks, queues, uneven sizes, blocking sends; `shared` for both ways."""
    num_ranks = draw(st.integers(1, most_stages))
    ranks = tuple(range(num_ranks))
    placements = [ranks, ranks + ranks, ranks + ranks[::-1]] if chunked else [ranks]
    placement = draw(st.sampled_from(placements))
    count = draw(st.integers(1, most_microbatches))
    time_s = st.integers(1, 5).map(lambda number: number / 1e3)
    delay_s = st.integers(0, 12).map(lambda number: number / 1e3)
    num_channels = draw(st.integers(1, 3))
    stages = tuple(Stage(draw(time_s), draw(time_s), draw(time_s), tail_s=draw(delay_s)) for _ in placement)
    links = tuple(Link(draw(delay_s), draw(delay_s), num_channels, shared) for _ in placement[1:])
    sizes = tuple(draw(st.sampled_from([1.0, 2.0])) for _ in range(count)) if draw(st.booleans()) else ()
    max_sends = draw(st.sampled_from([None, 1, 2]))
    return Profile(stages, links, count, placement, sizes, draw(delay_s) / 4, draw(delay_s) / 4, max_sends)


def slow(num_stages: int, num_microbatches: int, latencies_ms: dict[int, float], op_ms: float = 10.0) -> Profile:
    """All operations as long, and some links with a latency."""
    links = {number: Link(latency / 1e3) for number, latency in latencies_ms.items()}
    return Profile.uniform(num_stages, num_microbatches, op_ms / 1e3, links)


def congested(num_stages: int, num_microbatches: int, services_ms: dict[int, float], op_ms: float = 10.0) -> Profile:
    """All operations as long, and some links that serve one message at a time."""
    links = {number: Link(service_s=service / 1e3) for number, service in services_ms.items()}
    return Profile.uniform(num_stages, num_microbatches, op_ms / 1e3, links)
