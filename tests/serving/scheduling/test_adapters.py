"""The cache of adapters: what leaves, what a trace costs, and that drawn traces behave as the measured ones did."""

from __future__ import annotations

import io
import tarfile
from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.support.routed_replay import Affinity, replay_routed
from takeup.errors import BadInput, BadTrace, UnknownName
from takeup.serving.model import Access, AdapterReplay
from takeup.serving.scheduling.adapters import ADAPTER_POLICIES, fewest_loads, in_order, shared_loads
from takeup.serving.scheduling.routing import least_busy
from takeup.serving.simulate.adapter_cache import replay_adapters
from takeup.serving.traces.adapter_accesses import MEASURED, generate_accesses, interleaved
from takeup.serving.traces.arrivals import read_gentd26

SIZES = range(1, 11)
traces = st.lists(
    st.builds(Access, st.integers(0, 1), st.lists(st.integers(0, 7), max_size=3, unique=True).map(tuple)), max_size=40
)


def replay(policy: str, accesses: list[Access], capacity: int, **options: object) -> AdapterReplay:
    return replay_adapters(policy, ADAPTER_POLICIES[policy], accesses, capacity=capacity, **options)  # type: ignore[arg-type]


def one_instance(*sets: tuple[int, ...]) -> list[Access]:
    return [Access(0, adapters) for adapters in sets]


def lru_loads(accesses: list[Access], capacity: int) -> int:
    """By an ordered dictionary, one for each instance."""
    caches: dict[int, OrderedDict[int, None]] = {}
    num_loads = 0
    for access in accesses:
        cache = caches.setdefault(access.instance, OrderedDict())
        for adapter in access.adapters:
            num_loads += adapter not in cache
            cache[adapter] = None
            cache.move_to_end(adapter)
            if len(cache) > capacity:
                cache.popitem(last=False)
    return num_loads


def fewest_possible(accesses: list[Access], capacity: int) -> int:
    """Belady's optimum: what is used furthest in the future leaves."""
    num_loads = 0
    for instance in {access.instance for access in accesses}:
        uses = [one for access in accesses if access.instance == instance for one in access.adapters]
        cache: set[int] = set()
        for now, adapter in enumerate(uses):
            if adapter in cache:
                continue
            num_loads += 1
            if len(cache) == capacity:
                rest = uses[now + 1 :]
                cache.remove(max(cache, key=lambda one, rest=rest: rest.index(one) if one in rest else len(rest)))  # type: ignore[misc]
            cache.add(adapter)
    return num_loads


# Replay -------------------------------------------------------------------------------------------------------------


@given(traces, st.integers(1, 5))
def test_lru_loads_what_an_ordered_dictionary_loads(accesses: list[Access], capacity: int) -> None:
    assert replay("lru", accesses, capacity).num_loads == lru_loads(accesses, capacity)


@given(traces, st.integers(1, 5), st.sampled_from(sorted(ADAPTER_POLICIES)), st.integers(0, 4))
def test_nobody_loads_less_than_the_optimum_or_more_than_everything(
    accesses: list[Access], capacity: int, policy: str, look_ahead: int
) -> None:
    result = replay(policy, accesses, capacity, look_ahead=look_ahead)

    assert fewest_possible(accesses, capacity) <= result.num_loads <= result.num_uses
    assert result.num_requests == len(accesses)


@given(traces, st.integers(1, 5))
def test_who_sees_the_whole_queue_is_as_good_as_the_optimum(accesses: list[Access], capacity: int) -> None:
    best = replay("furthest_next_use", accesses, capacity, look_ahead=100).num_loads

    assert best == fewest_possible(accesses, capacity)


@given(traces, st.integers(1, 5), st.integers(0, 6), st.integers(0, 6))
def test_in_any_order_everybody_is_served_once(
    accesses: list[Access], capacity: int, look_ahead: int, patience: int
) -> None:
    options = {"look_ahead": look_ahead, "choose": fewest_loads, "patience": patience}
    result = replay("lerc", accesses, capacity, **options)
    empty = sum(not access.adapters for access in accesses)

    assert result.num_loads >= len({(a.instance, one) for a in accesses for one in a.adapters})
    assert empty <= result.num_complete <= len(accesses)


def test_requests_whose_adapters_are_all_there_are_complete() -> None:
    result = replay("lru", one_instance((1, 2), (1,), (1, 3), ()), 2)

    assert (result.num_uses, result.num_loads, result.num_complete) == (5, 3, 2)
    assert result.loads_per_request == 0.75
    assert result.complete_share == 0.5


def test_a_cache_for_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="holds nothing"):
        replay("lru", [], 0)


# Policies, worked by hand -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "victim"), [("lru", 1), ("lfu", 2), ("gdsf", 2)])
def test_the_past_decides(policy: str, victim: int) -> None:
    cache = ADAPTER_POLICIES[policy]()
    for adapter in (1, 1, 1, 2, 3, 3):
        cache.used(adapter)

    assert cache.victim({1, 2, 3}, ()) == victim


def test_old_frequency_ages_away() -> None:
    cache = ADAPTER_POLICIES["gdsf"]()
    for adapter in (1, 1, 1):
        cache.used(adapter)
    for newcomer in range(2, 6):  # each comes, is used twice, and leaves
        cache.used(newcomer)
        cache.used(newcomer)
        if newcomer < 5:
            cache.left(newcomer)

    assert cache.victim({1, 5}, ()) == 1


def test_effective_references_count_more_than_references() -> None:
    cache = ADAPTER_POLICIES["lerc"]()
    for adapter in (1, 2, 3):
        cache.used(adapter)
    queue = [(1, 9), (1, 8), (2, 3)]  # 1 is wanted twice, but its peers are not there

    assert cache.victim({1, 2, 3}, queue) == 1
    assert cache.victim({1, 2}, [(1,), (1,), (2,)]) == 2


def test_of_those_nobody_waits_for_the_rarely_used_leave_first() -> None:
    cache = ADAPTER_POLICIES["lerc"]()
    for adapter in (1, 1, 1, 1, 1, 2, 3):
        cache.used(adapter)
    cache.left(2)
    for _ in range(4):  # with the one before it left: five in all
        cache.used(2)

    assert cache.victim({1, 2, 3}, ()) == 3
    assert cache.victim({1, 2}, ()) == 1
    assert cache.victim({1, 3}, [(3,)]) == 1


def test_what_is_wanted_last_leaves_first() -> None:
    cache = ADAPTER_POLICIES["furthest_next_use"]()
    for adapter in (1, 2, 3):
        cache.used(adapter)

    assert cache.victim({1, 2, 3}, [(3,), (2,), (1,)]) == 1
    assert cache.victim({1, 2, 3}, [(3,), (1,)]) == 2


def test_only_some_policies_look_at_the_queue() -> None:
    assert {name for name, policy in ADAPTER_POLICIES.items() if policy.look_ahead} == {"lerc", "furthest_next_use"}


def test_the_request_that_loads_least_is_served_first() -> None:
    waiting = [(1, 2), (3,), (4, 5), (4,)]

    assert fewest_loads(waiting, {4, 5}) == 2
    assert in_order(waiting, {4, 5}) == 0


def test_nobody_is_overtaken_too_often() -> None:
    sets = one_instance((1,), (2,), (1,), (2,), (1,), (2,), (1,))
    patient = replay("lru", sets, 1, look_ahead=6, choose=fewest_loads, patience=6)
    hasty = replay("lru", sets, 1, look_ahead=6, choose=fewest_loads, patience=1)

    assert patient.num_loads == 2
    assert patient.num_loads < hasty.num_loads < replay("lru", sets, 1).num_loads


# Routing ------------------------------------------------------------------------------------------------------------


def test_a_request_goes_where_its_adapters_are() -> None:
    route = Affinity(slack=2.0)

    assert route((1, 2), [{1}, {1, 2}, set()], [5, 5, 5]) == 1
    assert route((9,), [{1}, {1, 2}, set()], [5, 6, 4]) == 2


def test_an_instance_that_is_too_busy_gets_nothing() -> None:
    assert Affinity(slack=1.25)((1,), [{1}, set()], [9, 3]) == 1


@given(traces, st.integers(1, 4), st.floats(1, 2))
def test_load_is_bounded_and_nothing_is_lost(accesses: list[Access], num_instances: int, slack: float) -> None:
    served = []

    def route(adapters: Collection[Hashable], caches: Sequence[Collection[Hashable]], so_far: Sequence[int]) -> int:
        served.append(Affinity(slack)(adapters, caches, so_far))
        return served[-1]

    result = replay_routed(
        "lru", ADAPTER_POLICIES["lru"], accesses, capacity=2, num_instances=num_instances, route=route
    )

    assert result.num_requests == len(served)
    assert all(served.count(one) <= slack * len(served) / num_instances + 1 for one in range(num_instances))
    assert result.num_loads >= len({one for access in accesses for one in access.adapters})


def test_on_one_instance_routing_changes_nothing() -> None:
    accesses = [replace(one, instance=0) for one in generate_accesses("b-lora", 1, seed=5)]
    routed = replay_routed("lru", ADAPTER_POLICIES["lru"], accesses, capacity=5, num_instances=1, route=least_busy)

    assert routed == replay("lru", accesses, 5)


@pytest.mark.parametrize("name", ["a-lora", "b-lora"])
def test_a_queue_served_by_what_is_there_saves_a_fifth_of_the_loads_of_lru(name: str) -> None:
    accesses = generate_accesses(name, 2, seed=1)
    options = {"look_ahead": 64, "choose": shared_loads, "patience": 64}

    assert replay("lerc", accesses, 5, **options).num_loads < 0.8 * replay("lru", accesses, 5).num_loads


def test_affinity_saves_a_fifth_of_all_loads_at_the_same_size_of_caches() -> None:
    accesses = interleaved(generate_accesses("b-lora", 8, seed=0))
    make = ADAPTER_POLICIES["lru"]
    routed = replay_routed("lru", make, accesses, capacity=5, num_instances=8, route=Affinity(1.1))

    assert routed.num_loads < 0.8 * replay("lru", accesses, 5).num_loads


@pytest.mark.parametrize("wrong", [{"capacity": 0, "num_instances": 1}, {"capacity": 1, "num_instances": 0}])
def test_no_instances_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(BadInput, match="at least 1 of both"):
        replay_routed("lru", ADAPTER_POLICIES["lru"], [], route=least_busy, **wrong)


def test_a_bound_below_the_mean_is_refused() -> None:
    with pytest.raises(BadInput, match="at least 1"):
        Affinity(slack=0.9)


def test_instances_take_turns_in_an_interleaved_trace() -> None:
    accesses = [Access(0, (1,)), Access(0, (2,)), Access(0, (3,)), Access(1, (4,))]

    assert [one.adapters for one in interleaved(accesses)] == [(1,), (4,), (2,), (3,)]


# Drawn traces -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a-lora", "b-lora"])
def test_loads_of_drawn_loras_are_the_measured_ones(name: str) -> None:
    accesses, measured = generate_accesses(name, 12, seed=0), MEASURED[name]
    ratios = [replay("lru", accesses, size).loads_per_request / measured.lru_loads[size - 1] for size in SIZES]

    assert all(ratio == pytest.approx(1, abs=0.05) for ratio in ratios)


@pytest.mark.parametrize("name", ["a-controlnet", "b-controlnet"])
def test_loads_of_drawn_controlnets_are_the_measured_ones_but_for_the_first_uses(name: str) -> None:
    accesses, measured = generate_accesses(name, 12, seed=0), MEASURED[name]
    first_uses = 10 * 12 / len(accesses)  # of an instance: no distance explains them
    loads = [replay("lru", accesses, size).loads_per_request for size in SIZES]

    for ours, theirs in zip(loads, measured.lru_loads, strict=True):
        assert theirs * 0.95 <= ours <= theirs * 1.05 + first_uses


def test_what_was_not_drawn_from_agrees_as_well() -> None:
    accesses, measured = generate_accesses("a-lora", 12, seed=0), MEASURED["a-lora"]
    num_unique = len({(access.instance, one) for access in accesses for one in access.adapters})
    frequent = [replay("lfu", accesses, size).loads_per_request for size in (2, 6, 10)]

    assert num_unique / len(accesses) == pytest.approx(measured.unique_per_request, rel=0.1)
    assert frequent == pytest.approx([measured.lfu_loads[size - 1] for size in (2, 6, 10)], rel=0.05)


def test_requests_have_as_many_adapters_as_measured() -> None:
    accesses, measured = generate_accesses("b-controlnet", 12, seed=1), MEASURED["b-controlnet"]
    shares = [sum(len(one.adapters) == number for one in accesses) / len(accesses) for number in range(4)]

    assert shares == pytest.approx(list(measured.count_shares), abs=0.01)
    assert all(len(set(one.adapters)) == len(one.adapters) for one in accesses)


@pytest.mark.parametrize(("name", "num_popular", "share"), [("a-lora", 149, 0.5), ("b-lora", 12, 0.5)])
def test_few_adapters_have_much_of_all_uses_if_not_quite_as_much_as_measured(
    name: str, num_popular: int, share: float
) -> None:
    uses = [one for access in generate_accesses(name, 24, seed=2) for one in access.adapters]

    assert share * 0.6 < sum(one < num_popular for one in uses) / len(uses) < share
    assert max(uses) < MEASURED[name].num_adapters


def test_the_same_seed_gives_the_same_trace() -> None:
    first, again, other = (generate_accesses("a-lora", 2, seed) for seed in (3, 3, 4))

    assert first == again
    assert first != other


def test_unknown_kinds_are_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'a-lora'"):
        generate_accesses("a-loras", 1, 0)


def test_measured_means_are_those_of_the_table() -> None:
    means = {name: round(one.mean_count, 2) for name, one in MEASURED.items()}

    assert means == {"a-controlnet": 1.69, "b-controlnet": 1.74, "a-lora": 1.91, "b-lora": 1.12}


# GenTD26 ------------------------------------------------------------------------------------------------------------

HEADER = "predict_type,checkpoint_model_version_id,lora_args\n"
ROWS = (
    "t,base1,\"[{'modelVersionId': 'x', 'scale': 1.0}, {'modelVersionId': 'y', 'scale': 0.5}]\"\n"
    "t,base1,[]\n"
    "t,base2,\"[{'modelVersionId': 'y', 'scale': 0.5}]\"\n"
)


def test_loras_are_numbered_as_they_come(tmp_path: Path) -> None:
    file = tmp_path / "data_trace_processed.csv"
    file.write_text(HEADER + ROWS)

    assert read_gentd26(file) == one_instance((0, 1), (), (1,))
    assert read_gentd26(file, with_base=True) == one_instance((0, 1, 2), (0,), (3, 2))


def test_the_archive_is_read_as_it_comes(tmp_path: Path) -> None:
    path, content = tmp_path / "data.tar.gz", (HEADER + ROWS).encode()
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("data_trace_processed.csv")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))

    assert read_gentd26(path) == one_instance((0, 1), (), (1,))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("a,b\n1,2\n", "has no column 'lora_args'"),
        (HEADER + "t,base,[{]\n", "line 2, column 'lora_args'"),
        (HEADER + "t,base,[1]\n", "is no list of LoRAs"),
    ],
)
def test_other_tables_are_refused(tmp_path: Path, content: str, sentence: str) -> None:
    file = tmp_path / "x.csv"
    file.write_text(content)

    with pytest.raises(BadTrace, match=sentence.replace("(", r"\(")):
        read_gentd26(file)


def test_files_that_cannot_be_opened_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="cannot be opened"):
        read_gentd26(tmp_path / "none.csv")
    (tmp_path / "x.tar.gz").write_bytes(b"no archive")
    with pytest.raises(BadTrace, match="or the archive it comes in"):
        read_gentd26(tmp_path / "x.tar.gz")
