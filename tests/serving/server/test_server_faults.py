"""Lines that break: an upload that stops half way, a server that is gone for its worker, a worker told nonsense."""

from __future__ import annotations

import multiprocessing
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")
pytest.importorskip("diffusers", reason="needs the package 'diffusers': pip install 'takeup[diffusion]'")

from serving.server.clients import app_of, ask, eventually, house, metric
from serving.server.painting import PICTURE, Painter
from serving.stock import ENGINE_MARKS
from takeup.errors import BadInput
from takeup.serving.model import Request
from takeup.serving.server.backends import Backend, ImageJob
from takeup.serving.server.backends.worker_pool import serve_jobs

pytestmark = ENGINE_MARKS
URL = "/v1/images/generations"
WAIT_S = 60.0


@dataclass
class Given:
    """A plan for a backend that is there already."""

    backend: Backend
    problem: Exception | None = None

    def build(self) -> Backend:
        if self.problem is not None:
            raise self.problem
        return self.backend


@contextmanager
def worker(monkeypatch: pytest.MonkeyPatch, plan: Given) -> Iterator[Connection]:
    """The end of the line that a server has, with a worker at the other end, in a thread."""
    monkeypatch.setattr(
        "takeup.serving.server.backends.worker_pool.signal.signal", lambda *_: None
    )  # threads have no signals
    ours, theirs = multiprocessing.Pipe()
    thread = threading.Thread(target=serve_jobs, args=(theirs, plan))
    thread.start()
    yield ours
    ours.close()
    theirs.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def job(seed: int) -> ImageJob:
    return ImageJob(Request("a cat", num_steps=2, seed=seed))


def heard(line: Connection, word: str) -> tuple[Any, ...]:
    """The next thing of this kind that the worker says."""
    while line.poll(WAIT_S):
        said, *facts = line.recv()
        if said == word:
            return tuple(facts)
    raise AssertionError(f"it never said {word}")


# A worker and its line ------------------------------------------------------------------------------------------------


def test_a_worker_says_its_steps_and_then_its_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(monkeypatch, Given(Painter())) as line:
        (card,) = heard(line, "ready")
        line.send(("start", 7, job(3)))
        steps = [heard(line, "step") for _ in range(2)]
        number, picture, *_ = heard(line, "made")
        line.send(("stop",))

    assert card.family == "PainterPipeline"
    assert steps == [(7, 1, 2), (7, 2, 2)]
    assert (number, picture) == (7, PICTURE + b"3")


def test_a_job_that_is_called_off_fails_and_the_next_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    painter = Painter(holds=True)
    with worker(monkeypatch, Given(painter)) as line:
        line.send(("start", 1, job(1)))
        heard(line, "step")
        line.send(("cancel", 99))  # of which it knows nothing
        line.send(("cancel", 1))
        number, problem = heard(line, "failed")
        painter.let_go()
        line.send(("start", 2, job(2)))
        made = heard(line, "made")[:2]
        line.send(("stop",))

    assert (number, str(problem)) == (1, "cancelled")
    assert made == (2, PICTURE + b"2")


def test_what_is_forgotten_is_forgotten_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    painter = Painter()
    with worker(monkeypatch, Given(painter)) as line:
        line.send(("forget", "paper"))
        line.send(("start", 1, job(1)))
        heard(line, "made")
        line.send(("stop",))

    assert painter.forgotten == ["paper"]


@pytest.mark.parametrize("end", [lambda line: line.send(("stop",)), lambda line: line.close()], ids=["told", "gone"])
def test_a_worker_ends_with_its_server_and_gives_back_what_it_has(
    monkeypatch: pytest.MonkeyPatch, end: Callable[[Connection], None]
) -> None:
    painter = Painter(holds=True)
    with worker(monkeypatch, Given(painter)) as line:
        line.send(("start", 1, job(1)))
        heard(line, "step")
        end(line)
        eventually(lambda: painter.is_closed)

    assert painter.is_closed


def test_a_plan_that_cannot_be_built_is_said_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(monkeypatch, Given(Painter(), BadInput("no such model"))) as line:
        (problem,) = heard(line, "broken")

    assert isinstance(problem, BadInput)
    assert str(problem) == "no such model"


def test_the_inside_of_a_failure_stays_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Painter):
        def _paint(self, order: Any) -> None:
            order.fail(ZeroDivisionError("a secret of the inside"))

    with worker(monkeypatch, Given(Broken())) as line:
        line.send(("start", 1, job(1)))
        number, problem = heard(line, "failed")
        line.send(("stop",))

    assert number == 1
    assert (type(problem), str(problem)) == (RuntimeError, "ZeroDivisionError")
    assert "a secret of the inside" in caplog.text


# Clients and their lines ----------------------------------------------------------------------------------------------


def test_an_upload_that_stops_half_way_leaves_nothing_and_disturbs_nobody() -> None:
    with house(Painter()) as client:
        uploads = app_of(client).state.service.settings.uploads
        form = b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n' + bytes(50_000)
        head = (
            f"POST /v1/adapters HTTP/1.1\r\nHost: {client.base_url.host}\r\n"
            f"Authorization: {client.headers['Authorization']}\r\n"
            "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 1000000\r\n\r\n"
        )
        with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as line:
            line.sendall(head.encode() + form)
        answer = client.post(URL, json=ask())
        listed = client.get("/v1/adapters").json()["data"]
        eventually(lambda: not any(path.is_file() for path in uploads.rglob("*")))

    assert answer.status_code == 200
    assert listed == []


def test_a_body_that_stops_half_way_takes_no_place() -> None:
    painter = Painter()
    with house(painter, max_running=1, max_waiting=0) as client:
        head = (
            f"POST {URL} HTTP/1.1\r\nHost: {client.base_url.host}\r\n"
            f"Authorization: {client.headers['Authorization']}\r\n"
            "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
        )
        with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as line:
            line.sendall(head.encode() + b'{"prompt": "a c')
        answer = client.post(URL, json=ask())
        inside = metric(client, "num_requests_running"), metric(client, "num_requests_waiting")

    assert answer.status_code == 200
    assert inside == (0, 0)
    assert len(painter.orders) == 1


def test_an_answer_nobody_reads_stops_nobody_else() -> None:
    """A client asks for a stream, reads nothing and stays: its events wait for it, the others do not."""
    with house(Painter(), max_running=1) as client:
        request = client.build_request("POST", URL, json=ask(stream=True, n=10))
        head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as line:
            line.sendall(f"POST {URL} HTTP/1.1\r\n{head}\r\n".encode() + request.content)
            eventually(lambda: metric(client, "images_total") == 10)
            answers = [client.post(URL, json=ask()) for _ in range(3)]

    assert [answer.status_code for answer in answers] == [200] * 3
