"""The shelf of adapters and its tenants: what is kept, what is seen by whom, and what happens to what is deleted."""

from __future__ import annotations

import base64
import io
import os
from pathlib import Path

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")
pytest.importorskip("diffusers", reason="needs the package 'diffusers': pip install 'takeup[diffusion]'")

from serving.server.clients import BOB, ask, bearer, house
from serving.server.painting import Painter
from serving.stock import ENGINE_MARKS
from takeup.errors import BadInput
from takeup.serving.diffusion.addons.lora.targets import LoraTargets
from takeup.serving.diffusion.engine.tiny import tiny
from takeup.serving.server.adapter_registry import AdapterRegistry
from takeup.serving.server.backends.local import AdapterPaths
from takeup.serving.server.errors import ApiError

pytestmark = ENGINE_MARKS
Files = dict[str, Path]


@pytest.fixture(scope="module")
def targets() -> LoraTargets:
    return LoraTargets.of(tiny("takeup/tiny-sdxl"))


@pytest.fixture
def forgotten() -> list[str]:
    return []


@pytest.fixture
def shelf(tmp_path: Path, targets: LoraTargets, forgotten: list[str]) -> AdapterRegistry:
    return AdapterRegistry(tmp_path, None, targets, forgotten.append, max_adapters=2)


def add(shelf: AdapterRegistry, tenant: str, name: str, file: Path) -> Path:
    with file.open("rb") as content:
        return shelf.add(tenant, name, content).path


def names(shelf: AdapterRegistry, tenant: str) -> list[str]:
    return [one.name for one in shelf.seen_by(tenant)]


def test_what_is_added_is_found_by_its_tenant_only(shelf: AdapterRegistry, lora_files: Files) -> None:
    path = add(shelf, "alice", "style", lora_files["paper"])

    assert shelf.find("alice", "style").path == path
    assert path.read_bytes() == lora_files["paper"].read_bytes()
    assert (names(shelf, "alice"), names(shelf, "bob")) == (["style"], [])
    with pytest.raises(ApiError) as refused:
        shelf.find("bob", "style")
    assert refused.value.status == 404


def test_two_tenants_may_use_one_name_for_different_files(shelf: AdapterRegistry, lora_files: Files) -> None:
    paths = [add(shelf, tenant, "style", lora_files[name]) for tenant, name in (("alice", "paper"), ("bob", "film"))]

    assert [shelf.find(tenant, "style").path for tenant in ("alice", "bob")] == paths
    assert paths[0].read_bytes() != paths[1].read_bytes()


def test_a_name_is_taken_until_it_is_deleted_and_then_means_the_new_file(
    shelf: AdapterRegistry, lora_files: Files
) -> None:
    old = add(shelf, "alice", "style", lora_files["paper"])
    with pytest.raises(ApiError) as refused:
        add(shelf, "alice", "style", lora_files["film"])
    shelf.remove("alice", "style")
    new = add(shelf, "alice", "style", lora_files["film"])

    assert refused.value.status == 409
    assert not old.exists()
    assert shelf.find("alice", "style").path == new != old


def test_what_is_held_stays_on_disk_until_it_is_let_go(
    shelf: AdapterRegistry, forgotten: list[str], lora_files: Files
) -> None:
    path = add(shelf, "alice", "style", lora_files["paper"])
    with shelf.hold("alice", ["style"], "loras"), shelf.hold("alice", ["style"], "loras"):
        shelf.remove("alice", "style")
        assert names(shelf, "alice") == []
        assert path.exists()
        assert forgotten == []

    assert not path.exists()
    assert forgotten == [str(path)]


def test_the_same_bytes_uploaded_again_while_the_old_ones_leave_stay(shelf: AdapterRegistry, lora_files: Files) -> None:
    with_holder = shelf.hold("alice", ["style"], "loras")
    add(shelf, "alice", "style", lora_files["paper"])
    with with_holder:
        shelf.remove("alice", "style")
        path = add(shelf, "alice", "style", lora_files["paper"])

    assert path.exists()
    assert names(shelf, "alice") == ["style"]


def test_a_request_that_names_one_unknown_adapter_holds_none(shelf: AdapterRegistry, lora_files: Files) -> None:
    path = add(shelf, "alice", "style", lora_files["paper"])
    with pytest.raises(ApiError) as refused, shelf.hold("alice", ["style", "nowhere"], "loras"):
        pass
    shelf.remove("alice", "style")

    assert refused.value.detail.param == "loras.1.name"
    assert not path.exists()


def test_a_refused_file_leaves_nothing_on_disk(shelf: AdapterRegistry, tmp_path: Path, lora_files: Files) -> None:
    with pytest.raises(ApiError) as refused:
        add(shelf, "alice", "style", lora_files["foreign"])

    assert refused.value.detail.code == "invalid_adapter"
    assert str(tmp_path) not in refused.value.detail.message
    assert list((tmp_path / "alice").iterdir()) == []


def test_an_upload_that_breaks_off_leaves_nothing_on_disk(shelf: AdapterRegistry, tmp_path: Path) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        shelf.add("alice", "style", Broken())

    assert list((tmp_path / "alice").iterdir()) == []


def test_a_tenant_has_so_many_adapters_and_no_more(shelf: AdapterRegistry, lora_files: Files) -> None:
    for name in ("one", "two"):
        add(shelf, "alice", name, lora_files["paper"])
    with pytest.raises(ApiError) as refused:
        add(shelf, "alice", "three", lora_files["paper"])
    add(shelf, "bob", "three", lora_files["paper"])

    assert (refused.value.status, refused.value.detail.code) == (403, "too_many_adapters")


def test_a_new_server_finds_what_the_old_one_kept_and_clears_what_it_did_not_finish(
    shelf: AdapterRegistry, tmp_path: Path, targets: LoraTargets, lora_files: Files
) -> None:
    path = add(shelf, "alice", "style", lora_files["paper"])
    half = tmp_path / "alice" / ".incoming-half"
    half.write_bytes(b"half")
    os.utime(half, (1, 1))
    young = tmp_path / "alice" / ".incoming-young"
    young.write_bytes(b"of another server that is receiving it")
    (tmp_path / "alice" / "notes.txt").write_text("not ours")
    later = AdapterRegistry(tmp_path, None, targets, print)

    assert later.find("alice", "style").path == path
    assert names(later, "alice") == ["style"]
    assert not half.exists()
    assert young.exists()


def test_shared_adapters_are_seen_by_all_and_taken_away_by_none(
    tmp_path: Path, targets: LoraTargets, lora_files: Files
) -> None:
    shelf = AdapterRegistry(tmp_path, lora_files["paper"].parent, targets, print)
    add(shelf, "alice", "film", lora_files["paper"])
    with pytest.raises(ApiError) as refused:
        shelf.remove("bob", "film")

    assert refused.value.status == 403
    assert lora_files["film"].exists()
    assert {"film", "paper", "words"} <= set(names(shelf, "bob"))
    assert not shelf.find("alice", "film").is_shared  # one's own comes first
    assert shelf.find("bob", "film").is_shared


@pytest.mark.parametrize("name", ["not a name.safetensors", "-x.safetensors"])
def test_shared_files_that_no_request_could_name_are_refused_at_once(
    tmp_path: Path, targets: LoraTargets, name: str
) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(BadInput, match="cannot be named"):
        AdapterRegistry(tmp_path / "uploads", tmp_path, targets, print)


def test_a_shared_folder_that_is_none_is_refused(tmp_path: Path, targets: LoraTargets) -> None:
    with pytest.raises(BadInput, match="not a folder"):
        AdapterRegistry(tmp_path, tmp_path / "nowhere", targets, print)


def test_backends_find_files_by_path_and_list_none(lora_files: Files) -> None:
    paths = AdapterPaths()

    assert paths[str(lora_files["paper"])] == lora_files["paper"]
    assert str(lora_files["paper"]) in paths
    assert "/nowhere.safetensors" not in paths
    assert (list(paths), len(paths)) == ([], 0)  # so that no error can list what others have


# Over HTTP ------------------------------------------------------------------------------------------------------------


def test_tenants_feel_their_own_adapter_of_the_same_name(real: httpx.Client, lora_files: Files) -> None:
    images = []
    for key, file in ((None, "paper"), (BOB, "film")):
        headers = bearer(key) if key else {}
        content = {"file": lora_files[file].read_bytes()}
        added = real.post("/v1/adapters", data={"name": "mine"}, files=content, headers=headers)
        assert added.status_code == 201, added.text
        answer = real.post("/v1/images/generations", json=ask(loras=[{"name": "mine"}]), headers=headers)
        images.append(base64.b64decode(answer.json()["data"][0]["b64_json"]))
    lists = [real.get("/v1/adapters", headers=headers).json()["data"] for headers in ({}, bearer(BOB))]
    real.delete("/v1/adapters/mine")
    left = real.get("/v1/adapters", headers=bearer(BOB)).json()["data"]

    assert images[0] != images[1]
    assert [[one["bytes"] for one in seen if one["id"] == "mine"] for seen in lists] == [
        [lora_files["paper"].stat().st_size],
        [lora_files["film"].stat().st_size],
    ]
    assert [one["id"] for one in left] == ["mine"]
    assert real.delete("/v1/adapters/mine", headers=bearer(BOB)).status_code == 200


def test_a_broken_shared_adapter_fails_its_request_in_words_without_paths(
    backend: object, real: httpx.Client, tmp_path: Path, lora_files: Files
) -> None:
    (tmp_path / "broken.safetensors").write_bytes(lora_files["paper"].read_bytes()[:-50])
    service = real.app.state.service  # type: ignore[attr-defined]
    usual, service.adapter_registry = (
        service.adapter_registry,
        AdapterRegistry(tmp_path / "up", tmp_path, service.backend.card.targets, print),
    )
    try:
        answer = real.post("/v1/images/generations", json=ask(loras=[{"name": "broken"}]))
    finally:
        service.adapter_registry = usual

    assert answer.status_code == 400
    assert str(tmp_path) not in answer.text
    assert "broken is damaged" in answer.json()["error"]["message"]


def test_an_upload_above_the_limit_is_refused_with_and_without_a_length() -> None:
    with house(Painter(), max_adapter_bytes=100_000) as client:
        long = {"name": "a"}, {"file": bytes(200_000)}
        told = client.post("/v1/adapters", data=long[0], files=long[1])
        form = (
            b'--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
            + bytes(200_000)
            + b"\r\n--x--\r\n"
        )
        pieces = (form[start : start + 10_000] for start in range(0, len(form), 10_000))
        untold = client.post(
            "/v1/adapters", content=pieces, headers={"Content-Type": "multipart/form-data; boundary=x"}
        )

    assert [answer.status_code for answer in (told, untold)] == [413, 413]
    assert told.json()["error"]["code"] == "body_too_large"
    assert "100000" in told.text or "165536" in told.text
