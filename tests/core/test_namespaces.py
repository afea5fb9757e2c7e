"""Namespaces of our own: what is made in them stays in them, and they say what they need."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from takeup.core import namespaces
from takeup.core.namespaces import LEFT, RIGHT, NetworkNamespace, check_commands, connect_namespaces
from takeup.errors import MissingEngine


@pytest.fixture
def pair() -> Iterator[tuple[NetworkNamespace, NetworkNamespace]]:
    """Two namespaces with a cable; skips where the kernel or the user cannot."""
    try:
        check_commands()
        left, right = NetworkNamespace(), NetworkNamespace()
        connect_namespaces(left, right)
    except MissingEngine as reason:
        pytest.skip(str(reason))
    yield left, right
    left.close()
    right.close()


def test_a_command_that_fails_is_told_with_its_reason() -> None:
    with pytest.raises(MissingEngine, match=r"'false' failed: .*use 'user-space'"):
        namespaces._run(["false"])


def test_a_missing_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "tc" else name)

    with pytest.raises(MissingEngine, match=r"needs the command 'tc'; install iproute2"):
        check_commands()


@pytest.mark.engine
def test_bytes_go_over_the_cable(pair: tuple[NetworkNamespace, NetworkNamespace]) -> None:
    left, right = pair
    listener = left.do(lambda: socket.create_server((LEFT, 0)))
    caller = right.do(lambda: socket.create_connection(listener.getsockname(), timeout=60))
    with listener, caller:
        answering, address = listener.accept()
        with answering:
            caller.sendall(b"hello")

            assert (answering.recv(5), address[0]) == (b"hello", RIGHT)


@pytest.mark.engine
def test_a_namespace_is_not_the_one_of_this_process_and_is_gone_when_closed(
    pair: tuple[NetworkNamespace, NetworkNamespace],
) -> None:
    left, right = pair
    inodes = {Path(path).stat().st_ino for path in (left.path, right.path, "/proc/self/ns/net")}
    left.close()
    until_s = time.monotonic() + 60
    while Path(left.path).exists() and time.monotonic() < until_s:
        time.sleep(0.01)  # the kernel takes a thread off its list a moment after it has ended

    assert len(inodes) == 3
    assert not Path(left.path).exists()
