"""An engine that dies at any moment, and the next one that goes on where it stopped."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from cluster.engines.kubernetes.fake_api import FakeApi
from cluster.engines.kubernetes.kube_things import PODS, create_nodes, create_pods, gang, nodes_of, pod
from takeup.cluster.engines.kubernetes import KubernetesEngine
from takeup.cluster.engines.kubernetes.client import Client, Json
from takeup.cluster.policies import find_policy
from takeup.errors import TakeupError

pytestmark = pytest.mark.usefixtures("compiled")

NUM_NODES, NUM_WORKERS = 4, 2


class Killed(BaseException):
    """What `kill -9` would do."""


@dataclass
class MortalClient(Client):
    """Dies at the request number `last` that changes pods, before it is sent or before its answer is heard."""

    last: int = 0
    is_heard: bool = False
    num_sent: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def request(self, method: str, path: str, body: Json | None = None, content_type: str = "") -> Json:
        if method == "GET" or "/pods/" not in path:
            return super().request(method, path, body, content_type)
        with self.lock:  # one after the other, so that what is lost is the same every time
            self.num_sent += 1
            if self.num_sent > self.last or (self.num_sent == self.last and not self.is_heard):
                raise Killed
            answer = super().request(method, path, body, content_type)
            if self.num_sent == self.last:
                raise Killed
            return answer


def one_life(client: Client, rounds: int = 40) -> None:
    """Rounds of one process, until it dies or has nothing more to do."""
    with KubernetesEngine(client=client) as engine:
        scheduler = find_policy("gfs")
        for _ in range(rounds):
            for decision in scheduler.decide(engine.observe()):
                try:
                    engine.apply(decision)
                except TakeupError:
                    continue
            if all(nodes_of(engine._writer.client).get(f"h-{i}") for i in range(NUM_WORKERS)):
                return
            bury(engine._writer.client)
            engine.wait_for_change(0.05)


def bury(client: Client) -> None:
    """Pods that were told to go are gone."""
    for thing in client.get(PODS)["items"]:
        if thing["metadata"].get("deletionTimestamp"):
            Client.request(client, "DELETE", f"{PODS}/{thing['metadata']['name']}", {"gracePeriodSeconds": 0})


@pytest.mark.parametrize("is_heard", [False, True])
@pytest.mark.parametrize("last", range(1, 13))
def test_a_gang_gets_its_room_and_nobody_is_evicted_in_vain(last: int, is_heard: bool) -> None:
    with FakeApi() as api:
        admin = api.client()
        create_nodes(admin, NUM_NODES)
        create_pods(admin, [pod(f"s{number}", gpus=4) for number in range(2 * NUM_NODES)])
        for number in range(2 * NUM_NODES):
            target = {"target": {"name": f"n{number // 2}"}, "metadata": {"annotations": {}}}
            admin.request("POST", f"{PODS}/s{number}/binding", target)
        create_pods(admin, gang("h", NUM_WORKERS))

        mortal = MortalClient(admin.access, 60.0, last=last, is_heard=is_heard)
        with suppress(Killed):
            one_life(mortal)
        heir = api.client()
        one_life(heir, rounds=400)

        places = nodes_of(admin)
        assert places["h-0"] != places["h-1"] != ""
        assert api.asked("POST", "/binding") - 2 * NUM_NODES <= NUM_WORKERS + 1  # one answer may have got lost
        held = Counter(node for name, node in places.items() if node and name.startswith("s"))
        assert len(places) == 2 * NUM_NODES - 4 + NUM_WORKERS
        assert not set(held) & {places["h-0"], places["h-1"]}
        for client in (mortal, heir, admin):
            client.close()
