"""The engine at work, the same on the fake and on the real API server."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from cluster.engines.kubernetes.kube_labs import require_lab
from cluster.engines.kubernetes.kube_things import PODS, gang, pod
from cluster.engines.kubernetes.kube_worlds import World, fake_world, real_world
from takeup.cluster.engines.kubernetes import KubernetesEngine, QuotaStore, StaleCache
from takeup.cluster.model import Evict, Grade, Hold, Kind, Quota, SetQuota, Start
from takeup.errors import BadInput

pytestmark = pytest.mark.usefixtures("compiled")


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.engine)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with fake_world() if request.param == "fake" else real_world() as made:
        yield made


def notes_of(world: World, name: str) -> dict[str, str]:
    return dict(world.admin.get(f"{PODS}/{name}")["metadata"].get("annotations") or {})


def test_spot_pods_fill_the_nodes(world: World) -> None:
    world.create([pod(f"s{number}") for number in range(16)])

    world.run(until=lambda: all(world.places().values()))

    assert Counter(world.places().values()) == {"n0": 4, "n1": 4, "n2": 4, "n3": 4}
    assert notes_of(world, "s0")["takeup/grade"] in {"guaranteed", "opportunistic"}


def test_a_gang_gets_the_room_of_its_victims(world: World) -> None:
    world.create([pod(f"s{number}") for number in range(16)])
    world.run(until=lambda: all(world.places().values()))

    world.create(gang("h", 2))
    world.run(until=lambda: world.places().get("h-0", "") != "" and world.places().get("h-1", "") != "")

    evicted = [it for it, outcome in world.told if isinstance(it, Evict) and outcome == "applied"]
    assert len(evicted) == 8
    assert len({it.job_id for it in evicted}) == 8
    assert world.places()["h-0"] != world.places()["h-1"]
    state = world.look(lambda state: len(state.runs) == 9)
    assert {run.job.kind for run in state.runs if run.job.num_workers == 2} == {Kind.HIGH}


def test_nobody_takes_the_room_while_the_victims_linger(world: World) -> None:
    world.create([pod(f"s{number}", gpus=8) for number in range(4)])
    world.run(until=lambda: all(world.places().values()))
    world.kubelet.lingers.set()
    world.create([*gang("h", 2), pod("late", gpus=8)])
    world.run(until=lambda: len(world.engine.ledger.kept) == 1)

    (kept,) = world.engine.ledger.kept.values()
    world.run(until=lambda: sum(isinstance(it, Hold) for it, _ in world.told) > 4)
    assert sum(isinstance(it, Evict) for it, _ in world.told) == 2
    assert world.places()["h-0"] == world.places()["late"] == ""
    assert world.admin.get(f"{PODS}/h-0")["status"]["nominatedNodeName"] == kept[0]

    world.kubelet.lingers.clear()
    world.run(until=lambda: world.places()["h-1"] != "")
    assert (world.places()["h-0"], world.places()["h-1"]) == kept
    assert world.places()["late"] == ""


def test_a_new_engine_finds_the_promises_of_the_old_one(world: World) -> None:
    world.create([pod(f"s{number}", gpus=8) for number in range(4)])
    world.run(until=lambda: all(world.places().values()))
    world.kubelet.lingers.set()
    world.create(gang("h", 2))
    world.run(until=lambda: len(world.engine.ledger.kept) == 1)
    kept = dict(world.engine.ledger.kept)

    assert world.engine.client is not None
    with KubernetesEngine(client=world.engine.client) as other:
        assert other.observe().nominations == kept


def test_a_gang_starts_whole_or_not_at_all(world: World) -> None:
    world.create(gang("g", 3))
    world.settle()
    world.admin.request("DELETE", f"{PODS}/g-1", {"gracePeriodSeconds": 0})

    with pytest.raises(Exception, match=r"g-1|not found|observe again"):
        world.start("g", "n0", "n1", "n2", grade=Grade.HIGH)

    state = world.look(lambda state: not state.runs and all(node.num_gpus == 8 for node in state.nodes))
    assert state.waiting == ()


def test_a_gang_that_was_interrupted_is_completed(world: World) -> None:
    world.create(gang("g", 3))
    world.settle()
    world.hold("g", "so that the engine has acted")
    notes = {"takeup/gang-nodes": "n0,n1,n2", "takeup/grade": "high"}
    world.admin.request(
        "POST",
        f"{PODS}/g-1/binding",
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "g-1", "annotations": notes},
            "target": {"kind": "Node", "name": "n1"},
        },
    )

    world.look(lambda _: all(world.places().values()))

    assert world.places() == {"g-0": "n0", "g-1": "n1", "g-2": "n2"}


def test_a_start_without_room_is_refused(world: World) -> None:
    world.create([pod("a", gpus=8), pod("b", gpus=4)])
    world.settle()
    world.start("a", "n0")

    with pytest.raises(BadInput, match="no room on n0"):
        world.start("b", "n0")
    with pytest.raises(BadInput, match="does not wait"):
        world.start("a", "n1")
    with pytest.raises(BadInput, match="does not wait"):
        world.start("nobody", "n1")


def test_high_priority_is_never_evicted(world: World) -> None:
    world.create([pod("h", kind="high")])
    world.settle()
    world.start("h", "n0", grade=Grade.HIGH)
    world.look(lambda state: bool(state.runs))

    with pytest.raises(BadInput, match="only spot jobs"):
        world.evict("h", "other")
    with pytest.raises(BadInput, match="does not run"):
        world.evict("nobody")
    assert world.places() == {"h": "n0"}


@pytest.mark.parametrize("notice_s", [0.0, 60.0])
def test_no_pod_with_a_promise_is_evicted_for_a_spot_pod(world: World, notice_s: float) -> None:
    world.create([pod("a"), pod("b", gpus=8)])
    world.settle()
    world.start("a", "n0", grade=Grade.GUARANTEED)
    world.look(lambda state: bool(state.runs))

    with pytest.raises(BadInput, match="without a promise"):
        world.evict("a", "b", notice_s)
    with pytest.raises(BadInput, match="no room on n0"):
        world.start("b", "n0")
    assert world.places() == {"a": "n0", "b": ""}


def test_a_narrow_pod_without_a_promise_moves_for_a_wider_one(world: World) -> None:
    world.create([pod("a"), pod("b", gpus=8)])
    world.settle()
    world.start("a", "n0")
    world.look(lambda state: bool(state.runs))
    world.kubelet.lingers.set()

    world.evict("a", "b")
    world.start("a", "n1")  # it moves: its pod comes back under another name
    world.start("b", "n0")
    assert world.engine.observe().nominations == {"default/b": ("n0",)}
    world.kubelet.lingers.clear()
    world.look(lambda _: world.engine.last is not None and world.engine.last.free["n0"] == 8)
    world.start("b", "n0")

    assert world.places() == {"b": "n0"}


def test_nobody_is_evicted_twice(world: World) -> None:
    world.create([pod("a")])
    world.settle()
    world.start("a", "n0")
    world.look(lambda state: bool(state.runs))
    world.kubelet.lingers.set()

    world.evict("a", "h")
    with pytest.raises(BadInput, match="does not run any more"):
        world.evict("a", "h")

    state = world.engine.observe()
    assert state.runs == ()
    assert [it.job_id for it in state.evictions] == ["default/a"]
    assert notes_of(world, "a")["takeup/evicted-for"] == "default/h"


def test_a_victim_with_notice_leaves_as_soon_as_it_has_saved(world: World) -> None:
    world.create([pod("a")])
    world.settle()
    world.start("a", "n0")
    world.look(lambda state: bool(state.runs))

    world.evict("a", "h", notice_s=3600.0)
    assert world.engine.observe().runs == ()
    assert "takeup/leave-by" in notes_of(world, "a")
    assert world.places() == {"a": "n0"}

    saved = {"metadata": {"annotations": {"takeup/last-checkpoint": "2099-01-01T00:00:00Z"}}}
    world.admin.request("PATCH", f"{PODS}/a", saved)
    world.look(lambda _: world.places() == {})


def test_why_a_pod_waits_is_told(world: World) -> None:
    world.create([pod("a")])
    world.settle()

    world.hold("a", "no room in the inn")
    world.look(lambda _: bool(world.admin.get("/api/v1/namespaces/default/events")["items"]))
    world.look(lambda _: "conditions" in world.admin.get(f"{PODS}/a")["status"])

    conditions = {it["type"]: it for it in world.admin.get(f"{PODS}/a")["status"]["conditions"]}
    assert conditions["PodScheduled"]["reason"] == "Unschedulable"
    assert conditions["PodScheduled"]["message"] == "no room in the inn"


def test_quotas_survive_the_engine(world: World) -> None:
    world.engine.observe()
    quota = Quota("a100", {1.0: 24.0, float("inf"): 8.0})

    world.engine.apply(SetQuota(quota, "a test"))
    world.look(lambda _: QuotaStore(world.admin).read() == {"a100": quota})

    assert world.engine.client is not None
    with KubernetesEngine(client=world.engine.client) as other:
        assert other.observe().quotas == {"a100": quota}


def test_a_dry_run_changes_nothing(world: World) -> None:
    world.create([pod("a"), *gang("h", 2)])
    before = world.admin.get(PODS)["metadata"]["resourceVersion"]

    world.run(until=lambda: any(isinstance(it, Start) for it, _ in world.told), dry_run=True)

    assert {outcome for _, outcome in world.told} == {"dry run"}
    assert world.admin.get(PODS)["metadata"]["resourceVersion"] == before


def test_an_engine_that_only_looks_refuses_everything(world: World) -> None:
    world.create([pod("a")])
    world.settle()
    world.engine.read_only = True

    with pytest.raises(BadInput, match="only looks"):
        world.start("a", "n0")
    assert world.places() == {"a": ""}


# Only the real server ------------------------------------------------------------------------------------------------


@pytest.mark.engine
def test_a_real_disruption_budget_holds_until_it_agrees() -> None:
    folder = "/apis/policy/v1beta1/namespaces/default/poddisruptionbudgets"
    budget = {
        "apiVersion": "policy/v1beta1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "guard"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
    }
    with real_world() as world:
        world.create([pod("a", labels={"app": "guarded"})])
        world.settle()
        world.start("a", "n0")
        world.look(lambda _: world.admin.get(f"{PODS}/a")["status"]["phase"] == "Running")  # no budget guards others
        world.admin.request("POST", folder, budget)
        allow(world, folder, 0)

        world.evict("a", "h")
        assert "deletionTimestamp" not in world.admin.get(f"{PODS}/a")["metadata"]
        assert world.engine.observe().runs == ()

        allow(world, folder, 1)
        world.look(lambda _: world.places() == {})
        world.admin.request("DELETE", f"{folder}/guard")


def allow(world: World, folder: str, count: int) -> None:
    """What the controller of budgets would do."""
    status = {"disruptionsAllowed": count, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}
    world.admin.request("PATCH", f"{folder}/guard/status", {"status": status | {"observedGeneration": 1}})


@pytest.mark.engine
def test_a_server_that_stops_answering_stops_all_decisions_until_it_is_back() -> None:
    with real_world(watch_s=4.0) as world:
        world.create([pod("a")])
        world.settle()
        world.start("a", "n0")
        world.look(lambda state: bool(state.runs))
        server = int((require_lab() / "apiserver.pid").read_text())
        os.kill(server, signal.SIGSTOP)
        try:
            time.sleep(2.5 * world.engine.watch_s)
            with pytest.raises(StaleCache, match="not known"):
                world.evict("a", "h")
        finally:
            os.kill(server, signal.SIGCONT)

        deadline_s = time.monotonic() + 60
        while is_stale(world) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        assert [run.job.id for run in world.engine.observe().runs] == ["default/a"]
        assert world.engine.observe().evictions == ()


def is_stale(world: World) -> bool:
    try:
        world.engine.observe()
    except StaleCache:
        return True
    return False
