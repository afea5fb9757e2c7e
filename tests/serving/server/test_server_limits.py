"""What clients can do to a server: keys before bodies, slow and idle connections, floods, full disks, and the stop."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")
pytest.importorskip("diffusers", reason="needs the package 'diffusers': pip install 'takeup[diffusion]'")

from PIL import Image

from serving.server.clients import ALICE, BOB, app_of, ask, bearer, eventually, house
from serving.server.painting import Painter
from serving.stock import SERVER_MARKS
from takeup.serving.scheduling.queue import Admission, FairQueue, ReorderingQueue, reserved_places
from takeup.serving.server.access import ApiKeys
from takeup.serving.server.admission import AdmissionQueue
from takeup.serving.server.backends.local import FairThreads

pytestmark = SERVER_MARKS
URL = "/v1/images/generations"


def connected(client: httpx.Client) -> socket.socket:
    return socket.create_connection((client.base_url.host, client.base_url.port or 0), timeout=60)


def upload_head(client: httpx.Client, key: str, num_bytes: int) -> bytes:
    return (
        f"POST /v1/adapters HTTP/1.1\r\nHost: {client.base_url.host}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {num_bytes}\r\n\r\n"
    ).encode()


def all_of(line: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    return b"".join(iter(lambda: line.recv(65536), b""))


# Before the body ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/adapters", URL, "/v1/images/edits", "/no/such/path"])
def test_a_wrong_key_is_refused_before_a_byte_of_the_body_is_sent(path: str) -> None:
    with house(Painter()) as client, connected(client) as line:
        line.sendall(upload_head(client, "not-a-key-of-anyone", 2**29).replace(b"/v1/adapters", path.encode(), 1))
        answer = all_of(line)

    assert answer.startswith(b"HTTP/1.1 401")
    assert b"invalid_api_key" in answer


def test_a_body_above_the_limit_is_refused_before_it_is_sent() -> None:
    with house(Painter()) as client, connected(client) as line:
        line.sendall(upload_head(client, ALICE, 2**40))
        answer = all_of(line)

    assert answer.startswith(b"HTTP/1.1 413")


# Slow and idle connections --------------------------------------------------------------------------------------------


def test_connections_without_complete_headers_are_closed() -> None:
    with house(Painter(), header_s=0.2) as client, ExitStack() as lines:
        half_sent = [lines.enter_context(connected(client)) for _ in range(20)]
        for line in half_sent[:10]:
            line.sendall(b"GET /health HTTP/1.1\r\nHost: ")
        ends = [_end(line) for line in half_sent]

    assert ends == [b""] * 20


def _end(line: socket.socket) -> bytes:
    try:
        return all_of(line)
    except ConnectionResetError:
        return b""


def test_a_connection_that_was_used_is_closed_too_when_its_next_headers_do_not_come() -> None:
    with house(Painter(), header_s=0.3) as client, connected(client) as line:
        line.sendall(f"GET /health HTTP/1.1\r\nHost: {client.base_url.host}\r\n\r\nGET /hea".encode())
        answer = _end(line)

    assert answer in (b"",) or answer.count(b"HTTP/1.1 200") == 1


def test_a_body_that_does_not_come_is_answered_with_408() -> None:
    with house(Painter(), body_idle_s=0.2) as client, connected(client) as line:
        line.sendall(upload_head(client, ALICE, 1000) + b"--x\r\n")
        answer = all_of(line)

    assert answer.startswith(b"HTTP/1.1 408")
    assert b"body_too_slow" in answer


def test_a_request_that_takes_long_is_not_taken_for_a_slow_body() -> None:
    painter = Painter(holds=True)
    with house(painter, body_idle_s=0.1, header_s=0.1) as client, ThreadPoolExecutor() as threads:
        waiting = threads.submit(client.post, URL, json=ask())
        eventually(lambda: len(painter.orders) == 1)
        threading.Event().wait(0.5)  # longer than both limits
        painter.let_go()
        answer = waiting.result()

    assert answer.status_code == 200


def test_idle_connections_above_the_limit_make_way_for_new_ones() -> None:
    with house(Painter(), max_connections=8) as client, ExitStack() as lines:
        for _ in range(40):
            lines.enter_context(connected(client))
        answers = [httpx.post(f"{client.base_url}{URL}", json=ask(), headers=bearer(ALICE)) for _ in range(3)]

    assert [answer.status_code for answer in answers] == [200] * 3


# Fair shares ----------------------------------------------------------------------------------------------------------


def test_a_tenant_that_floods_the_server_cannot_take_the_places_of_others() -> None:
    painter = Painter(holds=True)
    with house(painter, max_running=2, max_waiting=18) as client, ThreadPoolExecutor(40) as threads:
        flood = [threads.submit(client.post, URL, json=ask(seed=seed)) for seed in range(30)]
        queue = app_of(client).state.service.admission_queue
        eventually(lambda: queue.num_inside == 15 and queue.num_refused == 15)
        bob = threads.submit(client.post, URL, json=ask(seed=999), headers=bearer(BOB))
        eventually(lambda: queue.num_inside == 16)
        painter.let_go()
        answers = [one.result().status_code for one in flood]
        served = bob.result()
    seeds = [order.job.request.seed for order in painter.orders]

    assert served.status_code == 200
    assert sorted(answers) == [200] * 15 + [429] * 15
    assert seeds.index(999) == 2  # after the two that ran already


def test_run_slots_go_round_robin_over_tenants() -> None:
    queue = FairQueue[str](ReorderingQueue)
    for item, tenant in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("c1", "c")):
        queue.add(item, (), tenant)

    assert [queue.pop(())[0] for _ in range(5)] == ["a1", "b1", "c1", "a2", "a3"]


def test_the_tenant_with_the_fewest_running_items_is_next() -> None:
    queue = FairQueue[str](ReorderingQueue)
    queue.running.update({"a": 3, "b": 1})
    queue.add("a1", (), "a")
    queue.add("b1", (), "b")

    assert queue.remove("missing", "a") is False
    assert queue.pop(()) == ("b1", "b")


def test_a_tenant_that_sends_most_leaves_a_slot_for_the_next_one() -> None:
    async def play() -> tuple[int, int]:
        queue, over = AdmissionQueue(4, Admission(100), tenants=("flood", "single")), asyncio.Event()

        async def one(tenant: str) -> None:
            async with queue.slot(tenant=tenant):
                await over.wait()

        flood = [asyncio.create_task(one("flood")) for _ in range(10)]
        await asyncio.sleep(0)
        alone = queue.num_running
        flood.append(asyncio.create_task(one("single")))
        await asyncio.sleep(0)
        both = queue.num_running
        over.set()
        await asyncio.gather(*flood)
        return alone, both

    assert asyncio.run(play()) == (3, 4)


def test_threads_go_round_robin_over_tenants() -> None:
    threads, made, free = FairThreads(1, "prepare", lambda: None), list[str](), threading.Event()
    threads.submit("alice", partial(free.wait, 60))
    for name in ("a1", "a2", "a3"):
        threads.submit("alice", partial(made.append, name))
    threads.submit("bob", partial(made.append, "b1"))
    free.set()
    eventually(lambda: len(made) == 4)
    threads.close()

    assert made == ["b1", "a1", "a2", "a3"]


def test_places_are_kept_for_tenants_that_use_less_than_their_share() -> None:
    inside = {"a": 9, "b": 1}

    assert reserved_places(inside, "a", ("a", "b", "c"), num_each=3) == 2 + 3
    assert reserved_places(inside, "c", ("a", "b", "c"), num_each=3) == 2


# A full disk ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_a_507_and_the_connection_stays_usable(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with house(Painter()) as client:
        registry = app_of(client).state.service.adapter_registry

        def full(*_: Any, **__: Any) -> None:
            raise OSError(number, "no space")

        monkeypatch.setattr(registry, "add", full)
        refused = client.post("/v1/adapters", data={"name": "x"}, files={"file": ("x", b"x")})
        after = client.get("/health")

    assert (refused.status_code, refused.json()["error"]["code"]) == (507, "insufficient_storage")
    assert after.status_code == 200


def test_a_disk_that_is_full_while_a_form_is_read_is_a_507(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("starlette.formparsers.SpooledTemporaryFile", lambda *_, **__: Full())
    with house(Painter()) as client:
        refused = client.post("/v1/adapters", data={"name": "x"}, files={"file": ("x", bytes(2**21))})

    assert refused.status_code == 507


def test_an_unexpected_failure_is_a_500_and_the_connection_stays_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    with house(Painter()) as client:
        service = app_of(client).state.service
        monkeypatch.setattr(service.adapter_registry, "seen_by", lambda _: 1 / 0)
        broken = client.get("/v1/adapters")
        after = client.get("/v1/models")

    assert (broken.status_code, after.status_code) == (500, 200)
    assert "ZeroDivision" not in broken.text


# Images that would cost too much --------------------------------------------------------------------------------------


def blank(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "png")
    return file.getvalue()


def test_an_edit_of_a_large_image_is_refused_before_it_is_decoded(real: httpx.Client) -> None:
    picture = blank(2056, 2056)
    answer = real.post("/v1/images/edits", data={"prompt": "x", "steps": 2}, files={"image": ("i.png", picture)})

    assert len(picture) < 20_000
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "image_too_large")


def test_images_far_above_the_size_of_the_model_are_refused(real: httpx.Client) -> None:
    answer = real.post(URL, json=ask(size="1024x1024"))

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_size")


# The stop -------------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from serving.server.painting import Painter
from takeup.serving.server.access import ApiKeys
from takeup.serving.server.admission import AdmissionQueue
from takeup.serving.server.backends.local import FairThreads
from takeup.serving.server.app import listen_on, log_config, make_app, serve
from takeup.serving.server.settings import ServerSettings
listener = listen_on("127.0.0.1", 0)
app = make_app(ServerSettings("m", Path({uploads!r})), Painter(holds=True), ApiKeys(),
    on_start=lambda: print(listener.getsockname()[1], flush=True))
serve(app, listener, log_config(False), {grace})
"""


@contextmanager
def stubborn_server(uploads: str, grace: float) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server whose images are never finished."""
    tests = str(__import__("pathlib").Path(__file__).parents[2])
    code = PROGRAM.format(tests=tests, uploads=uploads, grace=grace)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout is not None
    try:
        yield process, f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()


def test_a_server_that_stops_is_not_ready_refuses_new_work_and_answers_the_rest_with_503(tmp_path: Any) -> None:
    with stubborn_server(str(tmp_path), grace=3.0) as (process, url), ThreadPoolExecutor() as threads:
        running = threads.submit(httpx.post, url + URL, json=ask(), timeout=100)
        streaming = threads.submit(httpx.post, url + URL, json=ask(stream=True), timeout=100)
        eventually(lambda: "takeup_serving_num_requests_running 2.0" in httpx.get(url + "/metrics").text)
        process.send_signal(signal.SIGTERM)
        eventually(lambda: httpx.get(url + "/ready").status_code == 503)
        refused = httpx.post(url + URL, json=ask())
        answers = [running.result(), streaming.result()]
        process.wait(60)
        assert process.stderr is not None
        log = process.stderr.read()

    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
    assert answers[0].status_code == 503
    assert answers[0].json()["error"]["code"] == "not_ready"
    assert json.loads(answers[1].text.strip().splitlines()[-1].removeprefix("data: "))["error"]["code"] == "not_ready"
    assert "Traceback" not in log


def test_a_server_without_work_stops_at_once(tmp_path: Any) -> None:
    with stubborn_server(str(tmp_path), grace=1000.0) as (process, url):
        assert httpx.get(url + "/ready").status_code == 200
        process.send_signal(signal.SIGTERM)

        assert process.wait(60) in (0, -signal.SIGTERM)


def test_a_server_without_keys_has_one_tenant_that_may_use_all_places() -> None:
    painter = Painter(holds=True)
    with house(painter, keys=ApiKeys(), max_running=1, max_waiting=3) as client, ThreadPoolExecutor() as threads:
        flood = [threads.submit(client.post, URL, json=ask()) for _ in range(6)]
        queue = app_of(client).state.service.admission_queue
        eventually(lambda: queue.num_inside == 4 and queue.num_refused == 2)
        painter.let_go()

    assert sorted(one.result().status_code for one in flood) == [200] * 4 + [429] * 2
