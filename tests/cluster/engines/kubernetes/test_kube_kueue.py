"""Kueue's two knobs, against answers as its API gives them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import pairwise
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.engines.kubernetes.fake_api import FakeApi
from takeup.cluster.engines.kubernetes.client import Client, RequestRefused
from takeup.cluster.engines.kubernetes.writer import BOOST, Kueue, boosts
from takeup.cluster.model import Quota
from takeup.errors import BadInput

ROOT = "/apis/kueue.x-k8s.io/v1beta1"
QUEUE: dict[str, Any] = {
    "apiVersion": "kueue.x-k8s.io/v1beta1",
    "kind": "ClusterQueue",
    "metadata": {"name": "spot"},
    "spec": {
        "cohort": "all",
        "resourceGroups": [
            {
                "coveredResources": ["cpu", "nvidia.com/gpu"],
                "flavors": [
                    {
                        "name": "a100",
                        "resources": [
                            {"name": "cpu", "nominalQuota": "500"},
                            {"name": "nvidia.com/gpu", "nominalQuota": "64", "borrowingLimit": "0"},
                        ],
                    },
                    {"name": "h800", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "8"}]},
                ],
            }
        ],
    },
}


class KueueApi(FakeApi):
    """Serves the group as recorded, and refuses a change of what has changed meanwhile."""

    versions: tuple[str, ...] = ("v1beta1",)

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if path == "/apis/kueue.x-k8s.io":
            return 200, {"kind": "APIGroup", "versions": [{"version": it} for it in self.versions]}
        asked = body.get("metadata", {}).get("resourceVersion")
        if method == "PATCH" and asked and asked != super().answer("GET", path, {})[1]["metadata"]["resourceVersion"]:
            return 409, {"kind": "Status", "reason": "Conflict", "message": "the object has been modified"}
        return super().answer(method, path, body)


@pytest.fixture
def api() -> Iterator[KueueApi]:
    server = KueueApi()
    with server:
        server.answer("POST", f"{ROOT}/clusterqueues", copy.deepcopy(QUEUE))
        yield server


@pytest.fixture
def client(api: KueueApi) -> Iterator[Client]:
    made = api.client()
    yield made
    made.close()


def gpus_of(client: Client) -> dict[str, str]:
    (group,) = client.get(f"{ROOT}/clusterqueues/spot")["spec"]["resourceGroups"]
    return {flavor["name"]: flavor["resources"][-1]["nominalQuota"] for flavor in group["flavors"]}


def test_the_quota_of_a_pool_changes_and_all_else_stays(client: Client) -> None:
    assert Kueue(client).set_quota(Quota("a100", {1.0: 24.7, 4.0: 12.0}))

    assert gpus_of(client) == {"a100": "24", "h800": "8"}
    expected = copy.deepcopy(QUEUE["spec"])
    expected["resourceGroups"][0]["flavors"][0]["resources"][1]["nominalQuota"] = "24"
    assert client.get(f"{ROOT}/clusterqueues/spot")["spec"] == expected


def test_a_quota_that_holds_already_is_not_written(api: KueueApi, client: Client) -> None:
    assert not Kueue(client).set_quota(Quota("h800", {1.0: 8.0}))

    assert api.asked("PATCH", "/spot") == 0


@pytest.mark.parametrize(("gpus", "written"), [(0.0, "0"), (-3.0, "0"), (inf, "2147483648")])
def test_extreme_quotas_are_written_as_numbers(client: Client, gpus: float, written: str) -> None:
    Kueue(client).set_quota(Quota("a100", {1.0: gpus}))

    assert gpus_of(client)["a100"] == written


def test_a_flavor_may_have_another_name_than_its_pool(client: Client) -> None:
    Kueue(client, flavors={"NVIDIA-A100": "a100"}).set_quota(Quota("NVIDIA-A100", {1.0: 5.0}))

    assert gpus_of(client)["a100"] == "5"


def test_a_pool_that_the_queue_does_not_cover_is_named(client: Client) -> None:
    with pytest.raises(BadInput, match=r"no nvidia\.com/gpu of flavor 'b200'"):
        Kueue(client).set_quota(Quota("b200", {1.0: 5.0}))


def test_a_queue_that_somebody_else_changed_is_not_overwritten(client: Client, api: KueueApi) -> None:
    read = api.answer

    def changed_meanwhile(method: str, path: str) -> int | None:
        if method == "PATCH":
            api.fault = lambda method, path: None
            read("PATCH", path, {"spec": {"cohort": "other"}})
        return None

    api.fault = changed_meanwhile
    with pytest.raises(RequestRefused, match="409"):
        Kueue(client).set_quota(Quota("a100", {1.0: 5.0}))

    assert gpus_of(client)["a100"] == "64"


def test_the_newest_version_that_both_know_is_used(api: KueueApi, client: Client) -> None:
    api.versions = ("v1alpha1", "v1beta1", "v1beta2")
    with pytest.raises(RequestRefused, match="404"):
        Kueue(client).set_quota(Quota("a100", {1.0: 5.0}))  # nothing lies under the newer version here

    assert api.requests[-1][1] == "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/spot"
    api.versions = ("v1alpha1",)
    with pytest.raises(BadInput, match="v1alpha1"):
        Kueue(client).set_quota(Quota("a100", {1.0: 5.0}))


def test_workloads_are_ordered_by_what_they_would_lose(api: KueueApi, client: Client) -> None:
    folder = f"{ROOT}/namespaces/team/workloads"
    for name in ("little", "much", "nothing"):
        client.request("POST", folder, {"kind": "Workload", "metadata": {"name": name}, "spec": {}})
    kueue = Kueue(client)

    changed = kueue.set_boosts("team", {"little": 100.0, "much": 9000.0, "nothing": 0.0, "gone": 5.0})

    found = {it["metadata"]["name"]: it["metadata"].get("annotations", {}) for it in client.get(folder)["items"]}
    assert changed == 2
    assert 0 < int(found["little"][BOOST]) < int(found["much"][BOOST]) == 100
    assert found["nothing"] == {}
    assert kueue.set_boosts("team", {"little": 100.0, "much": 9000.0}) == 0


@given(st.dictionaries(st.text(min_size=1), st.floats(0, inf), max_size=8))
def test_boosts_keep_the_order_and_their_bounds(lost: dict[str, float]) -> None:
    found = boosts(lost)

    assert set(found) == set(lost)
    assert all(0 <= boost <= 100 for boost in found.values())
    ordered = sorted(lost, key=lost.__getitem__)
    assert all(found[low] <= found[high] for low, high in pairwise(ordered))
