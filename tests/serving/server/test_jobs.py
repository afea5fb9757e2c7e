"""Asynchronous jobs, webhooks, images under URLs that expire, and LoRAs that change while the server runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")
pytest.importorskip("diffusers", reason="needs the package 'diffusers': pip install 'takeup[diffusion]'")

from benchmarks.support.background_server import background_server
from serving.server.clients import ALICE, BOB, KEYS, MODEL, ask, bearer, eventually
from serving.server.painting import PICTURE, Painter
from serving.stock import ENGINE_MARKS
from takeup.errors import BadInput
from takeup.serving.contract import CachePolicy
from takeup.serving.diffusion.addons.lora.loading import LoraStore, ThreadLoader
from takeup.serving.diffusion.addons.lora.targets import LoraTargets
from takeup.serving.diffusion.engine.tiny import tiny
from takeup.serving.scheduling.adapters import ADAPTER_POLICIES
from takeup.serving.server import adapter_registry
from takeup.serving.server.adapter_sources import check_prefixes, opened
from takeup.serving.server.app import make_app
from takeup.serving.server.backends import ModelCard
from takeup.serving.server.errors import ApiError
from takeup.serving.server.jobs import MAX_FINISHED, ExpiringFiles, Jobs, check_webhooks
from takeup.serving.server.settings import ServerSettings

pytestmark = ENGINE_MARKS
URL = "/v1/images/generations"
LATER = {"Prefer": "respond-async"}
Files = dict[str, Path]


@contextmanager
def painted(folder: Path, painter: Painter, **settings: Any) -> Iterator[httpx.Client]:
    """A client with Alice's key of a server with these settings."""
    app = make_app(ServerSettings(MODEL, folder / "uploads", **settings), painter, KEYS)
    with background_server(app) as url, httpx.Client(base_url=url, headers=bearer(ALICE), timeout=60) as client:
        yield client


def state(client: httpx.Client, identity: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/v1/jobs/{identity}").json()
    return found


# Jobs -----------------------------------------------------------------------------------------------------------------


def test_a_job_is_submitted_polled_and_its_images_are_fetched_by_their_urls(tmp_path: Path) -> None:
    painter = Painter(holds=True)
    with painted(tmp_path, painter) as client:
        answer = client.post(URL, json=ask(n=2), headers=LATER)
        identity = answer.json()["id"]
        before = state(client, identity)["status"]
        painter.let_go()
        eventually(lambda: state(client, identity)["status"] == "done")
        images = [httpx.get(one["url"]) for one in state(client, identity)["result"]["data"]]
        events = client.get(f"/v1/requests/{identity}/events").text

    assert (answer.status_code, answer.headers["location"]) == (202, f"{client.base_url}/v1/jobs/{identity}")
    assert before == "running"
    assert [image.content for image in images] == [PICTURE + b"1", PICTURE + b"2"]
    assert images[0].headers["content-type"] == "image/png"
    assert "event: done" in events


def test_a_job_is_cancelled_by_its_tenant_and_by_no_other(tmp_path: Path) -> None:
    painter = Painter(holds=True)
    with painted(tmp_path, painter) as client:
        identity = client.post(URL, json=ask(), headers=LATER).json()["id"]
        eventually(lambda: bool(painter.orders))
        foreign = client.delete(f"/v1/jobs/{identity}", headers=bearer(BOB))
        cancelled = client.delete(f"/v1/jobs/{identity}")
        again = client.delete(f"/v1/jobs/{identity}")

    assert foreign.status_code == 404
    assert (cancelled.json()["status"], again.json()["status"]) == ("cancelled", "cancelled")
    assert painter.orders[0].is_cancelled


def test_a_job_that_fails_says_why_and_one_that_is_refused_is_no_job(tmp_path: Path) -> None:
    painter = Painter(holds=True)
    with painted(tmp_path, painter) as client:
        refused = client.post(URL, json=ask(size="9999x9999"), headers=LATER)
        identity = client.post(URL, json=ask(), headers=LATER).json()["id"]
        eventually(lambda: bool(painter.orders))
        painter.orders[0].fail(BadInput("the brush is broken; take another"))
        eventually(lambda: state(client, identity)["status"] == "failed")
        error = state(client, identity)["error"]

    assert refused.status_code == 400
    assert error["message"] == "the brush is broken; take another"


class Listener(BaseHTTPRequestHandler):
    """Notes what a webhook is told; answers 500 to the first call."""

    told: ClassVar[list[dict[str, Any]]] = []
    statuses: ClassVar[Iterator[int]] = iter(())

    def do_POST(self) -> None:
        Listener.told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(next(Listener.statuses, 200))
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_a_webhook_is_told_the_end_without_images_and_again_if_it_fails(
    hook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Jobs.__init__, "__defaults__", ((), (0.0, 0.0, 0.0)))
    Listener.told, Listener.statuses = [], iter([500, 302])
    with painted(tmp_path, Painter(), webhooks=(hook,)) as client:
        answer = client.post(URL, json=ask(webhook=f"{hook}done?job=1"))
        eventually(lambda: len(Listener.told) == 3)

    assert answer.status_code == 202
    told = {"id": answer.json()["id"], "object": "job", "status": "done", "created": Listener.told[0]["created"]}
    assert Listener.told == [told] * 3


def test_webhooks_outside_the_allowed_prefixes_are_refused(tmp_path: Path) -> None:
    with painted(tmp_path, Painter(), webhooks=("https://app.example/",)) as client:
        answers = [
            client.post(URL, json=ask(webhook=url))
            for url in ("http://169.254.169.254/", "https://app.example.evil.org/", "https://app.example@evil.org/")
        ]

    assert [answer.status_code for answer in answers] == [400, 400, 400]
    assert answers[0].json()["error"]["param"] == "webhook"


@pytest.mark.parametrize("prefix", ["app.example", "https://app.example", "file:///etc/"])
def test_a_webhook_prefix_must_end_after_its_host(prefix: str) -> None:
    with pytest.raises(BadInput, match="no origin"):
        check_webhooks((prefix,))


def test_finished_jobs_are_forgotten_beyond_a_number(tmp_path: Path) -> None:
    with painted(tmp_path, Painter()) as client:
        identities = []
        for _ in range(MAX_FINISHED + 2):
            identities.append(client.post(URL, json=ask(), headers=LATER).json()["id"])
            eventually(lambda: state(client, identities[-1]).get("status") == "done")
        first = client.get(f"/v1/jobs/{identities[0]}")

    assert first.status_code == 404


# Images under URLs ----------------------------------------------------------------------------------------------------


def test_files_expire_and_the_oldest_go_when_there_is_no_room() -> None:
    now_s = [0.0]
    files = ExpiringFiles(kept_s=10, max_bytes=8, clock=lambda: now_s[0])
    first = files.add(b"12345", "png")
    second = files.add(b"6789", "png")
    with pytest.raises(ApiError, match="expired"):
        files.find(first)
    kept = files.find(second)
    now_s[0] = 10.0
    with pytest.raises(ApiError, match="expired"):
        files.find(second)

    assert kept == b"6789"


@pytest.mark.parametrize("data_urls", [False, True])
def test_urls_are_real_ones_unless_the_operator_prefers_data(data_urls: bool, tmp_path: Path) -> None:
    with painted(tmp_path, Painter(), data_urls=data_urls) as client:
        url = client.post(URL, json=ask(response_format="url")).json()["data"][0]["url"]
        picture = None if data_urls else httpx.get(url).content  # without a key

    assert url.startswith("data:image/png;base64,") == data_urls
    assert data_urls or picture == PICTURE + b"1"


# LoRAs at run time ----------------------------------------------------------------------------------------------------


def upload(client: httpx.Client, file: Path | None, **fields: Any) -> httpx.Response:
    files = None if file is None else {"file": file.read_bytes()}
    return client.post("/v1/adapters", data={"name": "style", **fields}, files=files)


class Fitting(Painter):
    """A painter whose model has layers that LoRAs fit."""

    def __init__(self) -> None:
        super().__init__()
        self._card = ModelCard("PainterPipeline", LoraTargets.of(tiny("takeup/tiny-sdxl")), ())


def test_an_adapter_is_replaced_pinned_loaded_and_dropped(tmp_path: Path, lora_files: Files) -> None:
    painter = Fitting()
    with painted(tmp_path, painter) as client:
        upload(client, lora_files["paper"])
        taken = upload(client, lora_files["film"])
        pinned = client.post("/v1/adapters/style/pin").json()
        during = set(painter.pinned)
        replaced = upload(client, lora_files["film"], replace="true")
        client.post("/v1/adapters/style/load")
        dropped = client.post("/v1/adapters/style/unload").json()
        foreign = client.post("/v1/adapters/style/pin", headers=bearer(BOB))
        listed = client.get("/v1/adapters").json()["data"]

    assert (taken.status_code, replaced.status_code, foreign.status_code) == (409, 201, 404)
    assert (pinned["pinned"], dropped["pinned"], len(during)) == (True, False, 1)
    assert [one["bytes"] for one in listed] == [lora_files["film"].stat().st_size]
    assert [Path(path).name.partition(".")[0] for path in painter.forgotten] == ["style", "style"]
    assert len(set(painter.forgotten)) == 2  # the old file and the new one


def test_a_pinned_lora_stays_in_a_full_memory_until_it_is_unpinned(lora_files: Files) -> None:
    make: type[CachePolicy] = ADAPTER_POLICIES["lru"]
    names = {name: lora_files[name] for name in ("paper", "film")}
    store = LoraStore(ThreadLoader(names, LoraTargets.of(tiny("takeup/tiny-sdxl"))), make, 1)
    store.pin("paper", is_pinned=True)
    store.pin("paper", is_pinned=True)
    store.load("film").result()
    store.release("film")
    eventually(lambda: store.names == {"paper"})
    store.pin("paper", is_pinned=False)

    eventually(lambda: store.names == set())  # once the thread that read it has let go of it
    store.close()


def test_loras_come_from_allowed_paths_and_urls_and_from_nowhere_else(
    tmp_path: Path, lora_files: Files, hook: str
) -> None:
    folder = f"{lora_files['paper'].parent}/"
    with painted(tmp_path, Fitting(), sources=(folder, "hub:friend/", "https://models.example/")) as client:
        by_path = upload(client, None, source=str(lora_files["paper"]))
        refused = [
            upload(client, None, name="other", source=source)
            for source in (
                "/etc/passwd",
                f"{folder}../secret",
                "stranger/lora",
                "https://models.example.evil.org/a",
                hook,
            )
        ]
        missing = upload(client, None, name="other", source=f"{folder}none.safetensors")
        neither = upload(client, None, name="other")

    assert by_path.status_code == 201
    assert [answer.status_code for answer in refused] == [403] * 5
    assert (missing.status_code, neither.status_code) == (400, 400)


class _Elsewhere(BaseHTTPRequestHandler):
    """Redirects within `/loras/` and out of it."""

    def do_GET(self) -> None:
        target = {"/loras/moved": "/loras/file", "/loras/out": "/private/file"}.get(self.path)
        self.send_response(200 if target is None else 302)
        if target is not None:
            self.send_header("Location", target)
        self.end_headers()
        self.wfile.write(b"secret" if "private" in self.path else b"a lora")

    def log_message(self, *_: Any) -> None:
        return


def test_a_url_leads_only_to_what_is_allowed_also_through_redirects_and_escapes() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        with opened(f"{base}/loras/moved", [f"{base}/loras/"], 100) as file:
            data = file.read(100)
        refused = []
        for path in ("/loras/out", "/loras/%2e%2e/private/file", "/loras/%2E./private/file", "/private/file"):
            with pytest.raises(ApiError) as error, opened(base + path, [f"{base}/loras/"], 100):
                pass
            refused.append(error.value.detail.code)
        server.shutdown()

    assert data == b"a lora"
    assert refused == ["invalid_source", *["source_not_allowed"] * 3]


@pytest.mark.parametrize("prefix", ["https://models.example", "/loras", "hub:owner", "owner/", "https://"])
def test_a_prefix_of_sources_ends_with_a_whole_name(prefix: str) -> None:
    with pytest.raises(BadInput, match="write"):
        check_prefixes([prefix])


def test_the_folder_of_the_operator_is_watched(
    tmp_path: Path, lora_files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_registry, "SCAN_S", 0.0)
    shared, painter = tmp_path / "shared", Fitting()
    shared.mkdir()

    def listed(client: httpx.Client) -> list[tuple[str, int]]:
        return [(one["id"], one["bytes"]) for one in client.get("/v1/adapters").json()["data"]]

    with painted(tmp_path, painter, adapters=shared) as client:
        before = listed(client)
        (shared / "style.safetensors").write_bytes(lora_files["paper"].read_bytes())
        (shared / "no name!.safetensors").write_bytes(b"")
        added = listed(client)
        (shared / "style.safetensors").write_bytes(b"changed")
        changed = listed(client)
        (shared / "style.safetensors").unlink()
        after = listed(client)

    assert (before, changed, after) == ([], [("style", 7)], [])
    assert added == [("style", lora_files["paper"].stat().st_size)]
    assert painter.forgotten == [str(shared / "style.safetensors")] * 2
