"""Pods and nodes as a state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.engines.kubernetes.kube_things import pod
from takeup.cluster.engines.kubernetes.objects import Dialect, GpuNode, Pod, read_pod
from takeup.cluster.engines.kubernetes.snapshot import (
    BoundPod,
    KubernetesLedger,
    KubernetesSnapshot,
    PendingEviction,
    build_snapshot,
)
from takeup.cluster.model import Evict, Grade, Kind, Start
from takeup.cluster.policies import find_policy

NOW_S = 1_777_600_000.0
CREATED = "2026-05-01T00:00:00Z"  # 6,400 s before now
CREATED_S = 1_777_593_600.0
NODES = tuple(GpuNode(f"n{number}", "a100", 8, True) for number in range(4))


def make(name: str, gpus: int = 2, kind: str = "spot", on: str = "", **more: Any) -> Pod:
    """A pod that is bound if `on` names a node; `leaving` is being deleted."""
    thing = pod(name, gpus, kind, **more)
    thing["metadata"] |= {"uid": f"uid-{name}", "creationTimestamp": CREATED}
    if more.get("leaving"):
        thing["metadata"]["deletionTimestamp"] = CREATED
    thing["spec"]["nodeName"] = on
    thing["status"] = {"phase": "Running" if on else "Pending", "nominatedNodeName": more.get("nominated", "")}
    return read_pod(thing, Dialect())


def make_gang(name: str, workers: int, on: tuple[str, ...] = (), gpus: int = 8, kind: str = "high") -> list[Pod]:
    places = on or ("",) * workers
    return [make(f"{name}-{i}", gpus, kind, node, gang=name, workers=workers) for i, node in enumerate(places)]


def look(
    pods: list[Pod], ledger: KubernetesLedger | None = None, nodes: tuple[GpuNode, ...] = NODES
) -> KubernetesSnapshot:
    return build_snapshot(nodes, pods, ledger or KubernetesLedger(), NOW_S)


def sizes(seen: KubernetesSnapshot) -> dict[str, int]:
    return {node.name: node.num_gpus for node in seen.state.nodes}


def test_bound_pods_run_and_others_wait() -> None:
    seen = look([make("a", on="n1", notes={"takeup/grade": "guaranteed"}), make("b", kind="high")])

    (run,), (wait,) = seen.state.runs, seen.state.waiting
    assert (run.job.id, run.nodes, run.grade, run.start_s) == ("default/a", ("n1",), Grade.GUARANTEED, CREATED_S)
    assert (wait.job.id, wait.job.kind, wait.since_s) == ("default/b", Kind.HIGH, CREATED_S)
    assert sizes(seen) == dict.fromkeys(("n0", "n1", "n2", "n3"), 8)
    assert seen.free["n1"] == 6


def test_work_is_safe_since_the_last_checkpoint_of_any_worker() -> None:
    saved = {"takeup/last-checkpoint": "2026-05-01T01:00:00Z"}
    workers = [
        make("a-0", 4, on="n0", gang="a", workers=2, notes=saved),
        make("a-1", 4, on="n1", gang="a", workers=2),
    ]

    (run,) = look(workers).state.runs

    assert run.saved_s == CREATED_S + 3600


def test_a_checkpoint_in_the_future_or_before_the_start_is_not_believed() -> None:
    for text in ("2031-01-01T00:00:00Z", "2020-01-01T00:00:00Z"):
        (run,) = look([make("a", on="n0", notes={"takeup/last-checkpoint": text})]).state.runs

        assert run.saved_s == run.start_s


def test_a_gang_is_one_job_with_its_workers_in_order() -> None:
    workers = make_gang("g", 12, on=tuple(f"n{i % 4}" for i in range(12)), gpus=2)

    (run,) = look(workers[::-1]).state.runs

    assert run.nodes == tuple(f"n{i % 4}" for i in range(12))
    assert (run.job.num_workers, run.job.num_gpus) == (12, 24)


def test_a_gang_waits_only_when_all_its_workers_exist() -> None:
    workers = make_gang("g", 3)

    assert look(workers[:2]).state.waiting == ()
    assert look(workers[:2]).skipped["some of its workers do not exist yet, or too many do"] == 1
    assert [wait.job.num_workers for wait in look(workers).state.waiting] == [3]


def test_gpus_of_others_are_taken_off_their_node() -> None:
    others = [make("x", 3, scheduler="default-scheduler", on="n0"), make("y", 1, kind="unknown", on="n0")]

    seen = look([*others, make("z", 2, on="n0")])

    assert sizes(seen)["n0"] == 4
    assert seen.free["n0"] == 2
    assert [run.job.id for run in seen.state.runs] == ["default/z"]


def test_gpus_of_a_pod_that_is_leaving_can_be_planned_with_but_not_bound_to() -> None:
    seen = look([make("a", 8, on="n0", leaving=True)])

    assert seen.state.runs == ()
    assert sizes(seen)["n0"] == 8
    assert (seen.free["n0"], seen.coming["n0"]) == (0, 8)
    (worker,) = gang = tuple(make_gang("h", 1))
    assert worker.gpus == 8
    assert not seen.has_room(gang, ("n0",), {}, later=False)
    assert seen.has_room(gang, ("n0",), {}, later=True)


def test_pods_that_are_over_hold_nothing() -> None:
    done = make("a", 8, on="n0")

    assert look([replace(done, is_over=True)]).free["n0"] == 8


def test_a_pod_that_we_bound_a_moment_ago_runs() -> None:
    ledger = KubernetesLedger(bound={"uid-a": BoundPod("n2", NOW_S, Grade.GUARANTEED, ())})

    (run,) = look([make("a")], ledger).state.runs

    assert (run.nodes, run.grade, run.start_s) == (("n2",), Grade.GUARANTEED, NOW_S)


def test_a_job_that_was_told_to_leave_is_no_run_any_more() -> None:
    ledger = KubernetesLedger(leaving={"default/a": PendingEviction("default/h", NOW_S, NOW_S + 60, NOW_S + 90)})

    seen = look([make("a", 8, on="n0")], ledger)

    assert seen.state.runs == ()
    assert (sizes(seen)["n0"], seen.free["n0"], seen.coming["n0"]) == (8, 0, 8)


def test_a_job_that_a_budget_protects_is_left_alone() -> None:
    ledger = KubernetesLedger(spared_until_s={"default/a": NOW_S + 60})

    seen = look([make("a", 8, on="n0")], ledger)

    assert seen.state.runs == ()
    assert (sizes(seen)["n0"], seen.coming["n0"]) == (0, 0)


def test_gpus_are_kept_where_the_pods_were_nominated() -> None:
    """As after a restart, when nothing else remembers."""
    workers = [make(f"h-{i}", 8, "high", gang="h", workers=2, nominated=f"n{i + 1}") for i in range(2)]

    seen = look([*workers, make("v", 8, on="n1", leaving=True)])

    assert seen.state.nominations == {"default/h": ("n1", "n2")}


def test_whoever_needs_room_plans_with_what_is_coming() -> None:
    """As after a restart between the evictions and the start."""
    victims = [make(f"v{number}", 8, on=f"n{number}", leaving=True) for number in (1, 3)]
    full = [make("x", 8, on="n2"), make("y", 8, on="n0")]

    decisions = find_policy("gfs").decide(look([*make_gang("h", 2), *victims, *full]).state)

    assert [set(it.nodes) for it in decisions if isinstance(it, Start)] == [{"n1", "n3"}]
    assert not any(isinstance(it, Evict) for it in decisions)


def test_a_promise_that_cannot_be_kept_is_dropped() -> None:
    ledger = KubernetesLedger(kept={"default/h": ("n0", "n1"), "default/gone": ("n2",)})

    seen = look([*make_gang("h", 2), make("x", 1, on="n1", scheduler="default-scheduler")], ledger)

    assert seen.state.nominations == {}
    assert ledger.kept == {}


def test_a_gang_that_is_bound_in_part_runs_where_it_was_meant_to() -> None:
    notes = {"takeup/gang-nodes": "n1,n2,n3"}
    bound = make("g-0", 8, "high", "n1", gang="g", workers=3, notes=notes)
    rest = [make(f"g-{i}", 8, "high", gang="g", workers=3) for i in (1, 2)]

    seen = look([bound, *rest])

    assert seen.halves == {"default/g": ("n2", "n3")}
    assert [run.nodes for run in seen.state.runs] == [("n1", "n2", "n3")]
    assert seen.free["n2"] == 0


def test_a_pod_that_names_no_pool_needs_a_cluster_of_one_pool() -> None:
    two = (*NODES, GpuNode("m0", "h800", 8, True))

    assert look([make("a")]).state.waiting[0].job.pool == "a100"
    assert look([make("a")], nodes=two).skipped["it names no pool that exists"] == 1
    named = make("b", selector={"nvidia.com/gpu.product": "h800"})
    assert look([named], nodes=two).state.waiting[0].job.pool == "h800"


def test_a_gate_of_others_keeps_a_pod_out_and_ours_does_not() -> None:
    seen = look([make("a", gates=["takeup/quota"]), make("b", gates=["kueue.x-k8s.io/admission"])])

    assert [wait.job.id for wait in seen.state.waiting] == ["default/a"]
    assert seen.skipped["others keep it behind a gate"] == 1


def test_a_run_on_a_node_that_is_gone_is_left_out() -> None:
    seen = look([make("a", on="n9")])

    assert seen.state.runs == ()
    assert sum(seen.skipped.values()) == 1


def test_workers_that_differ_are_no_gang() -> None:
    seen = look([make("g-0", 8, gang="g", workers=2), make("g-1", 4, gang="g", workers=2)])

    assert seen.skipped == {"its workers differ": 1}


def test_doubts_about_our_pods_are_counted() -> None:
    seen = look([make(f"a{i}", notes={"takeup/last-checkpoint": "soon"}) for i in range(3)])

    assert seen.skipped == {"takeup/last-checkpoint is malformed": 3}
    assert len(seen.state.waiting) == 3


def test_evictions_are_inherited_by_the_pod_that_comes_instead() -> None:
    ledger = KubernetesLedger()
    old = replace(make("web-x", on="n0"), owner="set-1")
    ledger.note_eviction([old], NOW_S)
    new = [replace(old, key=key, job_id=key, node="") for key in ("default/web-y", "default/web-z")]

    ledger.inherit(new)

    assert ledger.num_evictions == {"default/web-x": 1, "default/web-y": 1}
    assert [it.nodes for it in ledger.evictions] == [("n0",)]


def test_the_ledger_forgets_what_pods_show_by_themselves() -> None:
    ledger = KubernetesLedger(
        bound={"uid-a": BoundPod("n0", NOW_S, Grade.HIGH, ()), "uid-b": BoundPod("n0", NOW_S, Grade.HIGH, ())},
        leaving={
            "default/a": PendingEviction("", NOW_S, NOW_S, NOW_S),
            "default/c": PendingEviction("", NOW_S, NOW_S, NOW_S),
        },
        spared_until_s={"default/a": NOW_S - 1},
    )
    pods = [make("a", on="n0"), make("b"), make("c", on="n0", leaving=True)]

    ledger.tidy({it.key: it for it in pods}, NOW_S)

    assert set(ledger.bound) == {"uid-b"}
    assert set(ledger.leaving) == {"default/a"}
    assert ledger.spared_until_s == {}


def test_a_pod_that_leaves_before_its_binding_was_shown_still_leaves() -> None:
    ledger = KubernetesLedger(
        bound={"uid-a": BoundPod("n0", NOW_S, Grade.OPPORTUNISTIC, ("n0",))},
        leaving={name: PendingEviction("", NOW_S, NOW_S + 2, NOW_S + 120) for name in ("default/a", "default/b")},
    )
    pods = [make("a"), make("b")]

    ledger.tidy({it.key: it for it in pods}, NOW_S)

    assert set(ledger.leaving) == {"default/a"}
    assert [run.job.id for run in look(pods, ledger).state.runs] == []


@st.composite
def clusters(draw: st.DrawFn) -> list[Pod]:
    """Pods of all sorts on four nodes, also more than fit."""
    pods = []
    for number in range(draw(st.integers(0, 14))):
        on = draw(st.sampled_from(["", "", "n0", "n1", "n2", "n3", "n9"]))
        kind, gpus = draw(st.sampled_from(["high", "spot", "spot", "odd"])), draw(st.sampled_from([0, 1, 2, 4, 8]))
        scheduler = draw(st.sampled_from(["takeup", "takeup", "default-scheduler"]))
        leaving = bool(on) and draw(st.booleans())
        team = {"gang": f"g{draw(st.integers(0, 2))}", "workers": 2} if draw(st.booleans()) else {}
        pods.append(make(f"p{number}", gpus, kind, on, scheduler=scheduler, leaving=leaving, **team))
    return pods


@settings(max_examples=60, deadline=None)
@given(clusters())
def test_any_scheduler_can_decide_about_any_cluster(pods: list[Pod]) -> None:
    state = look(pods).state

    decisions = find_policy("gfs").decide(state)

    high = {run.job.id for run in state.runs if run.job.kind == Kind.HIGH}
    runs = {run.job.id for run in state.runs}
    assert all(it.job_id in runs - high for it in decisions if isinstance(it, Evict))
    evicted = {it.job_id for it in decisions if isinstance(it, Evict)}  # a job that moves starts elsewhere at once
    jobs = [wait.job for wait in state.waiting] + [run.job for run in state.runs if run.job.id in evicted]
    num_workers = {job.id: job.num_workers for job in jobs}
    assert all(len(it.nodes) == num_workers[it.job_id] for it in decisions if isinstance(it, Start))
