"""Edits with masks over HTTP: only what is masked changes, little is computed, and nobody sees what is another's."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")
pytest.importorskip("diffusers", reason="needs the package 'diffusers': pip install 'takeup[diffusion]'")
pytest.importorskip("openai", reason="needs the package 'openai'")

from openai import OpenAI
from PIL import Image

from serving.server.clients import ALICE, BOB, app_of, bearer, house
from serving.server.conftest import REAL
from serving.stock import ENGINE_MARKS
from takeup.errors import OutputFailed
from takeup.serving.editing.templates import disk
from takeup.serving.editing.templates import store as originals
from takeup.serving.model import Candidate
from takeup.serving.server.backends.local import LocalBackend, ServingPlan, TemplateStorage

pytestmark = ENGINE_MARKS
Pixels = npt.NDArray[np.uint8]
URL = "/v1/images/edits"
SIDE, NUM_STEPS = 32, 3
OTHER_FAMILIES = ("takeup/tiny-sd15", "takeup/tiny-sd3", "takeup/tiny-flux")


def picture(seed: int = 0, size: tuple[int, int] = (SIDE, SIDE)) -> Pixels:
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


def square(first: int = 8, side: int = 8, size: tuple[int, int] = (SIDE, SIDE)) -> Pixels:
    mask = np.zeros(size, np.uint8)
    mask[first : first + side, first : first + side] = 255
    return mask


def png(array: Pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, "png")
    return file.getvalue()


def pixels(text: str) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))


def edit(
    client: httpx.Client, image: Pixels | None, mask: Pixels | None, key: str = ALICE, **fields: Any
) -> httpx.Response:
    files = {name: png(one) for name, one in (("image", image), ("mask", mask)) if one is not None}
    data = {"prompt": "a dog", "steps": NUM_STEPS, "seed": 1, **fields}
    return client.post(URL, data=data, files=files, headers=bearer(key))


def made(answer: httpx.Response) -> tuple[Pixels, dict[str, Any]]:
    """The image, and what the edit did."""
    assert answer.status_code == 200, answer.text
    one = answer.json()["data"][0]
    return pixels(one["b64_json"]), one["edit"]


def assert_only_masked(edited: Pixels, original: Pixels, mask: Pixels) -> None:
    changed = (edited != original).any(axis=2)
    assert not changed[mask == 0].any()
    assert changed[mask > 0].mean() > 0.9


def assert_refused(answer: httpx.Response, status: int, code: str, param: str | None) -> None:
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param), answer.text
    assert "/tmp" not in answer.text


@contextmanager
def server_of(model: str, **room: Any) -> Iterator[tuple[httpx.Client, LocalBackend]]:
    backend = ServingPlan(model, templates=TemplateStorage(**room)).build()
    with house(backend, model=model) as client:
        yield client, backend


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[httpx.Client, LocalBackend]]:
    """SDXL with two ControlNets, tiny; templates in memory."""
    with server_of(REAL) as both:
        yield both


@pytest.fixture
def client(served: tuple[httpx.Client, LocalBackend]) -> httpx.Client:
    """Without what others have left."""
    for kept in served[0].get("/v1/templates").json()["data"]:
        served[0].delete(f"/v1/templates/{kept['id']}")
    return served[0]


# What an edit does ----------------------------------------------------------------------------------------------------


def test_the_openai_client_edits_what_is_transparent_in_the_mask(client: httpx.Client) -> None:
    original, mask = picture(), square()
    transparent = np.dstack([picture(1), 255 - mask])
    with OpenAI(base_url=f"{client.base_url}/v1", api_key=ALICE, max_retries=0) as official:
        images: Any = official.images  # its types know nothing of our own fields
        answer = images.edit(
            image=("a.png", png(original)),
            mask=("m.png", png(transparent)),
            prompt="a dog",
            extra_body={"steps": NUM_STEPS, "seed": 1},
        )
    plain, facts = made(edit(client, original, mask))

    assert_only_masked(pixels(answer.data[0].b64_json), original, mask)
    assert answer.data[0].edit["template"] == facts["template"]
    assert np.abs(plain.astype(int) - pixels(answer.data[0].b64_json)).max() <= 1  # a grey mask says the same


@pytest.mark.parametrize("model", OTHER_FAMILIES)
def test_every_family_computes_less_the_second_time_and_keeps_the_rest(model: str) -> None:
    original, mask = picture(), square()
    with server_of(model) as (client, _):
        first, before = made(edit(client, original, mask))
        again, after = made(edit(client, None, mask, template=before["template"]))
        other, _ = made(edit(client, original, mask, prompt="a blue bus", seed=9))
        whole, everything = made(edit(client, original, None))

    for edited in (first, again, other):
        assert_only_masked(edited, original, mask)
    assert np.abs(first.astype(int) - again).max() <= 1
    assert (other != first).any()
    assert (before["from_template"], after["from_template"]) == (False, True)
    assert before["computed_share"] == 1.0
    assert after["mask_share"] <= after["computed_share"] < 0.8  # a step is checked
    assert after["error"] < 1e-3  # the same edit again: rounding
    assert (everything["computed_share"], everything["from_template"]) == (1.0, False)
    assert (whole != original).any(axis=2).mean() > 0.9


def test_another_prompt_has_an_error_and_a_bound_makes_steps_whole(client: httpx.Client) -> None:
    original, mask = picture(), square(side=14)
    edit(client, original, mask)
    _, stale = made(edit(client, original, mask, prompt="zzz", seed=77))
    _, bounded = made(edit(client, original, mask, prompt="zzz", seed=77, max_error=stale["error"] / 2))

    assert stale["error"] > 1e-5
    assert stale["whole_steps"] == 1  # the one that is checked
    assert bounded["whole_steps"] > 1


def test_an_exact_edit_neither_uses_nor_fills_a_template(client: httpx.Client) -> None:
    original, mask = picture(), square()
    _, first = made(edit(client, original, mask, exact="true"))
    _, second = made(edit(client, original, mask))
    _, third = made(edit(client, original, mask, exact="true"))

    assert [one["from_template"] for one in (first, second, third)] == [False] * 3
    assert third["computed_share"] == 1.0


def test_a_soft_mask_mixes_and_what_is_black_stays(client: httpx.Client) -> None:
    original, soft = picture(), square(side=12)
    hard = soft.copy()
    soft[8:12, 8:20] = 128
    mixed, _ = made(edit(client, original, soft, exact="true"))
    full, _ = made(edit(client, original, hard, exact="true"))
    half = (128 * full.astype(float) + 127.0 * original) / 255

    assert np.array_equal(mixed[soft == 0], original[soft == 0])
    assert np.abs(mixed - half)[soft == 128].max() <= 0.51
    assert np.abs(mixed.astype(int) - full)[soft == 255].max() <= 1


def test_an_opaque_mask_is_read_by_its_brightness_and_an_image_may_bring_its_own(client: httpx.Client) -> None:
    original, mask = picture(), square()
    opaque = np.dstack([mask, mask, mask, np.full_like(mask, 255)])
    by_brightness, _ = made(edit(client, original, opaque, exact="true"))
    by_itself, _ = made(edit(client, np.dstack([original, 255 - mask]), None, exact="true", strength=1.0))

    assert_only_masked(by_brightness, original, mask)
    np.testing.assert_array_equal(by_itself, by_brightness)


@pytest.mark.parametrize("size", [(33, 47), (40, 30)])
def test_images_of_any_size_are_edited_and_keep_it(client: httpx.Client, size: tuple[int, int]) -> None:
    original, mask = picture(size=size), square(first=size[0] - 12, side=12, size=size)
    edited, facts = made(edit(client, original, mask))

    assert edited.shape == original.shape
    assert_only_masked(edited, original, mask)
    assert facts["mask_share"] < 0.6


def test_a_full_mask_takes_the_plain_path(client: httpx.Client) -> None:
    original = picture()
    edited, facts = made(edit(client, original, np.full((SIDE, SIDE), 255, np.uint8)))
    _, again = made(edit(client, original, square()))

    assert (facts["computed_share"], facts["from_template"], again["from_template"]) == (1.0, False, False)
    assert (edited != original).any(axis=2).mean() > 0.9


def test_progress_is_streamed_and_the_last_event_says_what_was_done(client: httpx.Client) -> None:
    answer = edit(client, picture(), square(), stream="true")
    events = [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line.startswith("data: ")]

    assert [event["step"] for event in events if event["type"] == "image_generation.progress"] == [1, 2, 3]
    assert events[-1]["type"] == "image_edit.completed"
    assert events[-1]["edit"]["computed_share"] == 1.0
    assert events[-1]["timing"]["total_s"] >= events[-1]["timing"]["queued_s"]
    assert_only_masked(pixels(events[-1]["b64_json"]), picture(), square())


# With LoRAs and ControlNets -------------------------------------------------------------------------------------------


def test_loras_and_masks_go_together_and_have_templates_of_their_own(lora_files: dict[str, Path]) -> None:
    backend = ServingPlan("takeup/tiny-sdxl").build()
    original, mask = picture(), square()
    style = json.dumps([{"name": "paper", "scale": 0.9}])
    with house(backend, model="takeup/tiny-sdxl") as client:
        client.post("/v1/adapters", data={"name": "paper"}, files={"file": lora_files["paper"].read_bytes()})
        plain, _ = made(edit(client, original, mask))
        first, before = made(edit(client, original, mask, loras=style))
        again, after = made(edit(client, original, mask, loras=style))
        weaker = made(edit(client, original, mask, loras=style.replace("0.9", "0.5")))[1]

    assert (before["from_template"], after["from_template"], weaker["from_template"]) == (False, True, False)
    assert_only_masked(first, original, mask)
    assert np.abs(first.astype(int) - again).max() <= 1
    assert np.abs(first.astype(int) - plain).max() > 1


def test_controls_and_masks_go_together_and_compute_everything(client: httpx.Client) -> None:
    original, mask = picture(), square()
    control = [{"name": "control-1", "image": base64.b64encode(png(picture(4))).decode()}]
    plain, _ = made(edit(client, original, mask))
    steered, facts = made(edit(client, original, mask, controls=json.dumps(control)))

    assert_only_masked(steered, original, mask)
    assert (steered != plain).any()
    assert (facts["from_template"], facts["computed_share"]) == (False, 1.0)


# Sharing calls --------------------------------------------------------------------------------------------------------


def test_edits_of_different_masks_share_every_network_call(served: tuple[httpx.Client, LocalBackend]) -> None:
    """Nothing runs until all of them are in the loop, so that calls can be counted."""
    client, backend = served
    asked = [(picture(20), square(side=4)), (picture(21), square(side=8)), (picture(22), square(first=4, side=10))]
    alone = [made(edit(client, *one, steps=4))[0] for one in asked]
    usual, engine = backend.engine._group, backend.engine

    def together(candidates: Sequence[Candidate]) -> list[tuple[int, ...]]:
        return usual(candidates) if engine.num_calls > before or len(candidates) == len(asked) else []

    before = engine.num_calls
    engine._group = together
    try:
        with ThreadPoolExecutor(len(asked)) as threads:
            answers = list(threads.map(lambda one: edit(client, *one, steps=4), asked))
    finally:
        engine._group = usual

    assert engine.num_calls - before == 5  # the step that is checked is made twice
    for answer, single in zip(answers, alone, strict=True):
        shared, facts = made(answer)
        assert facts["from_template"]
        assert np.abs(shared.astype(int) - single).max() <= 1


def test_edits_of_whole_images_cost_the_calls_of_a_generation(served: tuple[httpx.Client, LocalBackend]) -> None:
    client, backend = served
    before = backend.engine.num_calls
    edit(client, picture(), None, steps=5, strength=1.0)
    after_edit = backend.engine.num_calls
    client.post("/v1/images/generations", json={"prompt": "a dog", "size": "32x32", "steps": 5})

    assert after_edit - before == backend.engine.num_calls - after_edit == 5


# Templates ------------------------------------------------------------------------------------------------------------


def test_two_tenants_with_the_same_image_share_nothing(client: httpx.Client) -> None:
    original, mask = picture(), square()
    _, mine = made(edit(client, original, mask))
    _, theirs = made(edit(client, original, mask, key=BOB))
    listed = [one["id"] for one in client.get("/v1/templates", headers=bearer(BOB)).json()["data"]]

    assert theirs["template"] != mine["template"]
    assert not theirs["from_template"]
    assert listed == [theirs["template"]]
    assert_refused(edit(client, None, mask, key=BOB, template=mine["template"]), 404, "template_not_found", "template")
    assert client.delete(f"/v1/templates/{mine['template']}", headers=bearer(BOB)).status_code == 404
    assert made(edit(client, None, mask, template=mine["template"]))[1]["from_template"]


def test_a_deleted_template_is_not_found_and_nothing_is_kept_of_it(client: httpx.Client) -> None:
    original, mask = picture(), square()
    _, facts = made(edit(client, original, mask))
    deleted = client.delete(f"/v1/templates/{facts['template']}")

    assert deleted.json() == {"id": facts["template"], "object": "template", "deleted": True}
    assert client.get("/v1/templates").json()["data"] == []
    assert_refused(edit(client, None, mask, template=facts["template"]), 404, "template_not_found", "template")
    assert not made(edit(client, original, mask))[1]["from_template"]


def test_an_image_or_a_template_is_needed_and_not_both(client: httpx.Client) -> None:
    name = "tpl_" + "0" * 24

    assert_refused(edit(client, None, square()), 400, "invalid_value", None)
    assert_refused(edit(client, picture(), square(), template=name), 400, "invalid_value", None)
    assert_refused(edit(client, None, square(), template="../../etc"), 400, "invalid_value", "template")
    assert_refused(edit(client, None, square(), template=name), 404, "template_not_found", "template")
    assert client.delete("/v1/templates/..%2F..").status_code in {400, 404}


@pytest.mark.parametrize(
    ("mask", "fields", "param"),
    [
        (square(size=(SIDE, 16)), {}, "mask"),
        (np.zeros((SIDE, SIDE), np.uint8), {}, "mask"),
        (np.full((SIDE, SIDE, 4), 0, np.uint8) + np.array([0, 0, 0, 255], np.uint8), {}, "mask"),
        (square(), {"size": "64x64"}, None),
        (square(), {"strength": 0.1}, None),
        (square(), {"strength": 0}, "strength"),
        (square(), {"max_error": "nan"}, "max_error"),
        (square(), {"controls": "[1]"}, "controls.0"),
    ],
    ids=["another size", "empty", "opaque and black", "size", "no step", "strength", "error", "controls"],
)
def test_edits_that_make_no_sense_are_refused(
    client: httpx.Client, mask: Pixels, fields: dict[str, Any], param: str | None
) -> None:
    assert_refused(edit(client, picture(), mask, **fields), 400, "invalid_value", param)


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Path]]:
    """A server that keeps templates in a folder only."""
    folder = tmp_path_factory.mktemp("templates")
    with server_of("takeup/tiny-sd15", folder=folder, memory_bytes=0) as (client, _):
        yield client, folder


@pytest.mark.parametrize("damage", ["flipped", "half", "gone", "empty"])
def test_a_damaged_cache_file_is_made_again_and_the_image_is_right(
    on_disk: tuple[httpx.Client, Path], damage: str
) -> None:
    (client, folder), original = on_disk, picture(len(damage))
    right, facts = made(edit(client, original, square()))
    from_disk = made(edit(client, original, square()))[1]["from_template"]
    (path,) = folder.glob(f"*/{facts['template']}.*.template")
    data = bytearray(path.read_bytes())
    data[4096] ^= 0xFF
    path.write_bytes({"flipped": bytes(data), "half": bytes(data[: len(data) // 2]), "gone": b"", "empty": b""}[damage])
    if damage == "gone":
        path.unlink()
    again, facts = made(edit(client, original, square()))

    assert from_disk
    assert not facts["from_template"]
    np.testing.assert_array_equal(again, right)
    assert made(edit(client, original, square()))[1]["from_template"]


def test_a_full_disk_costs_the_template_only(
    on_disk: tuple[httpx.Client, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OutputFailed("No space left on device")

    client, _ = on_disk
    monkeypatch.setattr(disk, "write_template", full)
    monkeypatch.setattr(originals, "write_atomically", full)
    first, before = made(edit(client, picture(70), square()))
    again, after = made(edit(client, picture(70), square()))

    assert "template" not in before
    assert (before["from_template"], after["from_template"]) == (False, False)
    np.testing.assert_array_equal(first, again)
    assert_only_masked(first, picture(70), square())


def test_an_image_that_was_damaged_on_disk_is_not_there_any_more(client: httpx.Client) -> None:
    kept = app_of(client).state.service.settings.uploads / ".templates"
    template = made(edit(client, picture(), square()))[1]["template"]
    (path,) = kept.glob(f"*/{template}.original")
    path.write_bytes(png(picture(1)))  # an image, but another one

    assert_refused(edit(client, None, square(), template=template), 404, "template_not_found", "template")
    assert not path.exists()


def test_a_server_of_another_model_recomputes_what_a_template_cannot_tell(tmp_path: Path) -> None:
    facts = []
    for model in ("takeup/tiny-sd15", "takeup/tiny-sdxl", "takeup/tiny-sd15"):
        with server_of(model, folder=tmp_path) as (client, _):
            facts.append(made(edit(client, picture(), square()))[1])

    assert [one["from_template"] for one in facts] == [False, False, True]
    assert len({one["template"] for one in facts}) == 1


def test_a_deterministic_server_makes_edits_that_do_not_depend_on_those_before(real: httpx.Client) -> None:
    first, _ = made(edit(real, picture(), square()))
    edit(real, picture(), square(first=16), prompt="something else")
    second, facts = made(edit(real, picture(), square()))

    assert facts["computed_share"] == 1.0
    np.testing.assert_array_equal(first, second)
