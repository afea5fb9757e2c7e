"""A small cluster with a kubelet, on the fake or on the real API server, and an engine beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cluster.engines.kubernetes.fake_api import FakeApi
from cluster.engines.kubernetes.fake_kubelet import FakeKubelet
from cluster.engines.kubernetes.kube_labs import apply_manifests, lab_client
from cluster.engines.kubernetes.kube_things import NODES, PODS, create_classes, create_nodes, create_pods, nodes_of
from takeup.cluster.contract import Scheduler
from takeup.cluster.engines.kubernetes import KubernetesEngine
from takeup.cluster.engines.kubernetes.client import Client
from takeup.cluster.model import Decision, Evict, Grade, Hold, Start, State
from takeup.cluster.policies import find_policy
from takeup.core.clock import WallClock
from takeup.core.control import ApplyOutcome, ControlLoop

Json = dict[str, Any]
PATIENCE_S = 60.0


@dataclass
class World:
    """`fake` is None on the real server. `told` are decisions with their outcomes."""

    admin: Client
    engine: KubernetesEngine
    kubelet: FakeKubelet
    fake: FakeApi | None
    told: list[tuple[Decision, ApplyOutcome]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def create(self, pods: list[Json]) -> None:
        create_pods(self.admin, pods)

    def places(self) -> dict[str, str]:
        """Where pods are bound, once the server has answered to what it was asked for."""
        self.engine._actuator.settle(time.time())
        return nodes_of(self.admin)

    def run(self, until: Callable[[], bool], scheduler: Scheduler | None = None, *, dry_run: bool = False) -> None:
        """Rounds after every change, until it is so."""
        hear: dict[str, Any] = {"on_decision": lambda it, outcome: self.told.append((it, outcome))}
        policy = scheduler or find_policy("gfs")
        loop = ControlLoop(
            WallClock(), self.engine, policy, 1.0, on_problem=self.problems.append, dry_run=dry_run, **hear
        )
        deadline_s = time.monotonic() + PATIENCE_S
        while not until():
            assert time.monotonic() < deadline_s, (self.places(), self.told[-5:], self.problems)
            loop.step()
            self.engine.wait_for_change(0.1)

    def look(self, until: Callable[[State], bool]) -> State:
        """The first state of which it is so."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not until(state := self.engine.observe()):
            assert time.monotonic() < deadline_s, state
            self.engine.wait_for_change(0.1)
        return state

    def settle(self) -> State:
        """A state in which the engine knows of every pod that the server knows of."""
        here = {f"default/{it['metadata']['name']}" for it in self.admin.get(PODS)["items"]}
        return self.look(lambda _: {pod.key for pod in self.engine._pods.objects().values()} == here)

    def start(self, name: str, *nodes: str, grade: Grade = Grade.OPPORTUNISTIC) -> None:
        self.engine.apply(Start(f"default/{name}", nodes, grade, "a test"))

    def evict(self, name: str, for_job: str = "", notice_s: float = 0.0) -> None:
        self.engine.apply(Evict(f"default/{name}", f"default/{for_job}" if for_job else "", 1.0, "a test", notice_s))

    def hold(self, name: str, reason: str) -> None:
        self.engine.apply(Hold(f"default/{name}", reason))


@contextmanager
def fake_world(num_nodes: int = 4, **settings: Any) -> Iterator[World]:
    """Everything in this process; nobody thinks that the server is gone because the machine is busy."""
    with FakeApi() as server:
        admin = server.client()
        create_nodes(admin, num_nodes)
        engine = KubernetesEngine(client=server.client(), watch_s=PATIENCE_S, **settings)
        with FakeKubelet(server.client()) as kubelet, engine:
            yield World(admin, engine, kubelet, server)
        admin.close()


@contextmanager
def real_world(num_nodes: int = 4, watch_s: float = PATIENCE_S, **settings: Any) -> Iterator[World]:
    """The real server, on which the engine has the rights that deploy/ gives it and no more."""
    admin = lab_client("admin")
    create_classes(admin)
    apply_manifests(admin, "02-rights.yaml")
    create_nodes(admin, num_nodes)
    engine = KubernetesEngine(client=lab_client("takeup"), watch_s=watch_s, **settings)
    try:
        with FakeKubelet(lab_client("admin")) as kubelet, engine:
            yield World(admin, engine, kubelet, None)
    finally:
        clear(admin)
        admin.close()


def clear(client: Client) -> None:
    """No pods and no nodes."""
    for path, options in ((PODS, {"gracePeriodSeconds": 0}), (NODES, {})):
        for thing in client.get(path)["items"]:
            client.request("DELETE", f"{path}/{thing['metadata']['name']}", options)
