"""A real API server accepts every object of the Helm chart and of the plain manifests."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from cluster.engines.kubernetes.kube_labs import MANIFESTS, lab_client
from takeup.core.lazy import load
from test_deploy import chart

NEWER = {"policy/v1"}  # than the server of the lab, which is of 1.20
PLURALS = {"PriorityClass": "priorityclasses", "NetworkPolicy": "networkpolicies"}

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("kubernetes")]


def address(thing: dict[str, Any]) -> str:
    """Where an object of this kind is created, in the namespace that is always there."""
    group = "/api" if "/" not in thing["apiVersion"] else "/apis"
    space = "/namespaces/default" if "namespace" in thing["metadata"] else ""
    return f"{group}/{thing['apiVersion']}{space}/{PLURALS.get(thing['kind'], thing['kind'].lower() + 's')}"


def accepted(thing: dict[str, Any]) -> dict[str, Any]:
    """What the server would store; nothing is stored."""
    meta = {name: value for name, value in thing["metadata"].items() if name != "namespace"} | {"name": "takeup-trial"}
    with closing(lab_client("admin")) as client:
        answer: dict[str, Any] = client.request("POST", f"{address(thing)}?dryRun=All", thing | {"metadata": meta})
    return answer


def test_the_server_accepts_every_object_of_the_chart() -> None:
    things = [thing for thing in chart().values() if thing["apiVersion"] not in NEWER]

    assert len(things) >= 8
    assert [accepted(thing)["kind"] for thing in things] == [thing["kind"] for thing in things]


@pytest.mark.parametrize("path", sorted(MANIFESTS.glob("0*.yaml")), ids=lambda path: path.name)
def test_the_server_accepts_every_object_of_a_manifest(path: Any) -> None:
    things = list(load("yaml:safe_load_all")(path.read_text("utf-8")))

    assert [accepted(thing)["kind"] for thing in things] == [thing["kind"] for thing in things]
