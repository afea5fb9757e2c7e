"""A kubelet for all nodes at once: pods that are bound run, pods that are deleted are gone soon."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from takeup.cluster.engines.kubernetes.client import ApiUnreachable, Client, RequestRefused
from takeup.cluster.engines.kubernetes.informer import Informer

Json = dict[str, Any]


@dataclass(slots=True)
class FakeKubelet:
    """Between entry and exit; `lingers` keeps pods that are deleted until it is cleared.

    What `recreate` makes of a pod that was deleted is created anew, as its controller would.
    """

    client: Client
    recreate: Callable[[Json], Json | None] = lambda pod: None
    lingers: threading.Event = field(default_factory=threading.Event)
    _done: set[str] = field(default_factory=set)
    _changed: threading.Event = field(default_factory=threading.Event)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)
    _pods: Informer[Json] = field(init=False)

    def __enter__(self) -> FakeKubelet:
        self._pods = Informer(self.client, "/api/v1/pods", dict, self._changed.set, 5.0)
        self._pods.start()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._changed.set()
        self._pods.stop()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._changed.wait(0.1)
            self._changed.clear()
            for pod in self._pods.objects().values():
                with suppress(RequestRefused, ApiUnreachable):
                    self._care_for(pod)
        self.client.close()

    def _care_for(self, pod: Json) -> None:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if meta.get("deletionTimestamp"):
            if not self.lingers.is_set() and self._once(f"{meta['uid']} gone"):
                self.client.request("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}})
                again = self.recreate(pod)
                if again is not None:
                    self.client.request("POST", path.rpartition("/")[0], again)
        elif pod["spec"].get("nodeName") and pod["status"].get("phase") == "Pending" and self._once(meta["uid"]):
            ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            self.client.request("PATCH", f"{path}/status", {"status": ready}, "application/strategic-merge-patch+json")

    def _once(self, what: str) -> bool:
        is_new = what not in self._done
        self._done.add(what)
        return is_new
