"""The shared link, over real sockets: bytes arrive unchanged, shares are equal, nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from takeup.errors import BadInput, MissingEngine, UnknownName
from takeup.streaming.engines.dash import links as namespaces
from takeup.streaming.engines.dash.links import BottleneckLink, UserSpaceLink, open_link

NUM_PLAYERS = 4


async def received_by_each(link: BottleneckLink, payload: bytes, until_bytes: int) -> list[bytes]:
    """Send `payload` to every player at once; what each had when the first one had `until_bytes`."""
    enough = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with link.reserve(writer):
            await reader.readline()
            await link.send(writer, memoryview(payload))
            await reader.read()
        writer.close()

    async def play(got: bytearray) -> None:
        reader, writer = await link.dial(address)
        writer.write(b"go\n")
        while len(got) < until_bytes and not enough.is_set():
            got += await reader.read(65536)
        enough.set()
        if len(got) < len(payload):
            got += await reader.read(1 << 20)  # what was there by then, but not yet asked for
        writer.close()

    server = await asyncio.start_server(serve, sock=link.listener())
    address = server.sockets[0].getsockname()
    buffers = [bytearray() for _ in range(NUM_PLAYERS)]
    async with asyncio.timeout(60):
        await asyncio.gather(*(play(buffer) for buffer in buffers))
    server.close()
    return [bytes(buffer) for buffer in buffers]


def test_bytes_arrive_unchanged() -> None:
    payload = os.urandom(50_000)

    async def run() -> list[bytes]:
        link = UserSpaceLink(2e6)
        got: list[bytes] = []

        async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await link.send(writer, memoryview(payload))
            writer.close()

        server = await asyncio.start_server(serve, sock=link.listener())
        for _ in range(2):
            reader, writer = await link.dial(server.sockets[0].getsockname())
            got.append(await reader.read())
            writer.close()
        server.close()
        return got

    assert asyncio.run(run()) == [payload, payload]


def test_unknown_links_are_named() -> None:
    with pytest.raises(UnknownName, match="did you mean 'user-space'"), open_link("userspace", 1e6, 2):
        pass


def test_a_link_too_fast_for_this_machine_is_refused() -> None:
    with pytest.raises(BadInput, match=r"10000 Mbit/s.*lower the speed-up"), open_link("user-space", 1e10, 2):
        pass


def test_auto_falls_back_where_namespaces_do_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)

    with open_link("auto", 1e6, 2) as link:
        assert link.name == "user-space"


def test_namespaces_say_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)

    with pytest.raises(MissingEngine, match="install iproute2"), open_link("namespaces", 1e6, 2):
        pass


@pytest.fixture
def namespace_link() -> BottleneckLink:
    """Skips where the kernel or the user cannot."""
    try:
        with namespaces.NamespaceLink(8e6, 2 * NUM_PLAYERS):
            pass
    except MissingEngine as reason:
        pytest.skip(str(reason))
    return namespaces.NamespaceLink(8e6, 2 * NUM_PLAYERS)


@pytest.mark.engine
def test_the_kernel_shares_the_link_equally(namespace_link: namespaces.NamespaceLink) -> None:
    payload = bytes(400_000)
    with namespace_link as link:
        got = [len(content) for content in asyncio.run(received_by_each(link, payload, 200_000))]

    assert min(got) > 0.7 * max(got)  # send buffers and whole packets blur it a little


@pytest.mark.engine
def test_places_on_the_link_are_given_back(namespace_link: namespaces.NamespaceLink) -> None:
    with namespace_link as link:
        before = sorted(link._free_leaves)
        asyncio.run(received_by_each(link, bytes(10_000), 5_000))

        assert sorted(link._free_leaves) == before


@pytest.mark.engine
def test_a_killed_process_leaves_no_namespace_behind(namespace_link: namespaces.NamespaceLink) -> None:
    namespace_link.close()
    program = (
        "import os, signal\n"
        "from takeup.streaming.engines.dash.links import NamespaceLink\n"
        "link = NamespaceLink(1e6, 2)\n"
        "print(os.stat(link.server.path).st_ino, os.stat(link.players.path).st_ino, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)

    made = set(ended.stdout.split())
    assert len(made) == 2
    until_s = time.monotonic() + 60
    while not made.isdisjoint(namespaces_in_use()) and time.monotonic() < until_s:
        time.sleep(0.1)  # the number of one that is gone may be that of another now, which will go too
    assert made.isdisjoint(namespaces_in_use())


def namespaces_in_use() -> set[str]:
    """Inode numbers of the network namespaces of all processes that can be seen."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(str(path.stat().st_ino))
        except OSError:
            continue
    return found


@pytest.mark.engine
def test_sockets_of_a_namespace_cannot_reach_the_outside(namespace_link: namespaces.NamespaceLink) -> None:
    outside = socket.create_server(("127.0.0.1", 0))
    with namespace_link as link, outside:
        inside = link.players.do(lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        with inside, pytest.raises(ConnectionRefusedError):
            inside.connect(outside.getsockname())
