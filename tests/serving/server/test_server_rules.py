"""What a server decides by: who is let in, who is next, who looks ahead; and that the simulator decides the same."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")
pytest.importorskip("diffusers", reason="needs the package 'diffusers': pip install 'takeup[diffusion]'")

from benchmarks.support.background_server import background_server
from serving.server.clients import ALICE, KEYS, MODEL, app_of, ask, bearer, eventually, house, metric
from serving.server.painting import Painter
from serving.stock import ENGINE_MARKS
from takeup.errors import BadInput, UnknownName
from takeup.serving.diffusion.policies import one_by_one
from takeup.serving.model import Arrival, Design, RowCosts
from takeup.serving.scheduling.adapters import ADAPTER_POLICIES, ORDERS
from takeup.serving.scheduling.queue import Admission, ReorderingQueue, expected_s
from takeup.serving.scheduling.routing import ROUTES
from takeup.serving.server.admission import AdmissionQueue, Waiter
from takeup.serving.server.app import make_app
from takeup.serving.server.backends import ImageJob, JobHandle
from takeup.serving.server.errors import ApiError
from takeup.serving.server.settings import ServerLimits, ServerPolicies, ServerSettings
from takeup.serving.simulate.instance import InstancePolicies as InstanceRules
from takeup.serving.simulate.instance import simulate_queue

pytestmark = ENGINE_MARKS
URL = "/v1/images/generations"
Loras = tuple[Hashable, ...]


def served(wishes: Sequence[Loras], order: str, patience: int, cached: set[Hashable] | None = None) -> list[int]:
    """The order in which a gate for one lets them in: the first at once, then those who wait; what is used stays."""
    known: set[Hashable] = set() if cached is None else cached

    async def play() -> list[int]:
        gate, turns = ServerPolicies(order, patience).admission_queue(1, len(wishes), lambda: known), list[int]()

        async def one(number: int) -> None:
            async with gate.slot(wishes[number]):
                turns.append(number)
                known.update(wishes[number])
                await asyncio.sleep(0)

        await asyncio.gather(*(one(number) for number in range(len(wishes))))
        return turns

    return asyncio.run(play())


def simulated(wishes: Sequence[Loras], order: str, patience: int) -> list[int]:
    """The same in the simulator: while the first is served the others come. Loads take no time, and all have room."""
    arrivals = [
        Arrival(number, 0.5 * (number > 0), 1, loras=loras, load_s=(0.0,) * len(loras))
        for number, loras in enumerate(wishes)
    ]
    rules = InstanceRules(one_by_one, ADAPTER_POLICIES["lru"], 99, ORDERS[order], patience)
    design = Design("one at a time", RowCosts(((2, 1.0),)))
    outcome = simulate_queue(
        arrivals, design, num_gpus=1, rules=rules, route=ROUTES["least_busy"], admit=Admission(math.inf)
    )
    return [one.arrival.number for one in sorted(outcome.served, key=lambda one: one.start_s)]


# Who is next ----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 4), max_size=2, unique=True).map(tuple), min_size=1, max_size=10),
    st.sampled_from(sorted(ORDERS)),
    st.integers(0, 4),
)
def test_server_and_simulator_serve_in_the_same_order(wishes: list[Loras], order: str, patience: int) -> None:
    assert served(wishes, order, patience) == simulated(wishes, order, patience)


def test_first_come_first_served_can_be_chosen() -> None:
    wishes: list[Loras] = [("paper",), ("film",), ("paper",), ("film",)]

    assert served(wishes, "in_order", 64) == [0, 1, 2, 3]
    assert served(wishes, "shared_loads", 64) == [0, 2, 1, 3]


def test_whose_loras_are_in_memory_goes_first_but_overtakes_nobody_too_often() -> None:
    wishes: list[Loras] = [("there",), ("far",), *[("there",)] * 5]

    assert served(wishes, "fewest_loads", 2, {"there"}) == [0, 2, 3, 1, 4, 5, 6]


def test_nobody_is_overtaken_by_more_than_64_as_servers_are_started() -> None:
    wishes: list[Loras] = [("there",), ("far",), *[("there",)] * 100]
    usual = ServerPolicies()
    turns = served(wishes, usual.order, usual.patience, {"there"})

    assert turns.index(1) == 1 + 64


# Coming and going -----------------------------------------------------------------------------------------------------


def test_who_goes_away_just_when_it_is_called_hands_its_turn_on() -> None:
    async def play() -> tuple[list[str], int]:
        gate, turns = AdmissionQueue(1, Admission()), list[str]()

        async def one(name: str) -> None:
            async with gate.slot():
                turns.append(name)

        async with gate.slot():
            leaving, staying = asyncio.create_task(one("leaving")), asyncio.create_task(one("staying"))
            await asyncio.sleep(0)
        leaving.cancel()  # it has been called, and has not noticed
        await asyncio.gather(leaving, staying, return_exceptions=True)
        return turns, gate.num_running

    assert asyncio.run(play()) == (["staying"], 0)


def test_who_goes_away_in_the_line_is_not_called() -> None:
    async def play() -> tuple[int, int]:
        line = ReorderingQueue[Waiter]()
        gate = AdmissionQueue(1, Admission(), lambda: line)

        async def one() -> None:
            async with gate.slot(("paper",)):
                pass

        async with gate.slot():
            leaving = asyncio.create_task(one())
            await asyncio.sleep(0)
            num_before = len(line)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            return num_before, len(line)

    assert asyncio.run(play()) == (1, 0)


def test_a_failure_inside_a_turn_frees_it_and_teaches_nothing() -> None:
    async def play() -> AdmissionQueue:
        gate = AdmissionQueue(1, Admission())
        with pytest.raises(ValueError, match="no"):
            async with gate.slot():
                raise ValueError("no")
        async with gate.slot():
            pass
        return gate

    gate = asyncio.run(play())

    assert gate.num_running == 0


# Who is let in --------------------------------------------------------------------------------------------------------


def test_steps_ahead_are_shared_by_those_who_run_and_count_only_when_all_places_are_taken() -> None:
    assert expected_s(10, 0.5, steps_ahead=40, num_inside=3, max_running=4) == 5.0
    assert expected_s(10, 0.5, steps_ahead=40, num_inside=4, max_running=4) == 5.0 + 40 / 4 * 0.5


def test_a_place_knows_the_steps_before_it_and_never_less_than_none() -> None:
    async def play() -> list[int]:
        gate, seen = AdmissionQueue(2, Admission()), list[int]()
        with gate.reserve(2, num_steps=3) as place:
            seen.append(gate._steps_inside)
            for _ in range(8):
                place.record_step()
            seen.append(gate._steps_inside)
        return [*seen, gate._steps_inside]

    assert asyncio.run(play()) == [6, 0, 0]


def refusal(gate: AdmissionQueue, *asked: Any) -> ApiError | None:
    try:
        with gate.reserve(*asked):
            return None
    except ApiError as problem:
        return problem


def test_who_would_be_late_is_told_how_long_it_takes() -> None:
    async def play() -> list[ApiError | None]:
        gate = AdmissionQueue(1, Admission(10, in_time=True))
        unknown = refusal(gate, 1, 50, 0.001)  # nothing was made yet, so nobody knows how long it takes
        gate._learn(0.1)
        alone = [refusal(gate, 1, 50, left_s) for left_s in (4.9, 5.1)]
        with gate.reserve(1, 30):
            behind = [refusal(gate, 1, 50, left_s) for left_s in (7.9, 8.1)]
        return [unknown, *alone, *behind]

    unknown, late, in_time, late_behind, in_time_behind = asyncio.run(play())

    assert (unknown, in_time, in_time_behind) == (None, None, None)
    assert late is not None
    assert late_behind is not None
    assert (late.status, late.detail.code, late.detail.param) == (429, "deadline_too_near", "deadline_s")
    assert "about 5 s" in late.detail.message
    assert "about 8 s" in late_behind.detail.message
    assert late_behind.headers["Retry-After"] == "3"


def test_images_of_one_request_stand_behind_each_other() -> None:
    async def play() -> list[ApiError | None]:
        gate = AdmissionQueue(1, Admission(10, in_time=True))
        gate._learn(0.1)
        return [refusal(gate, 3, 10, left_s) for left_s in (2.9, 3.1)]

    late, in_time = asyncio.run(play())

    assert late is not None
    assert in_time is None


def test_any_deadline_is_let_in_where_operators_say_so() -> None:
    async def play() -> ApiError | None:
        gate = ServerPolicies(in_time=False).admission_queue(1, 10, frozenset)
        gate._learn(100.0)
        return refusal(gate, 1, 50, 0.001)

    assert asyncio.run(play()) is None


def test_a_full_house_is_full_whatever_the_deadline() -> None:
    async def play() -> ApiError | None:
        gate = AdmissionQueue(1, Admission(0, in_time=True))
        gate._learn(1.0)
        with gate.reserve(1, 10):
            return refusal(gate, 1, 10, 0.001)

    problem = asyncio.run(play())

    assert problem is not None
    assert problem.detail.code == "queue_full"


@pytest.mark.parametrize("wrong", [{"order": "luck"}, {"route": "anywhere"}])
def test_unknown_rules_are_answered_with_those_there_are(wrong: dict[str, str]) -> None:
    with pytest.raises(UnknownName, match="|".join(wrong.values())):
        ServerPolicies(**wrong)  # type: ignore[arg-type]


def test_a_patience_below_nothing_is_refused() -> None:
    with pytest.raises(BadInput, match="patience"):
        ServerPolicies(patience=-1)


def test_rules_hand_out_the_routes_of_the_policies() -> None:
    routes = {name: ServerPolicies(route=name).router() for name in ROUTES}

    assert routes == ROUTES
    assert routes["affinity"](["paper"], [[], ["paper"]], [0, 1]) == 1
    assert routes["least_busy"](["paper"], [[], ["paper"]], [0, 1]) == 0


# Over HTTP ------------------------------------------------------------------------------------------------------------


class Knows(Painter):
    """Has one LoRA in memory, and holds what it is asked for until the test says so."""

    def __init__(self, known: str) -> None:
        super().__init__(holds=True)
        self._one = known

    @property
    def loras(self) -> set[str]:
        return {self._one}


def shared_files(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / f"{name}.safetensors").write_bytes(b"only its name is of interest here")
    return folder


def num_inside(client: httpx.Client) -> float:
    """Requests that have arrived: the next one comes after those."""
    return metric(client, "num_requests_running") + metric(client, "num_requests_waiting")


def test_a_queue_is_served_by_what_is_in_memory_and_jobs_know_who_waits(tmp_path: Path) -> None:
    adapters = shared_files(tmp_path, "near", "far")
    near, far = (str((tmp_path / f"{name}.safetensors").resolve()) for name in ("near", "far"))
    painter = Knows(near)
    with house(painter, adapters=adapters, max_running=1) as client, ThreadPoolExecutor(4) as threads:
        answers = []
        for number, loras in enumerate([[], ["far"], ["near"], ["far", "near"]]):
            body = ask(seed=number, loras=[{"name": name} for name in loras])
            answers.append(threads.submit(client.post, URL, json=body))
            eventually(lambda number=number: num_inside(client) == number + 1)  # type: ignore[misc]
        painter.let_go()
        codes = [answer.result().status_code for answer in answers]

    assert codes == [200] * 4
    assert [order.job.request.seed for order in painter.orders] == [0, 2, 1, 3]
    assert painter.orders[1].job.ahead == ((far,), (far, near))
    assert painter.orders[3].job.ahead == ()


def test_a_deadline_nobody_can_keep_is_refused_before_anything_is_made() -> None:
    painter = Painter()
    with house(painter) as client:
        app_of(client).state.service.admission_queue._learn(1.0)
        refused = client.post(URL, json=ask(steps=5, deadline_s=2.0))
        kept = client.post(URL, json=ask(steps=5, deadline_s=50.0))
        num_refused = metric(client, "refused_total")

    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "deadline_too_near")
    assert refused.headers["x-should-retry"] == "false"
    assert int(refused.headers["Retry-After"]) >= 1
    assert kept.status_code == 200
    assert (len(painter.orders), num_refused) == (1, 1)


def test_rules_of_the_settings_are_those_of_the_gate(tmp_path: Path) -> None:
    painter = Painter(holds=True)
    choices: list[tuple[Loras, ...]] = []

    def choose(waiting: Sequence[Loras], cached: Collection[Hashable]) -> int:
        choices.append(tuple(waiting))
        return len(waiting) - 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ORDERS, "last_first", choose)
        wanted = ServerSettings(
            MODEL, tmp_path, limits=ServerLimits(max_running=1), rules=ServerPolicies("last_first", patience=9)
        )
        with (
            background_server(make_app(wanted, painter, KEYS)) as url,
            httpx.Client(base_url=url, headers=bearer(ALICE), timeout=60) as client,
            ThreadPoolExecutor(3) as threads,
        ):
            answers = []
            for number in range(3):
                answers.append(threads.submit(client.post, URL, json=ask(seed=number)))
                eventually(lambda number=number: num_inside(client) == number + 1)  # type: ignore[misc]
            painter.let_go()
            codes = [answer.result().status_code for answer in answers]

    assert codes == [200] * 3
    assert [order.job.request.seed for order in painter.orders] == [0, 2, 1]
    assert ((), ()) in choices


def test_the_store_of_loras_is_told_who_waits(backend: Any, real: httpx.Client) -> None:
    """The real backend hands what a job knows of the queue to the policy of its cache."""
    seen: list[Any] = []
    usual = backend.start

    def start(job: ImageJob, on_step: Any) -> JobHandle:
        ahead = (("one",), ("one", "two"))
        order: JobHandle = usual(ImageJob(job.request, ahead=ahead), on_step)
        seen.append(backend._store.ahead)
        return order

    backend.start = start
    try:
        answer = real.post(URL, json=ask(steps=1))
    finally:
        backend.start = usual

    assert answer.status_code == 200
    assert seen == [(("one",), ("one", "two"))]
