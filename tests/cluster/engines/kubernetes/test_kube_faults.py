"""What goes wrong between the engine and its API server, and what it does then."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from threading import Barrier

import pytest

from cluster.engines.kubernetes.fake_api import HANG_UP, FakeApi
from cluster.engines.kubernetes.kube_things import PODS, gang, pod
from cluster.engines.kubernetes.kube_worlds import World, fake_world
from takeup.cluster.engines.kubernetes import ApiAccess, Client, KubernetesEngine, StaleCache
from takeup.cluster.engines.kubernetes.client import ApiUnreachable, RequestRefused
from takeup.cluster.model import Evict, Grade, Start
from takeup.errors import BadInput

pytestmark = pytest.mark.usefixtures("compiled")

Fault = Callable[[str, str], int | None]


@pytest.fixture
def world() -> Iterator[World]:
    with fake_world() as made:
        yield made


def api_of(world: World) -> FakeApi:
    assert world.fake is not None
    return world.fake


def once(method: str, ending: str, answer: int) -> Fault:
    """A fault that happens to the first request of its kind."""
    left = [answer]

    def fault(asked: str, path: str) -> int | None:
        return left.pop() if left and asked == method and path.endswith(ending) else None

    return fault


def always(*answers: tuple[str, int]) -> Fault:
    return lambda method, path: dict(answers).get(method)


def eventually(is_so: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def is_stale(engine: KubernetesEngine) -> bool:
    try:
        engine.observe()
    except StaleCache:
        return True
    return False


def run_spot(world: World, *names: str, gpus: int = 8) -> None:
    """Spot jobs that run, each on a node of its own."""
    world.create([pod(name, gpus=gpus) for name in names])
    world.settle()
    for number, name in enumerate(names):
        world.start(name, f"n{number}")
    world.look(lambda state: len(state.runs) == len(names))


# A server that does not answer ----------------------------------------------------------------------------------------


def test_nothing_is_decided_while_the_server_fails_and_all_goes_on_after_it(world: World) -> None:
    run_spot(world, "a")
    api_of(world).fault = always(("WATCH", 500), ("GET", 500))
    api_of(world).break_off()
    eventually(lambda: is_stale(world.engine))

    with pytest.raises(StaleCache, match="not known"):
        world.evict("a", "h")
    with pytest.raises(StaleCache, match="500"):
        world.engine.observe()
    assert api_of(world).asked("POST", "/eviction") == 0

    api_of(world).fault = lambda method, path: None
    eventually(lambda: not is_stale(world.engine))
    assert [run.job.id for run in world.engine.observe().runs] == ["default/a"]


def test_a_loop_survives_a_server_that_comes_and_goes(world: World) -> None:
    world.create([pod(f"s{number}") for number in range(8)])
    requests = iter(range(10**9))
    api_of(world).fault = lambda method, path: (503, HANG_UP, None, None)[next(requests) % 4]

    world.run(until=lambda: bool(world.told) and len(world.engine.ledger.bound) > 0)
    api_of(world).fault = lambda method, path: None
    world.run(until=lambda: all(world.places().values()))

    assert len(world.places()) == 8


def test_a_watch_that_breaks_off_misses_nothing(world: World) -> None:
    world.engine.observe()
    lists = world.engine._pods.num_lists
    api_of(world).fault = always(("WATCH", HANG_UP))
    api_of(world).break_off()
    eventually(lambda: world.engine._pods.num_failures > 0)
    world.create([pod("a")])

    api_of(world).fault = lambda method, path: None

    eventually(lambda: not is_stale(world.engine) and len(world.engine.observe().waiting) == 1)
    assert world.engine._pods.num_lists == lists


def test_a_version_that_the_server_forgot_is_listed_anew(world: World) -> None:
    world.engine.observe()
    lists = world.engine._pods.num_lists
    world.create([pod("a")])
    world.settle()

    api_of(world).forget_history()

    eventually(lambda: world.engine._pods.num_lists > lists)
    assert [wait.job.id for wait in world.settle().waiting] == ["default/a"]


def test_a_server_that_was_never_there_is_named() -> None:
    engine = KubernetesEngine(client=Client(ApiAccess("http://127.0.0.1:9")))

    with engine, pytest.raises(StaleCache, match=r"http://127\.0\.0\.1:9 does not answer"):
        engine.observe()


def test_a_clock_that_goes_backwards_stops_decisions(world: World) -> None:
    run_spot(world, "a")
    world.engine.wall_s = lambda: time.time() - 100

    with pytest.raises(StaleCache, match="backwards"):
        world.evict("a", "h")
    with pytest.raises(StaleCache, match="backwards"):
        world.engine.observe()


def test_decisions_about_an_old_state_are_refused(world: World) -> None:
    run_spot(world, "a")
    world.engine.wall_s = lambda: time.time() + 100

    with pytest.raises(StaleCache, match="too long ago"):
        world.evict("a", "h")
    assert api_of(world).asked("POST", "/eviction") == 0


# Bindings that go wrong -----------------------------------------------------------------------------------------------


def test_a_binding_whose_answer_got_lost_counts(world: World) -> None:
    world.create([pod("a")])
    world.settle()
    api = api_of(world)
    left = ["a binding"]

    def bind_and_hang_up(method: str, path: str) -> int | None:
        if not (path.endswith("/binding") and left):
            return None
        left.clear()
        api.answer(method, path, {"target": {"name": "n0"}, "metadata": {}})
        return HANG_UP

    world.engine.observe()
    api.fault = bind_and_hang_up
    world.start("a", "n0")
    world.engine.observe()

    assert world.places() == {"a": "n0"}
    assert len(world.look(lambda state: bool(state.runs)).runs) == 1


def test_lone_pods_are_bound_beside_each_other(world: World) -> None:
    world.create([pod("a"), pod("b")])
    world.settle()
    together = Barrier(2)

    def wait_for_the_other(method: str, path: str) -> int | None:
        if path.endswith("/binding"):
            together.wait(60.0)
        return None

    api_of(world).fault = wait_for_the_other
    world.start("a", "n0")
    world.start("b", "n1")
    world.engine.observe()

    assert world.places() == {"a": "n0", "b": "n1"}
    assert not together.broken


def test_a_lone_pod_that_the_server_refuses_waits_again_and_others_run(world: World) -> None:
    world.create([pod("a"), pod("b")])
    world.settle()
    api_of(world).fault = once("POST", "/a/binding", 409)

    world.start("a", "n0")
    world.start("b", "n0")
    state = world.look(lambda state: len(state.runs) == 1)

    assert [run.job.id for run in state.runs] == ["default/b"]
    assert [wait.job.id for wait in state.waiting] == ["default/a"]
    world.start("a", "n0")
    world.engine.observe()
    assert world.places() == {"a": "n0", "b": "n0"}


def test_a_pod_that_is_being_bound_is_not_bound_again(world: World) -> None:
    world.create([pod("a")])
    world.settle()
    world.start("a", "n0")

    with pytest.raises(BadInput, match="does not wait"):
        world.start("a", "n1")


def test_a_gang_of_which_others_took_a_worker_leaves_again(world: World) -> None:
    world.create(gang("g", 3, kind="spot"))
    world.settle()
    api_of(world).fault = once("POST", "g-1/binding", 409)

    with pytest.raises(RequestRefused, match="409"):
        world.start("g", "n0", "n1", "n2")

    world.look(lambda _: set(world.places()) == {"g-1"})
    state = world.look(lambda state: all(node.num_gpus == 8 for node in state.nodes))
    assert (state.runs, state.evictions) == ((), ())  # taking a start back is no eviction


def test_a_gang_that_the_network_interrupted_is_completed(world: World) -> None:
    world.create(gang("g", 3))
    world.settle()
    api_of(world).fault = once("POST", "g-1/binding", 503)

    with pytest.raises(ApiUnreachable):
        world.start("g", "n0", "n1", "n2", grade=Grade.HIGH)

    world.look(lambda _: all(world.places().values()))
    assert world.places() == {"g-0": "n0", "g-1": "n1", "g-2": "n2"}
    assert api_of(world).asked("POST", "/eviction") == 0


def test_a_server_that_is_busy_is_no_reason_to_take_a_gang_back(world: World) -> None:
    world.create(gang("g", 2))
    world.settle()
    api_of(world).fault = once("POST", "g-1/binding", 429)

    with pytest.raises(ApiUnreachable, match="429"):
        world.start("g", "n0", "n1", grade=Grade.HIGH)

    world.look(lambda _: all(world.places().values()))
    assert api_of(world).asked("POST", "/eviction") == 0


@pytest.mark.parametrize("missing", ["n1", "gone"])
def test_a_gang_that_cannot_be_completed_leaves(world: World, missing: str) -> None:
    world.create([*gang("g", 2), pod("other", 8, scheduler="default-scheduler")])
    world.settle()
    world.hold("g", "so that the engine has acted")
    for name, node, notes in (("other", "n1", {}), ("g-0", "n0", {"takeup/gang-nodes": f"n0,{missing}"})):
        body = {"metadata": {"annotations": notes}, "target": {"name": node}}
        world.admin.request("POST", f"{PODS}/{name}/binding", body)

    world.look(lambda _: "g-0" not in world.places())

    assert world.places() == {"g-1": "", "other": "n1"}


def test_our_gate_is_lifted_before_the_binding(world: World) -> None:
    world.create([pod("a", gates=["takeup/quota"])])
    world.settle()

    world.start("a", "n0", grade=Grade.GUARANTEED)
    world.engine.observe()

    found = world.admin.get(f"{PODS}/a")
    assert found["spec"]["schedulingGates"] == []
    assert found["spec"]["nodeName"] == "n0"


def test_a_pod_for_which_a_node_has_too_little_memory_waits(world: World) -> None:
    pods = [pod("a"), pod("b"), pod("c")]
    for thing, amount in zip(pods, ("600Gi", "600Gi", "300Gi"), strict=True):  # of one Ti
        thing["spec"]["containers"][0]["resources"]["requests"] = {"memory": amount}
    world.create(pods)
    world.settle()
    world.start("a", "n0")

    with pytest.raises(BadInput, match="n0 lacks memory"):
        world.start("b", "n0")
    world.start("c", "n0")
    world.start("b", "n1")

    assert world.places() == {"a": "n0", "b": "n1", "c": "n0"}


# Evictions that go wrong ----------------------------------------------------------------------------------------------


def test_a_disruption_budget_is_asked_again_until_it_agrees(world: World) -> None:
    run_spot(world, "a", "b")
    api_of(world).protected.add("a")

    world.evict("a", "h")
    assert [run.job.id for run in world.engine.observe().runs] == ["default/b"]
    assert world.engine.observe().evictions == ()

    api_of(world).protected.clear()
    world.engine.wall_s = lambda: time.time() + 10
    world.look(lambda _: set(world.places()) == {"b"})
    assert [it.job_id for it in world.engine.observe().evictions] == ["default/a"]


def test_a_budget_that_never_agrees_is_left_alone_for_a_while() -> None:
    began_s = time.time()
    later_s = [0.0]
    with fake_world(wall_s=lambda: began_s + later_s[0]) as world:
        run_spot(world, "a")
        api_of(world).protected.add("a")
        world.evict("a", "h")

        later_s[0] = 200.0
        state = world.engine.observe()
        assert (state.runs, [node.num_gpus for node in state.nodes]) == ((), [0, 8, 8, 8])
        asked = api_of(world).asked("POST", "/eviction")
        world.engine.observe()
        assert api_of(world).asked("POST", "/eviction") == asked

        later_s[0] = 1000.0
        assert len(world.engine.observe().runs) == 1


def test_an_eviction_that_is_forbidden_is_refused_and_nothing_is_kept_of_it(world: World) -> None:
    run_spot(world, "a")
    api_of(world).fault = always(("POST", 403))

    with pytest.raises(RequestRefused, match="403"):
        world.evict("a", "h")
    assert len(world.engine.observe().runs) == 1


def test_a_victim_that_is_gone_already_is_evicted(world: World) -> None:
    run_spot(world, "a")
    api_of(world).fault = once("POST", "a/eviction", 404)

    world.evict("a", "h")

    assert [it.job_id for it in world.engine.observe().evictions] == ["default/a"]


def test_the_version_of_evictions_is_found_out(world: World) -> None:
    run_spot(world, "a")
    api_of(world).eviction_version = "v1"

    world.evict("a", "h")

    (body,) = [body for method, path, body in api_of(world).requests if path.endswith("/eviction")]
    assert body["apiVersion"] == "policy/v1"


def test_a_namesake_is_not_evicted(world: World) -> None:
    run_spot(world, "a")
    gone = world.engine.last
    world.admin.request("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 0})
    world.create([pod("a")])
    world.engine.last = gone

    with pytest.raises((RequestRefused, BadInput)):
        world.evict("a", "h")
    assert world.places() == {"a": ""}


# Notices --------------------------------------------------------------------------------------------------------------


def test_a_reason_is_told_once_and_not_to_pods_that_run(world: World) -> None:
    run_spot(world, "a")
    world.create([pod("w")])
    world.settle()
    for number in range(5):
        world.hold("w", f"no room, {number} go first")
        world.hold("a", "it was just evicted")
    world.engine._writer.later(lambda: None)
    eventually(lambda: api_of(world).asked("PATCH", "w/status") == 1)

    assert api_of(world).asked("PATCH", "a/status") <= 1  # the kubelet's


def test_a_pod_that_cannot_be_scheduled_is_told_why(world: World) -> None:
    world.create([pod("a"), pod("odd", selector={"zone": "b"})])
    world.settle()
    world.hold("a", "so that the engine has acted")
    world.engine.observe()

    eventually(lambda: api_of(world).asked("PATCH", "odd/status") == 1)
    conditions = world.admin.get(f"{PODS}/odd")["status"]["conditions"]
    assert [it["message"] for it in conditions] == ["it chooses nodes by more than nvidia.com/gpu.product"]


def test_the_condition_of_a_gated_pod_stays_as_it_is(world: World) -> None:
    world.create([pod("gated", gates=["takeup/quota"]), pod("plain")])
    world.settle()
    world.hold("gated", "the quota is full")
    world.hold("plain", "no room")

    eventually(
        lambda: api_of(world).asked("POST", "/events") == 2 and api_of(world).asked("PATCH", "plain/status") == 1
    )
    assert "conditions" not in world.admin.get(f"{PODS}/gated")["status"]


def test_a_server_that_takes_no_events_stops_nothing(world: World) -> None:
    api_of(world).fault = lambda method, path: 500 if path.endswith("/events") else None

    run_spot(world, "a")
    world.evict("a", "h")

    assert len(world.engine.observe().evictions) == 1


def test_no_victim_is_evicted_twice_for_the_same_gang_however_long_it_lingers(world: World) -> None:
    run_spot(world, "a", "b", "c", "d")
    world.kubelet.lingers.set()
    world.create(gang("h", 2))

    world.run(until=lambda: sum(isinstance(it, Start) for it, _ in world.told) >= 10)

    victims = [it.job_id for it, _ in world.told if isinstance(it, Evict)]
    assert len(victims) == len(set(victims)) == 2
