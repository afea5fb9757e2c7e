"""A network for the ranks of a trial: a namespace per rank and a veth pair per link, rate-limited if it is slow.

How it works. Veth pairs connect neighbours, as links do, and a token bucket at both ends of a slow one limits its rate.
All traffic queues there: messages, acknowledgements, and the exchange of profiles. Ranks that are not neighbours reach
each other through those between. Everything is removed when the process that created it ends.
"""

import ctypes
import math
import os
from abc import ABC, abstractmethod
from pathlib import Path

from takeup.core.namespaces import CLONE_NEWNET, FRAME_BYTES, PAYLOAD_BYTES, NetworkNamespace, check_commands
from takeup.errors import MissingEngine, TakeupError, UnknownName
from takeup.training.pipelines.profile import Link, Profile

# A network namespace for every rank, connected to other ranks by veth pairs. Needs Linux and root ---------------------
#
# The namespaces are removed when the process that created them ends.

BURST_BYTES, QUEUE_BYTES = 2 * FRAME_BYTES, 8 * 2**20


def rank_address(rank: int) -> str:
    """IP address of a rank, from the range reserved for benchmarks, as all addresses here."""
    return f"198.18.1.{rank + 1}"


def token_bucket(rate_bps: float) -> str:
    """Arguments of tc for a token bucket filter of `rate_bps` bits per second."""
    return f"tbf rate {rate_bps:.0f}bit burst {BURST_BYTES} limit {QUEUE_BYTES}"


def enter_namespace(path: str) -> None:
    """Move this process and its future threads into the network namespace at `path`."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET) != 0:
            raise TakeupError(f"this process may not enter its network: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(descriptor)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"


class RankNetworks(ABC):
    """One namespace and one address per rank; subclasses connect them in `_connect_namespaces`."""

    def __init__(self, num_ranks: int) -> None:
        check_commands()
        self._networks: list[NetworkNamespace] = []
        try:
            for rank in range(num_ranks):
                self._networks.append(NetworkNamespace())
                self._prepare(rank)
            self._connect_namespaces()
        except BaseException:
            self.close()
            raise

    @property
    def paths(self) -> list[str]:
        """Paths of the ranks' network namespaces."""
        return [network.path for network in self._networks]

    def join(self, rank: int) -> None:
        """Move this process and its future threads into the network namespace of a rank."""
        enter_namespace(self._networks[rank].path)

    def close(self) -> None:
        """Close all namespaces."""
        for network in self._networks:
            network.close()

    def _prepare(self, rank: int) -> None:
        network = self._networks[rank]
        network.command("ip link set lo up")
        network.command("ip address del 127.0.0.1/8 dev lo")  # or Gloo would take it for the address of the rank
        network.command(f"ip address add {rank_address(rank)}/32 dev lo")

    @abstractmethod
    def _connect_namespaces(self) -> None:
        """Connect the namespaces, which all exist by now."""


LINKS = ("auto", "namespaces", "user-space")
FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


def uses_namespaces(name: str) -> bool:
    """Whether this kind of link uses veth pairs between namespaces; `auto`: if this process may create them."""
    if name not in LINKS:
        raise UnknownName("link", name, LINKS)
    if name == "user-space":
        return False
    try:
        check_commands()
        NetworkNamespace().close()
    except MissingEngine:
        if name == "namespaces":
            raise
        return False
    return True


def rate_bps(message_bytes: int, service_s: float) -> int:
    """Rate in bit/s at which a message takes `service_s`; the kernel counts whole frames."""
    num_frames = math.ceil(message_bytes / PAYLOAD_BYTES)
    return round(8 * (message_bytes + num_frames * (FRAME_BYTES - PAYLOAD_BYTES)) / service_s)


class PipelineNetwork(RankNetworks):
    """Veth pairs for the links of a pipeline, for messages of one size."""

    def __init__(self, truth: Profile, message_bytes: int) -> None:
        self._links, self._message_bytes = truth.links, message_bytes
        super().__init__(truth.num_stages)

    def _prepare(self, rank: int) -> None:
        """Also enable IP forwarding, as ranks route for each other."""
        super()._prepare(rank)
        self._networks[rank].do(lambda: FORWARD.write_text("1"))

    def _connect_namespaces(self) -> None:
        for number, link in enumerate(self._links):
            self._lay(number, link)
        for rank in range(len(self._networks)):
            self._route(rank)

    def _lay(self, number: int, link: Link) -> None:
        before, after = self._networks[number : number + 2]
        before.command(f"ip link add ahead type veth peer name behind netns {after.path}")
        for end, (network, device) in enumerate(((before, "ahead"), (after, "behind"))):
            network.command(f"ip address add {_end(number, end)}/30 dev {device}")
            network.command(f"ip link set {device} gso_max_segs 1 up")
            if link.service_s > 0:
                rate = rate_bps(self._message_bytes, link.service_s)
                network.command(f"tc qdisc add dev {device} root {token_bucket(rate)}")

    def _route(self, rank: int) -> None:
        for other in range(len(self._networks)):
            if other != rank:
                via = _end(rank, 1) if other > rank else _end(rank - 1, 0)
                self._networks[rank].command(
                    f"ip route add {rank_address(other)}/32 via {via} src {rank_address(rank)}"
                )


def _end(link: int, end: int) -> str:
    return f"198.19.{link}.{end + 1}"
