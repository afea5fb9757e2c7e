"""The paced link: what is sent arrives, equally shared, and at the rate of the moment."""

from __future__ import annotations

import asyncio
import os

from support.dash.links import ProcessorSharing, UserSpaceLink

NUM_PLAYERS = 4


async def received_by_each(link: UserSpaceLink, payload: bytes, until_bytes: int) -> list[int]:
    """Send `payload` to every player at once; how much each had when the first one had `until_bytes`."""
    enough = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readline()
            await link.send(writer, memoryview(payload))
        finally:
            writer.close()

    async def play(place: int) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"go\n")
        while got[place] < until_bytes and not enough.is_set():
            got[place] += len(await reader.read(65536))
        enough.set()
        writer.close()

    server = await asyncio.start_server(serve, sock=link.listener())
    address = server.sockets[0].getsockname()
    got = [0] * NUM_PLAYERS
    async with asyncio.timeout(60):
        await asyncio.gather(*(play(place) for place in range(NUM_PLAYERS)))
    server.close()
    return got


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
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            got.append(await reader.read())
            writer.close()
        server.close()
        return got

    assert asyncio.run(run()) == [payload, payload]


def test_all_players_get_an_equal_share() -> None:
    got = asyncio.run(received_by_each(UserSpaceLink(1e6), bytes(400_000), 100_000))

    assert min(got) > 0.5 * max(got)


def test_a_faster_rate_holds_for_the_quantum_that_is_due() -> None:
    link = ProcessorSharing[str](10.0, quantum_bytes=100)
    link.enqueue("a", 300, now_s=0.0)
    first = list(link.dequeue(0.0))
    link.set_rate(1000.0, now_s=5.0)

    assert first == [("a", 100)]
    assert link.due_s == 5.05  # five of ten seconds are left, at a hundredth of the time
