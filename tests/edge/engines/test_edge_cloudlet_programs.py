"""The programs of the engine, each alone: a device that uploads, a core that works, and how they end."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Iterator

import pytest

from takeup.edge.engines.cloudlet.core import burn, calibrate, run
from takeup.edge.engines.cloudlet.engine import _order
from takeup.edge.engines.cloudlet.links import ChildProcess, UserSpaceLinks
from takeup.edge.engines.cloudlet.plan import CloudletJob, UploadOrder

pytestmark = pytest.mark.engine

TOKEN = "t" * 32
JOB = CloudletJob(device=2, num_bytes=3000, begin_s=0.0, upload_s=0.02, start_s=0.1, run_s=0.01, due_s=1.0)
LIMIT_S = 60


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with UserSpaceLinks().listener(8) as made:
        made.settimeout(LIMIT_S)
        yield made


@pytest.fixture
def device() -> Iterator[ChildProcess]:
    made = UserSpaceLinks().device()
    yield made
    made.close()


def started_core(*arguments: str) -> tuple[ChildProcess, list[str]]:
    core = ChildProcess("core.py", *arguments)
    return core, core.hear()


def order(listener: socket.socket, share: float = 1.0) -> UploadOrder:
    return _order(JOB, listener.getsockname(), TOKEN, share, priority=0)


def everything(connection: socket.socket) -> bytes:
    """All bytes until the other side hangs up."""
    received = b""
    while part := connection.recv(4096):
        received += part
    return received


def ends_within(process: ChildProcess, limit_s: float) -> bool:
    until_s = time.monotonic() + limit_s
    while not process.is_gone() and time.monotonic() < until_s:
        time.sleep(0.01)
    return process.is_gone()


# A device


def test_a_device_says_its_token_and_then_nothing_until_the_beginning(
    listener: socket.socket, device: ChildProcess
) -> None:
    device.tell(json.dumps(order(listener)))
    connection, (host, _) = listener.accept()
    with connection:
        said = connection.recv(4096)
        is_silent = select.select([connection], [], [], 0.2)[0] == []

    assert (said, host) == (TOKEN.encode(), "127.0.0.1")
    assert is_silent


def test_a_device_uploads_exactly_its_bytes_and_waits_to_be_ended(
    listener: socket.socket, device: ChildProcess
) -> None:
    device.tell(json.dumps(order(listener)))
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(LIMIT_S)
        assert connection.recv(32) == TOKEN.encode()
        device.tell(repr(time.monotonic()))
        received = 0
        while received < JOB.num_bytes:
            received += len(connection.recv(4096))
        is_silent = select.select([connection], [], [], 0.1)[0] == []

    assert received == JOB.num_bytes
    assert is_silent
    assert not device.is_gone()


def test_no_byte_is_sent_before_the_release(listener: socket.socket, device: ChildProcess) -> None:
    late: UploadOrder = {**order(listener), "begin_s": 0.3, "end_s": 0.4}
    device.tell(json.dumps(late))
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(LIMIT_S)
        assert connection.recv(32) == TOKEN.encode()
        zero_s = time.monotonic()
        device.tell(repr(zero_s))
        connection.recv(1)

    assert time.monotonic() - zero_s >= 0.3


@pytest.mark.parametrize(("share", "num_sent"), [(0.5, 1500), (0.0, 0)])
def test_a_device_whose_link_breaks_is_gone(
    listener: socket.socket, device: ChildProcess, share: float, num_sent: int
) -> None:
    device.tell(json.dumps(order(listener, share)))
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(LIMIT_S)
        assert connection.recv(32) == TOKEN.encode()
        device.tell(repr(time.monotonic()))
        received = everything(connection)

    assert len(received) == num_sent
    assert ends_within(device, LIMIT_S)


def test_a_device_without_a_site_ends(device: ChildProcess) -> None:
    with socket.socket() as silent:  # it has the port, so that nobody else can, and does not listen
        silent.bind(("127.0.0.1", 0))
        device.tell(json.dumps(_order(JOB, silent.getsockname(), TOKEN, 1.0, priority=0)))

        assert ends_within(device, LIMIT_S)


@pytest.mark.parametrize("share", [-1.0, 0.0, 0.5, 1.0, 7.0])
def test_an_order_never_sends_more_than_there_is(listener: socket.socket, share: float) -> None:
    assert 0 <= order(listener, share)["num_sent"] <= JOB.num_bytes


# A core


def test_a_core_says_its_speed_and_when_each_task_began_and_ended() -> None:
    core, words = started_core()
    before_s = time.monotonic()
    core.tell("0.0 0.01")
    began_s, ended_s = (float(word) for word in core.hear())
    core.close()

    assert float(words[0]) > 0
    assert before_s <= began_s < ended_s <= time.monotonic()


def test_a_core_does_not_begin_too_early() -> None:
    core, _ = started_core()
    not_before_s = time.monotonic() + 0.2
    core.tell(f"{not_before_s!r} 0.0")
    began_s = float(core.hear()[0])
    core.close()

    assert began_s >= not_before_s


def test_a_core_runs_its_tasks_one_after_the_other() -> None:
    core, _ = started_core()
    core.tell("0.0 0.05")
    core.tell("0.0 0.05")
    words: list[str] = []
    while len(words) < 4:
        words += core.hear()
    core.close()

    assert float(words[1]) <= float(words[2])


def test_a_core_that_is_told_nonsense_ends_and_is_heard_no_more() -> None:
    core, _ = started_core()
    core.tell("as soon as possible")

    assert core.hear() == []
    assert ends_within(core, LIMIT_S)
    core.tell("0.0 0.01")  # nobody listens, and nobody minds
    core.close()


def test_work_takes_the_cpu_time_it_should() -> None:
    hashes_per_s = calibrate(3)
    begin_s = time.thread_time()
    run(0.03, hashes_per_s)
    took_s = time.thread_time() - begin_s
    burn(0)

    assert took_s >= 0.03


# Processes


def test_a_closed_process_is_gone_even_if_it_was_waiting(device: ChildProcess) -> None:
    assert not device.is_gone()
    device.close()
    assert device.is_gone()


def test_a_process_ends_with_its_input(device: ChildProcess) -> None:
    device._input.close()

    assert ends_within(device, LIMIT_S)
