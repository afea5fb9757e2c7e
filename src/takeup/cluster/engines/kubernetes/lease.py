"""Leader election by a Lease: of several schedulers one acts, and another takes over when the lease has run out.

How it works. The holder renews the Lease; each write names the version it read, so that of two at once one is refused.
Moments of other machines are never compared: another scheduler takes over when the record has not changed for
`DURATION_S` of its own monotonic clock. The holder acts only until `ACTS_S` after it began its last renewal; a request
begun at the last moment has ended, by its timeout, before another can hold the lease.
"""

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf

from takeup.cluster.engines.kubernetes.client import Client, Json, RequestRefused
from takeup.cluster.engines.kubernetes.writer import CONFLICT, NOT_FOUND
from takeup.errors import TakeupError

DURATION_S, ACTS_S, RENEW_S = 30, 15.0, 5.0  # a client's timeout is 10 s: 15 + 10 < 30


class StandBy(TakeupError):
    """Another scheduler holds the lease."""


def own_identity() -> str:
    """The name of this process among all schedulers."""
    return f"{socket.gethostname()}_{os.getpid()}"


@dataclass(slots=True)
class Lease:
    """The Lease `name`; `keep` it every round, and `require` it before each write."""

    client: Client
    namespace: str = "takeup"
    name: str = "takeup-scheduler"
    identity: str = field(default_factory=own_identity)
    monotonic: Callable[[], float] = time.monotonic
    _held_s: float = field(default=-inf, init=False)  # when the last renewal that succeeded was begun
    _seen: str = field(default="", init=False)
    _seen_s: float = field(default=-inf, init=False)

    def keep(self) -> None:
        """Renew the lease, or take it if it has run out; raises `StandBy` while another holds it."""
        now_s = self.monotonic()
        if now_s - self._held_s < RENEW_S:
            return
        try:
            found = self.client.get(self._path)
        except RequestRefused as error:
            if error.status != NOT_FOUND:
                raise
            found = {"metadata": {"resourceVersion": ""}, "spec": {}}
        self._require_free(found, now_s)
        try:
            self._write(found)
        except RequestRefused as error:
            if error.status != CONFLICT:
                raise
            raise StandBy("another scheduler took the lease at this moment; waiting until it runs out") from error
        self._held_s = now_s

    def require(self) -> None:
        """Refuse to act when the lease was not renewed in time."""
        if self.monotonic() - self._held_s > ACTS_S:
            raise StandBy("the lease was not renewed in time; nothing is done until it is held again")

    def release(self) -> None:
        """Let another take over at once."""
        if self.monotonic() - self._held_s <= ACTS_S:
            self._held_s = -inf
            with suppress(TakeupError):
                self.client.request("PATCH", self._path, {"spec": {"holderIdentity": ""}})

    def _require_free(self, found: Json, now_s: float) -> None:
        holder, version = str(found["spec"].get("holderIdentity") or ""), str(found["metadata"]["resourceVersion"])
        if version != self._seen:
            self._seen, self._seen_s = version, now_s
        lasts_s = float(found["spec"].get("leaseDurationSeconds") or DURATION_S)
        if holder not in ("", self.identity) and now_s - self._seen_s < lasts_s:
            raise StandBy(f"{holder} holds the lease; waiting until it runs out")

    def _write(self, found: Json) -> None:
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": DURATION_S,
            "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        version = found["metadata"]["resourceVersion"]
        if version:
            self.client.request("PATCH", self._path, {"metadata": {"resourceVersion": version}, "spec": spec})
            return
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self.name}, "spec": spec}
        self.client.request("POST", self._folder, body)

    @property
    def _folder(self) -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases"

    @property
    def _path(self) -> str:
        return f"{self._folder}/{self.name}"
