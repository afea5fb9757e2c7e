"""What tests in a pause show, from their times alone."""

from __future__ import annotations

from takeup.training.engines.pytorch.watch.confirm import Confirmed, judge


def ranks(*walls_s: float) -> dict[int, dict[str, float]]:
    return {rank: {"wall_s": wall_s, "cpu_s": wall_s} for rank, wall_s in enumerate(walls_s)}


def links(**times_s: float) -> dict[int, dict[str, dict[str, float]]]:
    """Links by the ranks at their ends, `r01=...`; both ends tell."""
    found: dict[int, dict[str, dict[str, float]]] = {rank: {"links_s": {}} for rank in range(4)}
    for name, time_s in times_s.items():
        one, other = int(name[1]), int(name[2])
        found[one]["links_s"][str(other)] = found[other]["links_s"][str(one)] = time_s
    return found


def test_a_rank_that_computes_slowly_is_named_with_its_factor() -> None:
    found = judge(ranks(1.0, 2.0, 1.0, 1.1), links(r01=1.0, r12=1.0, r23=1.0, r03=1.0), 0.5)

    assert found.slow_ranks == {1: 2.0}
    assert found.slow_links == {}
    assert found.sentence() == "tested in a pause of 0.50 s: rank 1 computes 2.00x slower"


def test_links_of_a_slow_rank_are_not_blamed() -> None:
    found = judge(ranks(1.0, 2.0, 1.0, 1.0), links(r01=5.0, r12=5.0, r23=1.0, r03=1.0), 0.5)

    assert (found.slow_ranks, found.slow_links) == ({1: 2.0}, {})


def test_a_slow_link_between_healthy_ranks_is_named() -> None:
    found = judge(ranks(1.0, 1.0, 1.0, 1.0), links(r01=1.0, r12=3.0, r23=1.0, r03=1.0), 0.5)

    assert found.slow_links == {(1, 2): 3.0}
    assert "the link 1-2 is 3.00x slower" in found.sentence()


def test_two_slow_ranks_of_four_are_both_named() -> None:
    found = judge(ranks(1.0, 2.0, 1.0, 3.0), links(r01=1.0, r12=1.0, r23=1.0, r03=1.0), 0.5)

    assert set(found.slow_ranks) == {1, 3}


def test_if_all_are_alike_it_has_vanished() -> None:
    found = judge(ranks(1.0, 1.1, 1.0, 1.05), links(r01=1.0, r12=1.2, r23=1.0, r03=1.0), 0.5)

    assert (found.slow_ranks, found.slow_links) == ({}, {})
    assert "it has vanished" in found.sentence()


def test_a_rank_alone_has_nobody_to_be_compared_with() -> None:
    assert judge(ranks(9.0), {}, 0.1) == Confirmed({}, {}, 0.1)
