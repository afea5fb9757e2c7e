"""Models that are served through their pipeline's own call, from a folder and over HTTP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")
pytest.importorskip("diffusers", reason="needs the package 'diffusers': pip install 'takeup[diffusion]'")

import numpy as np
import torch
from PIL import Image

from serving.diffusion.tiny_pipelines import build
from serving.server.clients import ask, house, metric
from serving.server.test_server_edits import edit, made, picture, pixels, square
from serving.stock import ENGINE_MARKS
from takeup.serving.server.backends.local import ServingPlan, open_model

pytestmark = ENGINE_MARKS


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pipelines as diffusers saves them."""
    top = tmp_path_factory.mktemp("models")
    for name in ("SDXL inpaint", "Flux schnell", "SD 3 img2img"):
        build(name).save_pretrained(top / name)
    return {folder.name: folder for folder in top.iterdir()}


def test_an_inpainting_model_changes_what_is_masked_and_nothing_else(folders: dict[str, Path]) -> None:
    model = str(folders["SDXL inpaint"])
    original, mask = picture(size=(64, 64)), square(16, 24, (64, 64))
    with house(ServingPlan(model).build(), model=model) as client, ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda seed: edit(client, original, mask, seed=seed), range(3)))
        num_calls = metric(client, "network_calls_total")
        text = client.post("/v1/images/generations", json=ask())

    images = [made(answer)[0] for answer in answers]
    for image in images:
        changed = (image != original).any(axis=2)
        assert not changed[mask == 0].any()
        assert changed[mask > 0].mean() > 0.9
    assert len({image.tobytes() for image in images}) == 3
    assert num_calls <= 3 * 3
    assert text.status_code == 400  # this pipeline needs an image, and says so
    assert "image" in text.json()["error"]["message"]


def test_an_edit_of_a_whole_image_is_that_of_stock(folders: dict[str, Path]) -> None:
    model = str(folders["SD 3 img2img"])
    original = picture(size=(64, 64))
    with house(ServingPlan(model).build(), model=model) as client:
        image, facts = made(edit(client, original, None, strength=0.7, guidance=4.0))
        refused = edit(client, original, square(16, 24, (64, 64)))
    theirs = open_model(model, "cpu")(
        prompt="a dog",
        image=Image.fromarray(original),
        num_inference_steps=3,
        strength=0.7,
        guidance_scale=4.0,
        generator=torch.Generator("cpu").manual_seed(1),
        output_type="np",
    ).images[0]

    assert np.abs(image.astype(float) - 255 * theirs).max() <= 1
    assert facts["computed_share"] == 1.0
    assert refused.status_code == 400
    assert "takes no mask" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "word"),
    [({"controls": [{"name": "x", "image": "aaaa"}]}, "ControlNet"), ({"clip_skip": 2}, "clip_skip")],
)
def test_what_a_model_does_not_take_is_refused(folders: dict[str, Path], fields: dict[str, Any], word: str) -> None:
    model = str(folders["Flux schnell"])
    with house(ServingPlan(model).build(), model=model) as client:
        answer = client.post("/v1/images/generations", json=ask(**fields))

    assert answer.status_code in (400, 404)
    assert word in answer.json()["error"]["message"]


def test_a_second_prompt_is_felt(folders: dict[str, Path]) -> None:
    model = str(folders["Flux schnell"])
    with house(ServingPlan(model).build(), model=model) as client:
        answers = [client.post("/v1/images/generations", json=ask(**more)) for more in ({}, {"prompt_2": "a dog"})]
    plain, second = (pixels(answer.json()["data"][0]["b64_json"]) for answer in answers)

    assert plain.tobytes() != second.tobytes()
