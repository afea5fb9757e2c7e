"""The official OpenAI client against a real server: every image is what the engine makes when it is called directly."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")
pytest.importorskip("diffusers", reason="needs the package 'diffusers': pip install 'takeup[diffusion]'")
pytest.importorskip("openai", reason="needs the package 'openai'")

import torch
from openai import AsyncOpenAI, NotFoundError, OpenAI
from PIL import Image

from serving.server.clients import ALICE, ask, eventually, house, metric
from serving.server.conftest import REAL
from serving.server.painting import Painter
from serving.stock import ENGINE_MARKS
from takeup.serving.diffusion.addons.controlnet.addon import Controls
from takeup.serving.diffusion.addons.lora.addon import Loras
from takeup.serving.diffusion.addons.lora.loading import ThreadLoader
from takeup.serving.diffusion.addons.lora.targets import LoraTargets
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import OnStep, StepEngine
from takeup.serving.diffusion.engine.tiny import build
from takeup.serving.model import ControlUse, LoraUse, Request
from takeup.serving.server.backends import ImageJob, JobHandle
from takeup.serving.server.backends.local import ServingPlan

pytestmark = ENGINE_MARKS
Pixels = npt.NDArray[np.uint8]
NUM_CLIENTS = 200


@pytest.fixture(scope="module")
def client(real: httpx.Client) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{real.base_url}/v1", api_key=ALICE, max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def direct(lora_files: dict[str, Path]) -> Iterator[StepEngine]:
    """An engine over a pipeline of its own, with the same weights."""
    pipeline = build(REAL)
    family = family_of(pipeline)
    nets = {f"control-{number}": net for number, net in enumerate(pipeline.controlnet.nets, start=1)}
    loras = Loras(family, ThreadLoader(lora_files, LoraTargets.of(pipeline)))
    yield StepEngine(pipeline, deterministic=True, add_ons=[loras, Controls(family, nets)])
    loras.close()


@pytest.fixture(scope="module", autouse=True)
def uploaded(real: httpx.Client, lora_files: dict[str, Path]) -> None:
    for name in ("paper", "words"):
        answer = real.post("/v1/adapters", data={"name": name}, files={"file": lora_files[name].read_bytes()})
        assert answer.status_code == 201, answer.text


def images_of(client: OpenAI | AsyncOpenAI) -> Any:
    """That part of the client; its types know nothing of our own fields."""
    return client.images


def request(seed: int, **others: Any) -> Request:
    return Request("a cat", num_steps=3, seed=seed, width_px=32, height_px=32, **others)


def expected(engine: StepEngine, one: Request) -> Pixels:
    ticket = engine.submit(one)
    engine.run()
    values = engine.image(ticket)[0].permute(1, 2, 0).numpy()
    return (values * 255).round().astype(np.uint8)


def pixels(text: str | None) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text or ""))))


def picture(size: tuple[int, int] = (32, 32), seed: int = 0) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "png")
    return file.getvalue()


def generate(client: OpenAI, seed: int, n: int = 1, **extra: Any) -> list[Pixels]:
    body = {"seed": seed, "steps": 3, **extra}
    answer = images_of(client).generate(model=REAL, prompt="a cat", n=n, size="32x32", extra_body=body)
    return [pixels(one.b64_json) for one in answer.data]


def test_every_image_of_a_request_is_the_one_of_its_seed(client: OpenAI, direct: StepEngine) -> None:
    made = generate(client, 5, n=3)

    for number, image in enumerate(made):
        np.testing.assert_array_equal(image, expected(direct, request(5 + number)))


def test_loras_of_the_request_are_felt_as_in_the_engine(client: OpenAI, direct: StepEngine) -> None:
    (made,) = generate(client, 1, loras=[{"name": "paper", "scale": 0.7}, {"name": "words"}])
    same = expected(direct, request(1, loras=(LoraUse("paper", 0.7), LoraUse("words"))))

    np.testing.assert_array_equal(made, same)
    assert (made != expected(direct, request(1))).any()


def test_control_images_steer_as_in_the_engine(client: OpenAI, direct: StepEngine) -> None:
    image = picture(seed=3)
    control = {"name": "control-1", "image": base64.b64encode(image).decode(), "scale": 0.8, "end": 0.7}
    (made,) = generate(client, 2, controls=[control])
    use = ControlUse("control-1", Image.open(io.BytesIO(image)), 0.8, 0.0, 0.7)

    np.testing.assert_array_equal(made, expected(direct, request(2, controls=(use,))))
    assert (made != expected(direct, request(2))).any()


def test_a_stream_tells_every_step_and_ends_with_the_same_image(client: OpenAI) -> None:
    body = {"seed": 7, "steps": 3}
    stream = images_of(client).generate(prompt="a cat", size="32x32", stream=True, extra_body=body)
    events: list[dict[str, Any]] = [event.to_dict() for event in stream]

    assert [event["step"] for event in events if event["type"] == "image_generation.progress"] == [1, 2, 3]
    assert events[-1]["type"] == "image_generation.completed"
    np.testing.assert_array_equal(pixels(events[-1]["b64_json"]), generate(client, 7)[0])


@pytest.mark.parametrize("kind", ["jpeg", "webp"])
def test_other_formats_can_be_read_from_their_urls(client: OpenAI, kind: str) -> None:
    body = {"seed": 7, "steps": 1, "output_format": kind, "output_compression": 80}
    answer = images_of(client).generate(prompt="a cat", size="32x48", response_format="url", extra_body=body)
    fetched = httpx.get(answer.data[0].url)

    assert fetched.headers["content-type"] == f"image/{kind}"
    assert Image.open(io.BytesIO(fetched.content)).size == (32, 48)


def test_without_a_seed_one_is_drawn_that_gives_the_image_again(client: OpenAI) -> None:
    answer = images_of(client).generate(prompt="a cat", size="32x32", extra_body={"steps": 3})
    drawn = answer.data[0]

    np.testing.assert_array_equal(pixels(drawn.b64_json), generate(client, drawn.seed)[0])


def test_an_edit_is_what_image_to_image_of_diffusers_makes(client: OpenAI) -> None:
    parts = {name: part for name, part in build(REAL).components.items() if name != "controlnet"}
    stock = import_module("diffusers").StableDiffusionXLImg2ImgPipeline(**parts, add_watermarker=False)
    stock.set_progress_bar_config(disable=True)
    image = picture(seed=4)
    theirs = stock(
        "a dog",
        image=Image.open(io.BytesIO(image)),
        strength=0.6,
        num_inference_steps=5,
        guidance_scale=5.0,
        generator=torch.Generator("cpu").manual_seed(3),
        output_type="np",
    ).images[0]
    body = {"steps": 5, "seed": 3, "strength": 0.6}
    answer = images_of(client).edit(image=("a.png", image), prompt="a dog", extra_body=body)

    assert answer.data
    difference = np.abs(pixels(answer.data[0].b64_json) / 255 - theirs)
    assert difference.max() <= 0.5 / 255 + 1e-5  # a step of the eight bits that an image has


def test_the_model_is_listed_and_found_by_its_name(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [REAL]
    assert client.models.retrieve(REAL).id == REAL
    with pytest.raises(NotFoundError):
        client.models.retrieve("gpt-image-1")


def test_the_client_waits_and_comes_back_when_the_house_is_full() -> None:
    """The client hides a 429, for it honours Retry-After; with more retries than usual, as the machine may be busy."""
    painter = Painter(holds=True)
    with house(painter, max_running=1, max_waiting=0) as http, ThreadPoolExecutor(2) as threads:
        first = threads.submit(http.post, "/v1/images/generations", json=ask())
        eventually(lambda: len(painter.orders) == 1)
        client = OpenAI(base_url=f"{http.base_url}/v1", api_key=ALICE, max_retries=20)
        second = threads.submit(images_of(client).generate, prompt="a cat")
        eventually(lambda: metric(http, "refused_total") >= 1)
        painter.let_go()

        assert first.result().status_code == 200
        assert second.result().data
    client.close()


def test_two_hundred_clients_at_once_get_their_own_image(direct: StepEngine) -> None:
    """Nobody is sent away, for the queue holds them all; they share network calls, so images may differ by rounding."""
    backend = ServingPlan(REAL, max_rows=32).build()
    usual, num_running = backend.start, list[float]()

    def counted(job: ImageJob, on_step: OnStep) -> JobHandle:
        order = usual(job, on_step)
        num_running.append(backend.numbers()["running"])
        return order

    backend.start = counted  # type: ignore[method-assign]

    async def one(client: AsyncOpenAI, seed: int) -> Pixels:
        body = {"seed": seed, "steps": 1, "guidance": 1.0}
        answer = await images_of(client).generate(prompt="a cat", size="16x16", extra_body=body)
        assert answer.data[0].seed == seed
        return pixels(answer.data[0].b64_json)

    async def all_of_them(url: str) -> list[Pixels]:
        async with AsyncOpenAI(base_url=url, api_key=ALICE, timeout=300, max_retries=0) as client:
            return await asyncio.gather(*(one(client, seed) for seed in range(NUM_CLIENTS)))

    with house(backend, model=REAL, max_running=32, max_waiting=2 * NUM_CLIENTS) as http:
        made = asyncio.run(all_of_them(f"{http.base_url}/v1"))
        eventually(lambda: backend.engine.num_running == 0)
        numbers = {name: metric(http, name) for name in ("images_total", "network_calls_total")}
        left = metric(http, "num_requests_waiting"), metric(http, "num_requests_running"), backend.engine.num_running

    assert numbers["images_total"] == NUM_CLIENTS
    assert numbers["network_calls_total"] < NUM_CLIENTS / 2
    assert left == (0, 0, 0)
    assert len(num_running) == NUM_CLIENTS
    assert max(num_running) <= 32  # so memory is that of 32 runs, however many wait
    for seed in (0, 57, 123, NUM_CLIENTS - 1):
        one_alone = Request("a cat", num_steps=1, guidance=1.0, seed=seed, width_px=16, height_px=16)
        gap = np.abs(made[seed].astype(int) - expected(direct, one_alone).astype(int))
        assert gap.max() <= 1
    assert len({image.tobytes() for image in made}) == NUM_CLIENTS
