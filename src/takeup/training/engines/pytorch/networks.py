"""A network namespace for every rank, connected to other ranks by veth pairs. Needs Linux and root.

The namespaces are removed when the process that created them ends.
"""

from __future__ import annotations

import ctypes
import os
from abc import ABC, abstractmethod

from takeup.core.namespaces import CLONE_NEWNET, FRAME_BYTES, NetworkNamespace, check_commands
from takeup.errors import TakeupError

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
