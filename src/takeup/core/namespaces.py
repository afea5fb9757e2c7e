"""Two Linux network namespaces joined by a veth pair, to shape real traffic on.

How it works. A thread enters a new, nameless network namespace and stays in it: sockets it creates, and commands it
starts, belong there. Nothing else references the namespace, so the kernel removes it when the process ends in any way.
"""

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from takeup.errors import MissingEngine

Result = TypeVar("Result")

CLONE_NEWNET = 0x40000000
LEFT, RIGHT = "198.18.0.1", "198.18.0.2"  # addresses reserved for benchmarks
PAYLOAD_BYTES, FRAME_BYTES = 1448, 1514  # of a full TCP segment with timestamps
ROOT = 0x10000  # handle 1: of a queue; a socket with the priority ROOT + n sends through the class 1:n
COMMAND_LIMIT_S = 10


class NetworkNamespace:
    """A separate network namespace, as long as this object is open."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        try:
            self.path = self.do(_enter_new_namespace)
        except BaseException:
            self.close()
            raise

    def do(self, action: Callable[[], Result]) -> Result:
        """Call `action` inside the namespace."""
        return self._thread.submit(action).result()

    def command(self, line: str) -> None:
        """Run an `ip` or `tc` command inside the namespace."""
        self.do(lambda: _run(line.split()))

    def close(self) -> None:
        """End the thread; the kernel removes the namespace once its sockets are closed."""
        self._thread.shutdown()


def check_commands() -> None:
    """Raise `MissingEngine` if `ip` or `tc` is not installed."""
    for command in ("ip", "tc"):
        if shutil.which(command) is None:
            raise MissingEngine(f"'namespaces' needs the command '{command}'; install iproute2, or use 'user-space'")


def connect_namespaces(left: NetworkNamespace, right: NetworkNamespace) -> None:
    """Join the namespaces by a veth pair named `cable` on both sides, with the addresses LEFT and RIGHT."""
    left.command(f"ip link add cable type veth peer name cable netns {right.path}")
    for namespace, address in ((left, LEFT), (right, RIGHT)):
        namespace.command(f"ip address add {address}/30 dev cable")
        namespace.command("ip link set lo up")
        namespace.command("ip link set cable gso_max_segs 1 up")  # no GSO super-packets: finer interleaving of classes


def _enter_new_namespace() -> str:
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise MissingEngine(f"this process may not make a network namespace ({reason}); use 'user-space'")
    return f"/proc/{os.getpid()}/task/{threading.get_native_id()}/ns/net"


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMMAND_LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        reason = str(getattr(error, "stderr", None) or error).strip()
        raise MissingEngine(f"'{' '.join(command)}' failed: {reason}; use 'user-space'") from error
