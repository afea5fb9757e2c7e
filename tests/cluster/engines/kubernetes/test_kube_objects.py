"""Pods and nodes as the API tells them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.engines.kubernetes.kube_things import node, pod
from takeup.cluster.engines.kubernetes.objects import Dialect, Pod, parse_time, read_node, read_pod
from takeup.cluster.model import Grade, Kind

CREATED = "2026-05-01T10:00:00Z"


def read(thing: dict[str, Any], **changes: Any) -> Pod:
    thing["metadata"] |= {"uid": "u1", "creationTimestamp": CREATED} | changes
    return read_pod(thing, Dialect())


def test_a_plain_spot_pod_is_a_job_of_its_own() -> None:
    found = read(pod("a", gpus=2))

    assert (found.job_id, found.num_workers, found.kind, found.gpus) == ("default/a", 1, Kind.SPOT, 2)
    assert (found.organisation, found.pool, found.node) == ("default", "", "")
    assert found.is_ours
    assert (found.obstacle, found.doubts) == ("", ())


def test_workers_of_a_gang_share_their_job() -> None:
    thing = pod("a-3", 8, "high", gang="a", workers=4, labels={"takeup/organisation": "vision"})

    found = read(thing)

    assert (found.job_id, found.num_workers, found.kind) == ("default/a", 4, Kind.HIGH)
    assert found.organisation == "vision"


def test_gpus_of_all_containers_count() -> None:
    thing = pod("a", gpus=2)
    thing["spec"]["containers"] *= 3

    assert read(thing).gpus == 6


@pytest.mark.parametrize("name", ["takeup/last-checkpoint", "volcano.sh/last-checkpoint-time"])
def test_the_last_checkpoint_is_read_in_any_time_zone(name: str) -> None:
    found = read(pod("a", notes={name: "2026-05-01T14:30:00+02:00"}))

    assert found.saved_s == datetime(2026, 5, 1, 12, 30, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("takeup/last-checkpoint", "yesterday"),
        ("takeup/last-checkpoint", "2026-05-01T14:30:00"),  # no zone
        ("takeup/guarantee-hours", "-1"),
        ("takeup/guarantee-hours", "nan"),
        ("takeup/guarantee-hours", "two"),
        ("takeup/grade", "golden"),
        ("takeup/workers", "0"),
        ("takeup/workers", "many"),
    ],
)
def test_a_malformed_annotation_is_doubted_and_left_out(name: str, text: str) -> None:
    found = read(pod("a", notes={name: text}))
    plain = read(pod("a"))

    assert found.doubts == (f"{name} is malformed",)
    assert (found.saved_s, found.guarantee_h, found.grade) == (plain.saved_s, plain.guarantee_h, plain.grade)


@given(
    st.dictionaries(st.sampled_from(["takeup/last-checkpoint", "takeup/guarantee-hours", "takeup/grade"]), st.text())
)
def test_no_annotation_can_stop_the_reading(notes: dict[str, str]) -> None:
    found = read(pod("a", notes=notes))

    assert found.guarantee_h >= 0


def test_what_was_promised_is_read_back() -> None:
    found = read(pod("a", notes={"takeup/grade": "guaranteed", "takeup/gang-nodes": "n1,n2"}))

    assert found.grade == Grade.GUARANTEED
    assert found.gang_nodes == ("n1", "n2")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"priorityClassName": "system-node-critical"}, "priority class"),
        ({"nodeSelector": {"zone": "b"}}, "chooses nodes"),
        ({"affinity": {"nodeAffinity": {"required": []}}}, "chooses nodes"),
        ({"containers": []}, "no nvidia.com/gpu"),
    ],
)
def test_a_pod_that_we_cannot_place_says_why(change: dict[str, Any], words: str) -> None:
    thing = pod("a")
    thing["spec"] |= change

    assert words in read(thing).obstacle


def test_a_pool_is_chosen_by_its_label() -> None:
    found = read(pod("a", selector={"nvidia.com/gpu.product": "h800"}))

    assert (found.pool, found.obstacle) == ("h800", "")


def test_a_bound_pod_starts_when_it_was_scheduled() -> None:
    thing = pod("a")
    thing["spec"]["nodeName"] = "n1"
    when = "2026-05-01T10:05:00Z"
    thing["status"] = {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": when}]}

    found = read(thing)

    assert found.node == "n1"
    assert found.bound_s - found.created_s == 300


def test_the_controller_owns_a_pod() -> None:
    owners = [{"uid": "x"}, {"uid": "y", "controller": True}]

    assert read(pod("a"), ownerReferences=owners).owner == "y"
    assert read(pod("a")).owner == ""


def test_states_of_a_pod() -> None:
    over = pod("a") | {"status": {"phase": "Succeeded"}}

    assert read(over).is_over
    assert read(pod("a"), deletionTimestamp=CREATED).is_leaving


def test_a_ready_node_is_healthy() -> None:
    found = read_node(node("n1", gpus=8, pool="h800"), Dialect())

    assert (found.name, found.pool, found.num_gpus, found.healthy) == ("n1", "h800", 8, True)


@pytest.mark.parametrize(
    ("spec", "healthy"),
    [
        ({"unschedulable": True}, False),
        ({"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]}, False),
        ({"taints": [{"key": "maintenance", "effect": "NoSchedule"}]}, False),
        ({"taints": [{"key": "maintenance", "effect": "PreferNoSchedule"}]}, True),
        ({"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}, True),
    ],
)
def test_cordons_and_taints_keep_new_pods_away(spec: dict[str, Any], healthy: bool) -> None:
    assert read_node(node("n1") | {"spec": spec}, Dialect()).healthy is healthy


def test_a_node_that_is_not_ready_is_not_healthy() -> None:
    thing = node("n1")
    thing["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]

    assert not read_node(thing, Dialect()).healthy


@pytest.mark.parametrize("amount", ["-1", "1.5", "lots", None])
def test_gpus_that_are_no_number_are_none(amount: str | None) -> None:
    thing = node("n1")
    thing["status"]["allocatable"]["nvidia.com/gpu"] = amount

    assert read_node(thing, Dialect()).num_gpus == 0


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("2", 2.0),
        ("500m", 0.5),
        ("1Gi", 2**30),
        ("1G", 1e9),
        ("1e3", 1000.0),
        ("100u", 1e-4),
        ("lots", 0.0),
        ("1X", 0.0),
    ],
)
def test_quantities_have_suffixes(text: str, amount: float) -> None:
    thing = pod("a")
    thing["spec"]["containers"][0]["resources"]["requests"] = {"memory": text}

    assert read(thing).requests == pytest.approx({"pods": 1.0, "memory": amount})


def test_requests_of_all_containers_add_up_without_the_gpus() -> None:
    thing = pod("a")
    thing["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "1500m", "nvidia.com/gpu": "2"}
    thing["spec"]["containers"] *= 2

    assert read(thing).requests == {"pods": 1.0, "cpu": 3.0}


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        parse_time("2026-05-01T10:00:00")
