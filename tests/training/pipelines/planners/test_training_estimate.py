"""Links from the stamps of messages: what went in comes out, whatever the clocks say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.errors import BadInput
from takeup.training.pipelines.planners.adaptation import MessageStamps, clock_offset_s, estimate_link


def stamps(
    random: np.random.Generator, latency_s: float, service_s: float, ahead_s: float, gap_s: float, noise_s: float = 0.0
) -> MessageStamps:
    """Messages over one link in one direction, with a receiver whose clock is ahead."""
    handed_s = np.cumsum(random.exponential(gap_s, 64))
    free_s, usable_s = 0.0, []
    for moment_s in handed_s:
        free_s = max(free_s, moment_s) + service_s
        usable_s.append(free_s + latency_s + random.exponential(noise_s) + ahead_s)
    return MessageStamps(handed_s, np.array(usable_s))


def both_ways(
    seed: int, latency_s: float, service_s: float, ahead_s: float, noise_s: float = 0.0
) -> tuple[MessageStamps, MessageStamps]:
    random = np.random.default_rng(seed)
    there, back = (stamps(random, latency_s, service_s, sign * ahead_s, 0.02, noise_s) for sign in (1, -1))
    return there, back


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.floats(0, 0.08), st.floats(0.012, 0.03), st.floats(-5, 5))
def test_latency_and_service_are_told_apart(seed: int, latency_s: float, service_s: float, ahead_s: float) -> None:
    estimate = estimate_link(*both_ways(seed, latency_s, service_s, ahead_s))

    assert estimate.offset_s == pytest.approx(ahead_s, abs=1e-6)
    assert estimate.link.service_s == pytest.approx(service_s, abs=2e-4)
    assert estimate.link.latency_s == pytest.approx(latency_s, abs=4e-4)
    assert estimate.rest_s < 2e-3


def test_a_link_that_never_queues_has_latency_only() -> None:
    estimate = estimate_link(*both_ways(1, latency_s=0.05, service_s=0.0, ahead_s=3.0))

    assert estimate.link.service_s == 0.0
    assert estimate.link.latency_s == pytest.approx(0.05)


def test_noise_moves_the_estimate_little() -> None:
    estimate = estimate_link(*both_ways(2, latency_s=0.02, service_s=0.02, ahead_s=-1.0, noise_s=0.001))

    assert estimate.link.service_s == pytest.approx(0.02, rel=0.1)
    assert estimate.link.delay_s == pytest.approx(0.04, rel=0.1)


def test_the_offset_is_half_of_what_the_fastest_messages_differ_by() -> None:
    there = MessageStamps(np.array([0.0, 1.0]), np.array([10.3, 11.1]))
    back = MessageStamps(np.array([10.0, 11.0]), np.array([0.4, 1.1]))

    assert clock_offset_s(there, back) == pytest.approx((10.1 + 9.9) / 2)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (MessageStamps(np.array([]), np.array([])), "at least one number"),
        (MessageStamps(np.array([0.0, np.nan]), np.array([1.0, 2.0])), "finite"),
        (MessageStamps(np.array([0.0, 1.0]), np.array([1.0])), "give pairs"),
        (MessageStamps(np.array([1.0, 0.0]), np.array([2.0, 1.0])), "not in order of time"),
    ],
)
def test_stamps_that_are_none_are_refused(wrong: MessageStamps, words: str) -> None:
    fine = MessageStamps(np.array([0.0]), np.array([1.0]))

    with pytest.raises(BadInput, match=words):
        estimate_link(wrong, fine)
    with pytest.raises(BadInput, match=words):
        estimate_link(fine, wrong)
