"""The queue before the engine: turns, full houses, deadlines, clients that go away, and the end of a server."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")
pytest.importorskip("diffusers", reason="needs the package 'diffusers': pip install 'takeup[diffusion]'")

from serving.server.clients import app_of, ask, bearer, eventually, house, metric
from serving.server.painting import PICTURE, Painter
from serving.stock import ENGINE_MARKS
from takeup.serving.model import Expired
from takeup.serving.scheduling.queue import Admission
from takeup.serving.server.admission import AdmissionQueue
from takeup.serving.server.errors import ApiError
from takeup.serving.server.progress_hub import ProgressHub

pytestmark = ENGINE_MARKS
URL = "/v1/images/generations"


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


def send_and_leave(client: httpx.Client, once: Callable[[], bool]) -> None:
    """A client that asks for an image and hangs up."""
    request = client.build_request("POST", URL, json=ask())
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as line:
        line.sendall(f"POST {URL} HTTP/1.1\r\n{head}\r\n".encode() + request.content)
        eventually(once)


# The gate -------------------------------------------------------------------------------------------------------------


def test_turns_are_taken_in_the_order_of_arrival() -> None:
    async def play() -> list[int]:
        gate, order = AdmissionQueue(1, Admission(10)), list[int]()

        async def one(number: int) -> None:
            with gate.reserve(1):
                async with gate.slot():
                    order.append(number)
                    await asyncio.sleep(0)

        await asyncio.gather(*(one(number) for number in range(6)))
        assert (gate.num_inside, gate.num_running, gate.num_waiting) == (0, 0, 0)
        return order

    assert asyncio.run(play()) == list(range(6))


def test_a_full_house_sends_away_with_a_time_to_come_back() -> None:
    async def play() -> ApiError:
        gate = AdmissionQueue(2, Admission(1))
        with gate.reserve(3), pytest.raises(ApiError) as refused, gate.reserve(1):
            pass
        with gate.reserve(3):  # the places are free again
            assert gate.num_refused == 1
        return refused.value

    problem = asyncio.run(play())

    assert problem.status == 429
    assert 1 <= int(problem.headers["Retry-After"]) <= 60


def test_a_deadline_ends_the_wait_and_takes_no_turn() -> None:
    async def play() -> AdmissionQueue:
        gate, loop = AdmissionQueue(1, Admission(5)), asyncio.get_running_loop()
        async with gate.slot():
            with pytest.raises(Expired):
                async with gate.slot(until_s=loop.time() + 0.01):
                    pass
        async with gate.slot(until_s=loop.time() + 60):
            assert gate.num_running == 1
        return gate

    assert asyncio.run(play()).num_running == 0


def test_the_board_tells_the_past_and_then_what_comes() -> None:
    async def play() -> list[str]:
        board = ProgressHub()
        progress = board.open("alice", "one")
        progress.publish("queued")
        asyncio.get_running_loop().call_later(0.01, progress.publish, "done")
        asyncio.get_running_loop().call_later(0.02, progress.end)
        return [event["type"] async for event in board.find("alice", "one").events()]

    assert asyncio.run(play()) == ["queued", "done"]


def test_the_board_forgets_what_is_long_over_but_nothing_that_runs() -> None:
    async def play() -> None:
        board = ProgressHub()
        board.open("alice", "running")
        for number in range(400):
            board.open("alice", f"over-{number}").end()
        board.find("alice", "running")
        board.find("alice", "over-399")
        with pytest.raises(ApiError):
            board.find("alice", "over-0")

    asyncio.run(play())


# The server around it -------------------------------------------------------------------------------------------------


def test_more_than_can_wait_get_429_and_the_others_their_images() -> None:
    painter = Painter(holds=True)
    with house(painter, max_running=1, max_waiting=2) as client, ThreadPoolExecutor(3) as threads:
        served = [threads.submit(client.post, URL, json=ask(seed=seed)) for seed in range(3)]
        eventually(lambda: metric(client, "num_requests_waiting") == 2)
        refused = client.post(URL, json=ask())
        num_started = len(painter.orders)
        painter.let_go()
        answers = [answer.result() for answer in served]

    assert num_started == 1
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "queue_full"
    assert int(refused.headers["Retry-After"]) >= 1
    assert [answer.status_code for answer in answers] == [200] * 3
    assert {answer.json()["data"][0]["seed"] for answer in answers} == {0, 1, 2}


def test_a_request_for_more_images_than_there_are_places_is_refused_as_a_whole() -> None:
    painter = Painter()
    with house(painter, max_running=1, max_waiting=2) as client:
        refused = client.post(URL, json=ask(n=4))

    assert refused.status_code == 429
    assert painter.orders == []


def test_waiting_past_the_deadline_is_a_504_that_clients_do_not_repeat() -> None:
    painter = Painter(holds=True)
    with house(painter, max_running=1) as client, ThreadPoolExecutor(1) as threads:
        first = threads.submit(client.post, URL, json=ask())
        eventually(lambda: len(painter.orders) == 1)
        late = client.post(URL, json=ask(deadline_s=0.05))
        painter.let_go()

    assert late.status_code == 504
    assert late.json()["error"]["code"] == "deadline_exceeded"
    assert late.headers["x-should-retry"] == "false"
    assert first.result().status_code == 200


def test_a_client_that_goes_away_ends_its_job_and_frees_its_place() -> None:
    painter = Painter(holds=True)
    with house(painter, max_running=1, max_waiting=0) as client:
        send_and_leave(client, once=lambda: len(painter.orders) == 1)
        eventually(lambda: painter.orders[0].is_cancelled and metric(client, "num_requests_running") == 0)
        painter.let_go()
        again = client.post(URL, json=ask())

    assert again.status_code == 200


def test_a_client_that_leaves_a_stream_ends_its_job_too() -> None:
    painter = Painter(holds=True)
    with house(painter, max_running=1, max_waiting=0) as client:
        with client.stream("POST", URL, json=ask(stream=True)) as stream:
            assert next(stream.iter_lines()) == "event: queued"
            eventually(lambda: len(painter.orders) == 1)
        eventually(lambda: painter.orders[0].is_cancelled and metric(client, "num_requests_running") == 0)
        painter.let_go()

        assert client.post(URL, json=ask()).status_code == 200


def test_a_client_that_goes_away_in_the_queue_never_starts() -> None:
    painter = Painter(holds=True)
    with house(painter, max_running=1, max_waiting=1) as client, ThreadPoolExecutor(1) as threads:
        first = threads.submit(client.post, URL, json=ask())
        eventually(lambda: len(painter.orders) == 1)
        send_and_leave(client, once=lambda: metric(client, "num_requests_waiting") == 1)
        eventually(lambda: metric(client, "num_requests_waiting") == 0)
        painter.let_go()

        assert first.result().status_code == 200
        assert len(painter.orders) == 1


def test_progress_is_seen_by_whoever_knows_the_identity_and_by_no_other_tenant() -> None:
    painter = Painter(holds=True)
    with house(painter) as client, ThreadPoolExecutor(2) as threads:
        made = threads.submit(client.post, URL, json=ask(steps=3), headers={"X-Request-Id": "mine"})
        eventually(lambda: len(painter.orders) == 1)
        watched = threads.submit(client.get, "/v1/requests/mine/events")
        foreign = client.get("/v1/requests/mine/events", headers=bearer("bob-has-another-long-key"))
        twice = client.post(URL, json=ask(), headers={"X-Request-Id": "mine"})
        painter.let_go()
        events = events_of(watched.result().text)

    assert made.result().json()["id"] == "mine"
    assert foreign.status_code == 404
    assert twice.status_code == 409
    assert [event["type"] for event in events] == ["queued", "started", *["image_generation.progress"] * 3, "done"]
    assert [event["step"] for event in events if "step" in event] == [1, 2, 3]


def test_the_first_failure_of_a_stream_is_its_last_event() -> None:
    class Broken(Painter):
        def _paint(self, order: Any) -> None:
            order.fail(ValueError("a secret of the inside"))

    with house(Broken()) as client:
        events = events_of(client.post(URL, json=ask(stream=True)).text)
        plain = client.post(URL, json=ask())

    assert events[-1]["error"]["code"] == "internal_error"
    assert plain.status_code == 500
    assert "secret" not in plain.text


def test_an_image_that_fails_ends_the_others_of_its_request() -> None:
    class Fails(Painter):
        def _paint(self, order: Any) -> None:
            if order.job.request.seed == 2:
                eventually(lambda: len(self.orders) == 3)
                order.fail(ValueError("no"))

    painter = Fails(holds=True)
    with house(painter) as client:
        failed = client.post(URL, json=ask(seed=1, n=3))

    assert failed.status_code == 500
    assert [order.is_cancelled for order in painter.orders if order.job.request.seed != 2] == [True, True]


def test_stopping_lets_what_runs_finish_and_closes_the_backend() -> None:
    painter = Painter(holds=True)
    answers: list[httpx.Response] = []
    with house(painter) as client:
        url, headers = f"{client.base_url}{URL}", dict(client.headers)  # that client is closed before its server

        def post() -> None:
            answers.append(httpx.post(url, json=ask(), headers=headers, timeout=60))

        thread = threading.Thread(target=post)
        thread.start()
        eventually(lambda: len(painter.orders) == 1)
        threading.Timer(0.3, painter.let_go).start()
    thread.join()

    assert [answer.status_code for answer in answers] == [200]
    assert painter.is_closed


def test_a_server_whose_backend_is_not_ready_says_so_and_lives() -> None:
    painter = Painter()
    with house(painter) as client:
        painter.is_ready = False
        answers = [client.get("/health"), client.get("/ready"), client.post(URL, json=ask())]
        app_of(client).state.service.is_stopping = True
        painter.is_ready = True

        assert client.get("/ready").status_code == 503
    assert [answer.status_code for answer in answers] == [200, 503, 503]
    assert all(answer.json()["error"]["code"] == "not_ready" for answer in answers[1:])


def test_metrics_count_what_happened() -> None:
    with house(Painter()) as client:
        client.post(URL, json=ask(n=2))
        client.post(URL, json={})
        page = client.get("/metrics").text

    assert "takeup_serving_images_total 2.0" in page
    assert 'takeup_serving_requests_total{endpoint="/v1/images/generations",status="200"} 1.0' in page
    assert 'takeup_serving_requests_total{endpoint="/v1/images/generations",status="400"} 1.0' in page
    assert "takeup_serving_image_seconds_count 2.0" in page
    assert PICTURE.decode() not in page
