"""The API server of our tests answers as the real one does."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest

from cluster.engines.kubernetes.fake_api import FakeApi
from cluster.engines.kubernetes.kube_labs import lab_client
from cluster.engines.kubernetes.kube_things import NODES, PODS, create_classes, create_nodes, create_pods, pod
from takeup.cluster.engines.kubernetes.client import Client, RequestRefused

ANNOTATED = {"metadata": {"annotations": {"takeup/grade": "guaranteed"}}}


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.engine)])
def api(request: pytest.FixtureRequest) -> Iterator[Client]:
    if request.param == "fake":
        with FakeApi() as server:
            client = server.client()
            yield client
            client.close()
        return
    client = lab_client("admin")
    create_classes(client)
    yield client
    clear(client)
    client.close()


def clear(client: Client) -> None:
    for thing in client.get(PODS)["items"]:
        client.request("DELETE", f"{PODS}/{thing['metadata']['name']}", {"gracePeriodSeconds": 0})
    for thing in client.get(NODES)["items"]:
        client.request("DELETE", f"{NODES}/{thing['metadata']['name']}")


def bind(client: Client, name: str, node: str = "n0") -> None:
    client.request(
        "POST",
        f"{PODS}/{name}/binding",
        {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, **ANNOTATED["metadata"]},
            "target": {"kind": "Node", "name": node},
        },
    )


def eviction_of(client: Client, name: str) -> dict[str, object]:
    known = next(it for it in client.get("/api/v1")["resources"] if it["name"] == "pods/eviction")
    version = f"{known['group']}/{known['version']}"
    return {"apiVersion": version, "kind": "Eviction", "metadata": {"name": name}}


def refusal(client: Client, method: str, path: str, body: dict[str, object] | None = None) -> tuple[int, str]:
    with pytest.raises(RequestRefused) as caught:
        client.request(method, path, body)
    return caught.value.status, caught.value.reason


def test_a_name_is_given_once(api: Client) -> None:
    create_pods(api, [pod("a")])

    assert refusal(api, "POST", PODS, pod("a")) == (409, "AlreadyExists")


def test_what_is_not_there_is_not_found(api: Client) -> None:
    assert refusal(api, "GET", f"{PODS}/nobody") == (404, "NotFound")
    assert refusal(api, "POST", f"{PODS}/nobody/eviction", eviction_of(api, "nobody")) == (404, "NotFound")


def test_a_binding_sets_node_condition_and_annotations(api: Client) -> None:
    create_pods(api, [pod("a")])
    before = int(api.get(f"{PODS}/a")["metadata"]["resourceVersion"])

    bind(api, "a", "a-node-that-nobody-checks")

    found = api.get(f"{PODS}/a")
    conditions = {it["type"]: it["status"] for it in found["status"]["conditions"]}
    assert found["spec"]["nodeName"] == "a-node-that-nobody-checks"
    assert conditions["PodScheduled"] == "True"
    assert found["metadata"]["annotations"]["takeup/grade"] == "guaranteed"
    assert int(found["metadata"]["resourceVersion"]) > before


def test_a_bound_pod_is_not_bound_again(api: Client) -> None:
    create_nodes(api, 1)
    create_pods(api, [pod("a")])
    bind(api, "a")

    with pytest.raises(RequestRefused) as caught:
        bind(api, "a")
    assert (caught.value.status, caught.value.reason) == (409, "Conflict")
    assert refusal(api, "PATCH", f"{PODS}/a", {"spec": {"nodeName": "n7"}})[0] == 422


def test_an_evicted_pod_stays_until_its_grace_is_over(api: Client) -> None:
    create_nodes(api, 1)
    create_pods(api, [pod("a")])
    bind(api, "a")

    api.request("POST", f"{PODS}/a/eviction", eviction_of(api, "a"))

    assert api.get(f"{PODS}/a")["metadata"]["deletionTimestamp"]
    api.request("DELETE", f"{PODS}/a", {"gracePeriodSeconds": 0})
    assert refusal(api, "GET", f"{PODS}/a")[0] == 404


def test_an_annotation_does_not_hit_a_namesake(api: Client) -> None:
    create_pods(api, [pod("a")])

    assert refusal(api, "PATCH", f"{PODS}/a", {"metadata": {"uid": "of-another", "annotations": {"x": "y"}}})[0] == 422


def test_conditions_are_merged_by_type(api: Client) -> None:
    create_pods(api, [pod("a")])
    kind = "application/strategic-merge-patch+json"
    for name in ("One", "Two"):
        change = {"status": {"conditions": [{"type": name, "status": "False"}]}}
        api.request("PATCH", f"{PODS}/a/status", change, kind)

    assert {it["type"] for it in api.get(f"{PODS}/a")["status"]["conditions"]} == {"One", "Two"}


def test_a_watch_tells_what_happened_since_a_version(api: Client) -> None:
    since = api.get(PODS)["metadata"]["resourceVersion"]
    create_pods(api, [pod("a")])
    bind(api, "a")

    seen = list(islice(api.watch("/api/v1/pods", 60.0, resourceVersion=since), 3))

    assert [it["type"] for it in seen] == ["BEGUN", "ADDED", "MODIFIED"]
    assert seen[2]["object"]["spec"]["nodeName"] == "n0"
