"""Every parameter of the image methods of the `openai` package is accepted; what has no effect is listed."""

from __future__ import annotations

import inspect
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")
pytest.importorskip("diffusers", reason="needs the package 'diffusers': pip install 'takeup[diffusion]'")
pytest.importorskip("openai", reason="needs the package 'openai'")

from openai import BadRequestError, OpenAI
from openai.resources.images import Images
from PIL import Image

from serving.server.clients import ALICE, ask, house
from serving.server.painting import Painter
from serving.stock import ENGINE_MARKS
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.tiny import tiny
from takeup.serving.server.backends.local import effects_of
from takeup.serving.server.schemas import DECLARED_WITHOUT_EFFECT, UNDECLARED_WITHOUT_EFFECT

pytestmark = ENGINE_MARKS
URL = "/v1/images/generations"
OF_EVERY_CALL = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
VALUES: dict[str, Any] = {
    "prompt": "a cat",
    "background": "transparent",
    "complexity": "low",
    "frame_count": 1,
    "frame_duration_ms": 40,
    "input_fidelity": "high",
    "moderation": "low",
    "n": 1,
    "output_compression": 80,
    "output_format": "webp",
    "partial_images": 2,
    "quality": "high",
    "response_format": "b64_json",
    "safety_identifier": "a user",
    "size": "32x32",
    "stream": False,
    "style": "vivid",
    "svg": {"simplify": True},
    "user": "a user",
}


def png(side: int = 32) -> tuple[str, bytes]:
    file = io.BytesIO()
    Image.effect_noise((side, side), 90).convert("RGB").save(file, "png")
    return "picture.png", file.getvalue()


@pytest.fixture(scope="module")
def server() -> Iterator[httpx.Client]:
    with house(Painter()) as client:
        yield client


@pytest.fixture(scope="module")
def client(server: httpx.Client) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.base_url}/v1", api_key=ALICE, max_retries=0) as made:
        yield made


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
@pytest.mark.parametrize("method", ["generate", "edit", "create_variation"])
def test_every_documented_parameter_is_accepted(method: str, client: OpenAI) -> None:
    names = set(inspect.signature(getattr(Images, method)).parameters) - OF_EVERY_CALL
    files = {"image": png(), "mask": png(), "markup": png()}
    values = {name: {**VALUES, **files, "model": None}.get(name, "any") for name in names}
    answer = getattr(client.images, method)(**{name: value for name, value in values.items() if value is not None})
    without = names & (DECLARED_WITHOUT_EFFECT | UNDECLARED_WITHOUT_EFFECT)

    assert answer.data[0].b64_json
    assert set(answer.ignored) == without
    assert answer._request_id


def test_several_images_and_a_list_with_one() -> None:
    with house(Painter()) as server, OpenAI(base_url=f"{server.base_url}/v1", api_key=ALICE, max_retries=0) as client:
        one = client.images.edit(image=[png()], prompt="a dog")
        with pytest.raises(BadRequestError, match="2 images"):
            client.images.edit(image=[png(), png()], prompt="a dog")

    assert one.data


def test_names_of_diffusers_are_aliases_and_both_at_once_are_refused() -> None:
    painter = Painter()
    named = {"num_inference_steps": 7, "guidance_scale": 2.5, "true_cfg_scale": 3.0, "scheduler": "ddim"}
    with house(painter) as server:
        taken = server.post(URL, json={"prompt": "a cat", **named})
        refused = server.post(URL, json={"prompt": "a cat", "steps": 7, "num_inference_steps": 7})
        unknown = server.post(URL, json=ask(sede=3))
    request = painter.orders[0].job.request

    assert taken.status_code == 200
    assert (request.num_steps, request.guidance, request.true_guidance, request.scheduler) == (7, 2.5, 3.0, "ddim")
    assert (refused.status_code, unknown.status_code) == (400, 400)
    assert unknown.json()["error"]["param"] == "sede"


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        (
            {"guidance_rescale": 0.5, "true_guidance": 1.0, "negative_prompt": "fog"},
            ["guidance_rescale", "negative_prompt"],
        ),
        ({"true_guidance": 2.0, "negative_prompt": "fog", "quality": "high"}, ["quality"]),
        ({}, None),
    ],
)
def test_what_this_model_does_not_use_is_noted(fields: dict[str, Any], ignored: list[str] | None) -> None:
    painter = Painter()
    effects: dict[str, Any] = {"unused": ("guidance_rescale",), "negative_needs": "true_guidance"}
    painter._card = replace(painter.card, **effects)
    with house(painter) as server:
        answer = server.post(URL, json={"prompt": "a cat", **fields})
        events = server.post(URL, json={"prompt": "a cat", "stream": True, **fields}).text
    last = json.loads(events.strip().rpartition("data: ")[2])

    assert answer.json().get("ignored") == last.get("ignored") == ignored


@pytest.mark.parametrize(
    ("model", "unused", "needs"),
    [
        ("takeup/tiny-sdxl", ("true_guidance",), "guidance"),
        ("takeup/tiny-sd3", ("true_guidance", "guidance_rescale"), "guidance"),
        ("takeup/tiny-flux", ("guidance_rescale",), "true_guidance"),
    ],
)
def test_models_say_which_fields_they_do_not_use(model: str, unused: tuple[str, ...], needs: str) -> None:
    effects = effects_of(family_of(tiny(model)))

    assert (effects["unused"], effects.get("negative_needs", "guidance")) == (unused, needs)


def test_what_is_left_out_is_the_default_of_the_model() -> None:
    painter = Painter()
    with house(painter) as server:
        server.post(URL, json={"prompt": "a cat"})
    request = painter.orders[0].job.request

    assert (request.num_steps, request.guidance) == (painter.card.num_steps, painter.card.guidance)


def test_the_front_page_and_the_documentation_are_pages_without_scripts(server: httpx.Client) -> None:
    pages = [httpx.get(f"{server.base_url}{path}") for path in ("/", "/docs")]

    assert [page.status_code for page in pages] == [200, 200]
    assert "takeup/painter" in pages[0].text
    assert all(name in pages[1].text for name in ("POST /v1/images/generations", "num_steps" and "negative_prompt"))
    assert not any("<script" in page.text or "http://cdn" in page.text for page in pages)


def test_every_answer_of_images_has_its_identity(server: httpx.Client) -> None:
    chosen = server.post(URL, json=ask(), headers={"X-Request-Id": "mine"})
    drawn = server.post(URL, json=ask())

    assert chosen.headers["X-Request-Id"] == "mine"
    assert drawn.headers["X-Request-Id"] == drawn.json()["id"]
