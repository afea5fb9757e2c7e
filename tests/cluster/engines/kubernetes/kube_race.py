"""The same work for takeup and for the stock kube-scheduler, on the same API server, in alternating rounds.

python tests/cluster/engines/kubernetes/kube_race.py FOLDER ROUNDS, where FOLDER holds a lab of scripts/kube-lab with a
scheduler.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.engines.kubernetes.fake_kubelet import FakeKubelet
from cluster.engines.kubernetes.kube_things import PODS, create_classes, create_nodes, create_pods, gang, pod
from support.kubernetes_loop import follow
from takeup.cluster.engines.kubernetes import Client, KubernetesEngine, find_access
from takeup.cluster.engines.kubernetes.client import RequestRefused
from takeup.cluster.engines.kubernetes.informer import Informer
from takeup.cluster.policies import find_policy

NUM_NODES, NUM_SPOT, NUM_WORKERS = 16, 64, 4
Json = dict[str, Any]


def serve(kubeconfig: Path) -> None:
    """Be the scheduler until killed."""
    with KubernetesEngine(conf=kubeconfig) as engine:
        engine.observe()
        print("ready", flush=True)
        follow(engine, find_policy("gfs"), period_s=1.0)


class Race:
    """One lab, seen by a watcher of its own."""

    def __init__(self, folder: Path) -> None:
        self.client = Client(find_access(folder / "admin.kubeconfig"))
        self.pods: Informer[Json] = Informer(self.client, "/api/v1/pods", dict, lambda: None, 5.0)

    def until(self, is_done: Callable[[list[Json]], bool], limit_s: float = 60.0) -> None:
        deadline_s = time.monotonic() + limit_s
        while not is_done(list(self.pods.objects().values())):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{limit_s} s were not enough")
            time.sleep(0.002)

    def lap(self, scheduler: str) -> tuple[float, float]:
        """Seconds until all spot pods are bound, and until a gang that needs four full nodes is bound."""
        spot = [pod(f"spot-{number}", scheduler=scheduler) for number in range(NUM_SPOT)]
        fill_s = self._timed(spot)
        time.sleep(0.5)
        gang_s = self._timed(gang("high", NUM_WORKERS, scheduler=scheduler))
        self.clear()
        return fill_s, gang_s

    def _timed(self, pods: list[Json]) -> float:
        names = {it["metadata"]["name"] for it in pods}
        begin_s = time.monotonic()
        create_pods(self.client, pods)
        self.until(lambda seen: len(names & _bound(seen)) == len(names))
        return time.monotonic() - begin_s

    def clear(self) -> None:
        """Remove all pods, and let everybody notice."""
        self.until(lambda seen: self.pods.is_live)
        for key in self.pods.objects():
            try:
                self.client.request("DELETE", f"{PODS}/{key.split('/')[1]}", {"gracePeriodSeconds": 0})
            except RequestRefused as error:
                if error.status != 404:
                    raise
        self.until(lambda seen: not seen)
        time.sleep(1.0)


def _bound(seen: list[Json]) -> set[str]:
    return {it["metadata"]["name"] for it in seen if it["spec"].get("nodeName")}


def race(folder: Path, num_rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of every lap but the first, which warms up, for takeup and for the stock scheduler."""
    race = Race(folder)
    create_classes(race.client)
    if not race.client.get("/api/v1/nodes")["items"]:
        create_nodes(race.client, NUM_NODES)
    race.pods.start()
    race.clear()
    command = [sys.executable, __file__, "serve", str(folder / "admin.kubeconfig")]
    ours = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert ours.stdout is not None
    ours.stdout.readline()
    laps: dict[str, list[tuple[float, float]]] = {"takeup": [], "default-scheduler": []}
    try:
        with FakeKubelet(Client(find_access(folder / "admin.kubeconfig"))):
            for scheduler in list(laps) * (num_rounds + 1):
                laps[scheduler].append(race.lap(scheduler))
    finally:
        ours.kill()
    return {name: times[1:] for name, times in laps.items()}


def main(folder: Path, num_rounds: int) -> None:
    for name, times in race(folder, num_rounds).items():
        fills, gangs = zip(*times, strict=True)
        print(f"{name}: {NUM_SPOT} pods bound after {_summary(fills)}, gang of {NUM_WORKERS} after {_summary(gangs)}")


def _summary(times: tuple[float, ...]) -> str:
    return f"{statistics.median(times):.3f} s ({min(times):.3f} to {max(times):.3f})"


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(Path(sys.argv[2]))
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]))
