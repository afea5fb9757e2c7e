"""A network for the ranks of a trial: a namespace for each, and a cable for every link, thin if it is slow.

How it works. Cables join neighbours, as links do, and a token bucket at both ends of a slow one lets so many bytes pass
in a second. Whatever crosses it queues there: messages, acknowledgements, and what ranks tell each other to agree.
Ranks that are no neighbours reach each other through those between. All of it is gone with the process that made it.
"""

from __future__ import annotations

import ctypes
import math
import os
from pathlib import Path

from takeup.core.namespaces import CLONE_NEWNET, FRAME_BYTES, PAYLOAD_BYTES, Namespace, check_commands
from takeup.errors import MissingEngine, TakeupError, UnknownName
from takeup.training.model import Link, Profile

__all__ = ["LINKS", "Cables", "has_cables", "rate_bps"]

LINKS = ("auto", "namespaces", "user-space")
BURST_BYTES, QUEUE_BYTES = 2 * FRAME_BYTES, 8 * 2**20
FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


def has_cables(name: str) -> bool:
    """Whether links of this name are cables between namespaces; `auto` if this process may make them."""
    if name not in LINKS:
        raise UnknownName("link", name, LINKS)
    if name == "user-space":
        return False
    try:
        check_commands()
        Namespace().close()
    except MissingEngine:
        if name == "namespaces":
            raise
        return False
    return True


def rate_bps(message_bytes: int, service_s: float) -> int:
    """At which rate a message is served in this time; the kernel counts whole frames."""
    num_frames = math.ceil(message_bytes / PAYLOAD_BYTES)
    return round(8 * (message_bytes + num_frames * (FRAME_BYTES - PAYLOAD_BYTES)) / service_s)


class Cables:
    """Namespaces and cables for the links of a pipeline, over which messages of one size travel."""

    def __init__(self, truth: Profile, message_bytes: int) -> None:
        check_commands()
        self._namespaces: list[Namespace] = []
        try:
            for rank in range(truth.num_stages):
                self._namespaces.append(Namespace())
                self._prepare(rank)
            for number, link in enumerate(truth.links):
                self._lay(number, link, message_bytes)
            for rank in range(truth.num_stages):
                self._route(rank)
        except BaseException:
            self.close()
            raise

    def join(self, rank: int) -> None:
        """Let this process, and all its threads to come, be in the network of a rank."""
        descriptor = os.open(self._namespaces[rank].path, os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET) != 0:
                raise TakeupError(f"rank {rank} may not enter its network: {os.strerror(ctypes.get_errno())}")
        finally:
            os.close(descriptor)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"

    def close(self) -> None:
        """Leave all networks."""
        for namespace in self._namespaces:
            namespace.close()

    def _prepare(self, rank: int) -> None:
        """Every rank has one address, wherever it is reached from, and passes on what is not for it."""
        namespace = self._namespaces[rank]
        namespace.command("ip link set lo up")
        namespace.command("ip address del 127.0.0.1/8 dev lo")  # or Gloo would take it for the address of the rank
        namespace.command(f"ip address add {_address(rank)}/32 dev lo")
        namespace.do(lambda: FORWARD.write_text("1"))

    def _lay(self, number: int, link: Link, message_bytes: int) -> None:
        before, after = self._namespaces[number : number + 2]
        before.command(f"ip link add ahead type veth peer name behind netns {after.path}")
        for end, (namespace, device) in enumerate(((before, "ahead"), (after, "behind"))):
            namespace.command(f"ip address add {_end(number, end)}/30 dev {device}")
            namespace.command(f"ip link set {device} gso_max_segs 1 up")
            if link.service_s > 0:
                rate = rate_bps(message_bytes, link.service_s)
                bucket = f"tbf rate {rate}bit burst {BURST_BYTES} limit {QUEUE_BYTES}"
                namespace.command(f"tc qdisc add dev {device} root {bucket}")

    def _route(self, rank: int) -> None:
        for other in range(len(self._namespaces)):
            if other != rank:
                via = _end(rank, 1) if other > rank else _end(rank - 1, 0)
                self._namespaces[rank].command(f"ip route add {_address(other)}/32 via {via} src {_address(rank)}")


def _address(rank: int) -> str:
    """From what is reserved for benchmarks, as all addresses here."""
    return f"198.18.1.{rank + 1}"


def _end(link: int, end: int) -> str:
    return f"198.19.{link}.{end + 1}"
