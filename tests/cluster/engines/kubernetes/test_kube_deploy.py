"""The manifests: they name what the engine names, and give it the rights it uses and no others."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cluster.engines.kubernetes import kube_labs, kube_things
from cluster.engines.kubernetes.kube_labs import MANIFESTS, apply_manifests, lab_client
from cluster.engines.kubernetes.kube_things import gang, pod
from cluster.engines.kubernetes.kube_worlds import fake_world
from takeup.cluster.engines.kubernetes import objects as dialect
from takeup.cluster.engines.kubernetes.client import ApiAccess, Client, RequestRefused
from takeup.cluster.engines.kubernetes.lease import Lease
from takeup.cluster.engines.kubernetes.objects import Dialect
from takeup.cluster.model import Grade, Quota, SetQuota
from takeup.core.lazy import load

VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}


def things(name: str) -> list[dict[str, Any]]:
    return list(load("yaml:safe_load_all")((MANIFESTS / name).read_text("utf-8")))


def rights(name: str) -> set[tuple[str, str]]:
    """Every verb on every resource that a manifest grants."""
    rules = [rule for thing in things(name) for rule in thing.get("rules", ())]
    return {(verb, resource) for rule in rules for verb in rule["verbs"] for resource in rule["resources"]}


def used(method: str, path: str) -> tuple[str, str]:
    """The right that a request needs."""
    parts = path.strip("/").split("/")[2:]
    if len(parts) > 2 and parts[0] == "namespaces":
        parts = parts[2:]
    resource = "/".join([parts[0], *parts[2:]])
    return VERBS.get(method) or ("get" if len(parts) > 1 else "list"), resource


def test_the_rights_are_those_that_are_used_and_no_others() -> None:
    with fake_world() as world:
        assert world.fake is not None
        world.kubelet.__exit__()  # its requests are not ours
        world.create([pod("a"), *gang("h", 2), pod("w", kind="high")])
        world.settle()
        begin = len(world.fake.requests)
        world.start("a", "n0")
        world.start("h", "n2", "n3", grade=Grade.HIGH)
        world.hold("w", "a test")
        world.look(lambda state: len(state.runs) == 2)
        world.evict("a", "w")
        world.engine.apply(SetQuota(Quota("a100", {1.0: 8.0}), "a test"))
        world.engine.close()
        asked = {used(method, path) for method, path, _ in world.fake.requests[begin:] if path != "/api/v1"}

    listed = {("list", "nodes"), ("list", "pods"), ("watch", "nodes"), ("watch", "pods")}
    told = {("get", "configmaps"), ("get", "pods")}  # at the start, and after an answer that got lost
    elected = {(verb, "leases") for verb in ("get", "patch", "create")}
    assert asked | listed | told | elected == rights("02-rights.yaml")


def test_the_classes_are_those_that_the_engine_knows() -> None:
    classes = {thing["metadata"]["name"]: thing for thing in things("01-priority-classes.yaml")}
    known = Dialect()

    assert set(classes) == {*known.high_classes, *known.spot_classes} == set(kube_things.CLASSES)
    assert classes["takeup-spot"]["preemptionPolicy"] == "Never"
    assert classes["takeup-high"]["value"] - classes["takeup-spot"]["value"] > 100  # more than any boost


def test_there_are_two_schedulers_with_probes_and_one_lease() -> None:
    (deployment,) = things("03-scheduler.yaml")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    rules = [rule for thing in things("02-rights.yaml") for rule in thing.get("rules", ())]
    named = {name for rule in rules if "leases" in rule["resources"] for name in rule.get("resourceNames", ())}
    probes = [container[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "readiness")]

    assert deployment["spec"]["replicas"] == 2
    assert probes == ["/healthz", "/readyz"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert named == {Lease(Client(ApiAccess("http://127.0.0.1"))).name}


@pytest.mark.parametrize("path", sorted(MANIFESTS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_manifest_can_be_read(path: Path) -> None:
    assert all({"apiVersion", "kind", "metadata"} <= set(thing) for thing in things(path.name))


def test_the_guide_names_every_label_and_annotation() -> None:
    guide = (kube_labs.ROOT / "docs" / "guides" / "kubernetes.md").read_text("utf-8")
    names = {value for name, value in vars(dialect).items() if name.isupper() and str(value).startswith("takeup/")}

    assert all(f"`{name}`" in guide for name in names | {dialect.CHECKPOINTS[0]})


@pytest.mark.engine
def test_the_scheduler_can_neither_create_nor_delete_nor_read_secrets() -> None:
    admin, ours = lab_client("admin"), lab_client("takeup")
    kube_things.create_classes(admin)
    apply_manifests(admin, "01-priority-classes.yaml", "02-rights.yaml")

    for method, path, body in (
        ("POST", kube_things.PODS, pod("x")),
        ("DELETE", f"{kube_things.PODS}/x", {}),
        ("GET", "/api/v1/secrets", None),
        ("GET", "/api/v1/namespaces/kube-system/configmaps", None),
        ("PATCH", "/api/v1/nodes/n0", {}),
    ):
        with pytest.raises(RequestRefused, match="403"):
            ours.request(method, path, body)
    assert "items" in ours.get("/api/v1/pods")
    admin.close()
    ours.close()


def test_the_lab_says_how_it_is_used_and_what_it_lacks(tmp_path: Path) -> None:
    environment = {**os.environ, "TAKEUP_KUBE": str(tmp_path / "empty")}
    usage = subprocess.run([kube_labs.SCRIPT], capture_output=True, text=True, check=False)
    command = [str(kube_labs.SCRIPT), "start", str(tmp_path / "lab")]
    start = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    assert (usage.returncode, start.returncode) == (2, 2)
    assert all(f"kube-lab {verb}" in usage.stdout for verb in ("build", "start", "scheduler", "race", "stop"))
    assert "run scripts/kube-lab build" in start.stderr
    assert not (tmp_path / "lab").exists()
