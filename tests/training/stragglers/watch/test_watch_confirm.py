"""What tests in a pause show, from their times alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from takeup.training.stragglers.contract import Confirmation
from takeup.training.stragglers.watch.confirmation import PauseController, evaluate_tests


def ranks(*walls_s: float, waited_s: Sequence[float] = (0.0,) * 4) -> dict[int, dict[str, float]]:
    return {rank: {"wall_s": wall_s, "waited_s": waited_s[rank]} for rank, wall_s in enumerate(walls_s)}


def links(**times_s: float) -> dict[int, dict[str, dict[str, float]]]:
    """Links by the ranks at their ends, `r01=...`; both ends tell."""
    found: dict[int, dict[str, dict[str, float]]] = {rank: {"links_s": {}} for rank in range(4)}
    for name, time_s in times_s.items():
        one, other = int(name[1]), int(name[2])
        found[one]["links_s"][str(other)] = found[other]["links_s"][str(one)] = time_s
    return found


def test_a_rank_that_computes_slowly_is_named_with_its_factor() -> None:
    found = evaluate_tests(ranks(1.0, 2.0, 1.0, 1.1), links(r01=1.0, r12=1.0, r23=1.0, r03=1.0), 0.5)

    assert found.slow_ranks == {1: 2.0}
    assert found.slow_links == {}
    assert found.sentence() == "tested in a pause of 0.50 s: rank 1 computes 2.00x slower"


def test_on_a_busy_machine_waiting_for_cores_does_not_count() -> None:
    found = evaluate_tests(ranks(3.0, 5.0, 2.0, 6.0, waited_s=(2.0, 4.0, 1.0, 1.0)), links(r01=1.0, r23=1.0), 0.5)

    assert found.slow_ranks == {3: 5.0}


def test_a_rank_that_alone_waits_for_a_core_is_slow() -> None:
    found = evaluate_tests(ranks(1.0, 2.0, 1.0, 1.0, waited_s=(0.1, 1.0, 0.0, 0.0)), links(r01=1.0, r23=1.0), 0.5)

    assert found.slow_ranks == {1: 2.0}


def test_links_of_a_slow_rank_are_not_blamed() -> None:
    found = evaluate_tests(ranks(1.0, 2.0, 1.0, 1.0), links(r01=5.0, r12=5.0, r23=1.0, r03=1.0), 0.5)

    assert (found.slow_ranks, found.slow_links) == ({1: 2.0}, {})


def test_beside_a_slow_rank_a_link_must_be_clearly_slow() -> None:
    walls_s = (1.0, 2.0, 1.0, 1.0)

    assert evaluate_tests(ranks(*walls_s), links(r02=1.0, r23=2.0, r03=1.0), 0.5).slow_links == {}
    assert evaluate_tests(ranks(*walls_s), links(r02=1.0, r23=9.0, r03=1.0), 0.5).slow_links == {(2, 3): 9.0}


def test_beside_a_clearly_slow_link_a_rank_must_be_clearly_slow() -> None:
    thin = links(r01=1.0, r12=1.0, r23=9.0, r03=1.0)
    doubtful, clear = (evaluate_tests(ranks(1.0, 1.0, 1.0, wall_s), thin, 0.5) for wall_s in (1.4, 1.6))

    assert (doubtful.slow_ranks, doubtful.slow_links) == ({}, {(2, 3): 9.0})
    assert (clear.slow_ranks, clear.slow_links) == ({3: 1.6}, {})
    assert evaluate_tests(ranks(1.0, 1.0, 1.0, 1.4), links(r01=1.0, r12=1.0, r23=2.9, r03=1.0), 0.5).slow_ranks == {
        3: 1.4
    }


def test_a_link_is_compared_with_all_others_also_those_of_a_slow_rank() -> None:
    found = evaluate_tests(ranks(2.0, 1.0, 1.0, 1.0), links(r01=1.0, r12=3.5, r23=1.0, r03=1.2), 0.5)
    alone = evaluate_tests(ranks(2.0, 1.0, 1.0, 1.0), links(r01=3.0, r12=3.5, r23=1.0, r03=3.0), 0.5)

    assert found.slow_links == {(1, 2): 3.5}
    assert alone.slow_links == {}


def test_a_slow_link_between_healthy_ranks_is_named() -> None:
    found = evaluate_tests(ranks(1.0, 1.0, 1.0, 1.0), links(r01=1.0, r12=3.0, r23=1.0, r03=1.0), 0.5)

    assert found.slow_links == {(1, 2): 3.0}
    assert "the link 1-2 is 3.00x slower" in found.sentence()


def test_two_slow_ranks_of_four_are_both_named() -> None:
    found = evaluate_tests(ranks(1.0, 2.0, 1.0, 3.0), links(r01=1.0, r12=1.0, r23=1.0, r03=1.0), 0.5)

    assert set(found.slow_ranks) == {1, 3}


def test_if_all_are_alike_it_has_vanished() -> None:
    found = evaluate_tests(ranks(1.0, 1.1, 1.0, 1.05), links(r01=1.0, r12=1.2, r23=1.0, r03=1.0), 0.5)

    assert (found.slow_ranks, found.slow_links) == ({}, {})
    assert "it has vanished" in found.sentence()


def test_a_rank_alone_has_nobody_to_be_compared_with() -> None:
    assert evaluate_tests(ranks(9.0), {}, 0.1) == Confirmation({}, {}, 0.1)


class Noisy(PauseController):
    """Tests whose first times are disturbed by something that has passed when they are repeated."""

    def __init__(self, folder: Path, first: dict[str, Any], then: dict[str, Any]) -> None:
        super().__init__(folder)
        self._times = {kind: [first[kind], then[kind]] for kind in first}
        self.asked: list[tuple[str, tuple[int, ...]]] = []

    def _test(self, readers: Mapping[int, Any], asked: dict[str, Any]) -> dict[int, dict[str, Any]]:
        self.asked.append((asked["kind"], tuple(readers)))
        before = [rank for kind, some in self.asked[:-1] for rank in some if kind == asked["kind"]]
        return {rank: self._times[asked["kind"]][rank in before][rank] for rank in readers}


def test_what_seems_slow_is_tested_again_alone_before_it_is_named(tmp_path: Path) -> None:
    first: dict[str, Any] = {"compute": ranks(1.0, 2.0, 1.0, 2.0), "links": links(r01=1.0, r12=1.0, r23=1.0, r02=9.0)}
    then: dict[str, Any] = {"compute": ranks(1.0, 1.0, 1.0, 2.0), "links": links(r02=1.1)}
    pauses = Noisy(tmp_path, first, then)

    found = pauses._tested(dict.fromkeys(range(4)), [[(0, 1), (2, 3)]])  # type: ignore[arg-type]

    assert found.slow_ranks == {3: 2.0}
    assert found.slow_links == {}
    everybody = ("links", (0, 1, 2, 3))
    assert pauses.asked[-4:] == [("compute", (1,)), ("compute", (3,)), everybody, everybody]


@pytest.mark.parametrize(
    ("times", "num_tests", "is_slow"),
    [
        ((2.0, 1.9, 1.8, 1.2), 4, False),  # it becomes faster and faster: something passes
        ((2.0, 1.9, 1.8, 1.7), 4, True),
        ((9.0, 8.0), 2, True),  # clear enough
        ((9.0, 2.0, 1.0), 3, False),
    ],
)
def test_links_that_are_not_clearly_slow_are_tested_up_to_four_times(
    tmp_path: Path, times: tuple[float, ...], num_tests: int, is_slow: bool
) -> None:
    class Passing(PauseController):
        num_tests = 0

        def _test(self, readers: Mapping[int, Any], asked: dict[str, Any]) -> dict[int, dict[str, Any]]:
            if asked["kind"] == "compute":
                return {rank: ranks(1.0, 1.0, 1.0, 1.0)[rank] for rank in readers}
            self.num_tests += 1
            return links(r01=1.0, r12=times[self.num_tests - 1], r23=1.0, r03=1.0)

    pauses = Passing(tmp_path)
    found = pauses._tested(dict.fromkeys(range(4)), [[(0, 1), (2, 3)], [(1, 2), (0, 3)]])  # type: ignore[arg-type]

    assert pauses.num_tests == num_tests
    assert set(found.slow_links) == ({(1, 2)} if is_slow else set())


def test_what_is_fast_is_tested_once(tmp_path: Path) -> None:
    well: dict[str, Any] = {"compute": ranks(1.0, 1.0, 1.0, 1.0), "links": links(r01=1.0, r23=1.0)}
    pauses = Noisy(tmp_path, well, {"compute": {}, "links": {}})

    assert pauses._tested(dict.fromkeys(range(4)), [[(0, 1), (2, 3)]]) == Confirmation({}, {})  # type: ignore[arg-type]
    assert [kind for kind, _ in pauses.asked].count("links") == 1
