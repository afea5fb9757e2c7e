"""Whatever is wrong with a request, it alone is told so: status, body, and no trace in the weights or for others."""

from __future__ import annotations

import base64
import io
import json
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")
pytest.importorskip("diffusers", reason="needs the package 'diffusers': pip install 'takeup[diffusion]'")

import torch
from PIL import Image
from safetensors.torch import save

from serving.lora_files import ATTENTION, factors, kohya, peft_style
from serving.server.clients import app_of, ask, eventually
from serving.stock import ENGINE_MARKS
from takeup.serving.diffusion.addons.lora.targets import layers_of
from takeup.serving.diffusion.engine.tiny import build, tiny
from takeup.serving.model import Candidate
from takeup.serving.server.backends.local import LocalBackend

pytestmark = ENGINE_MARKS
URL = "/v1/images/generations"
FIELDS = {"message", "type", "param", "code"}


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left_behind(real: httpx.Client, backend: LocalBackend) -> Iterator[None]:
    """After all of this, an image is what it was before, and the weights are, bit for bit, those of a fresh model."""
    before = image_of(real)
    yield
    assert image_of(real) == before
    eventually(lambda: backend.engine.num_running == 0)
    fresh = layers_of(build("takeup/tiny-sdxl-controlnet"))
    for layer, module in layers_of(backend.engine.family.pipeline).items():
        assert torch.equal(module.weight, fresh[layer].weight), layer


def image_of(client: httpx.Client) -> bytes:
    answer = client.post(URL, json=ask(seed=11))
    assert answer.status_code == 200, answer.text
    return base64.b64decode(answer.json()["data"][0]["b64_json"])


def upload(client: httpx.Client, content: bytes, name: str = "bad") -> httpx.Response:
    return client.post("/v1/adapters", data={"name": name}, files={"file": content})


def assert_refused(answer: httpx.Response, status: int, code: str, *words: str) -> None:
    body = answer.json()
    assert (answer.status_code, body["error"]["code"]) == (status, code), answer.text
    assert set(body["error"]) == FIELDS
    assert all(word in body["error"]["message"] for word in words), answer.text
    assert "/tmp" not in answer.text  # nothing of the server's folders


def lora(**changes: Any) -> dict[str, torch.Tensor]:
    tensors = peft_style(factors(tiny("takeup/tiny-sdxl"), [("unet", f"{ATTENTION}.to_q")]))
    return tensors | changes


# Adapters -------------------------------------------------------------------------------------------------------------


def test_an_adapter_nobody_has_is_named_with_those_there_are(real: httpx.Client) -> None:
    answer = real.post(URL, json=ask(loras=[{"name": "nowhere"}]))

    assert_refused(answer, 404, "adapter_not_found", "'nowhere'")
    assert answer.json()["error"]["param"] == "loras.0.name"


def mixed_keys() -> bytes:
    layer = ("unet", "mid_block.attentions.0.proj_in")
    other = kohya(factors(tiny("takeup/tiny-sdxl"), [layer]))
    return save(lora(**{key.replace("lora_unet_", "nobody_"): tensor for key, tensor in other.items()}))


def wrong_base() -> bytes:
    return save({"transformer.single_transformer_blocks.0.attn.to_q.lora_A.weight": torch.ones(4, 32)})


def not_finite() -> bytes:
    tensors = lora()
    next(iter(tensors.values()))[0, 0] = float("nan")
    return save(tensors)


def wrong_rank() -> bytes:
    tensors = lora()
    (up,) = [key for key in tensors if "lora_B" in key]
    return save(tensors | {up: torch.ones(64, 7)})


def wrong_shape() -> bytes:
    tensors = lora()
    (down,) = [key for key in tensors if "lora_A" in key]
    return save(tensors | {down: torch.ones(4, 999)})


def overlapping() -> bytes:
    content = save(lora())
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    for told in header.values():
        told["data_offsets"] = [0, told["data_offsets"][1] - told["data_offsets"][0]]
    packed = json.dumps(header).encode()
    return struct.pack("<Q", len(packed)) + packed + content[8 + size :]


CASES: dict[str, tuple[Callable[[], bytes], tuple[str, ...]]] = {
    "mixed keys": (mixed_keys, ("keys that cannot be used", "nobody_")),
    "wrong base": (wrong_base, ("another base model",)),
    "not finite": (not_finite, ("not finite",)),
    "wrong rank": (wrong_rank, ()),
    "wrong shape": (wrong_shape, ()),
    "truncated": (lambda: save(lora())[:-100], ("damaged",)),
    "half a header": (lambda: save(lora())[:20], ("damaged",)),
    "a pickle": (lambda: b"\x80\x04\x95\x00\x00\x00\x00.", ("damaged",)),
    "tensors that overlap": (overlapping, ("damaged",)),
    "a header of terabytes": (lambda: struct.pack("<Q", 2**40) + b"{}", ("damaged",)),
    "empty": (lambda: b"", ("damaged",)),
    "no tensors": (lambda: save({}), ("no tensors",)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_lora_that_cannot_be_used_is_refused_and_leaves_nothing(real: httpx.Client, case: str) -> None:
    make, words = CASES[case]
    before = real.get("/v1/adapters").json()

    assert_refused(upload(real, make()), 400, "invalid_adapter", *words)
    assert real.get("/v1/adapters").json() == before
    assert real.post(URL, json=ask(loras=[{"name": "bad"}])).status_code == 404


@pytest.mark.parametrize("name", ["../escape", "a/b", ".hidden", "", "x" * 65, "naïve", "a b", "a\x00b"])
def test_names_that_could_leave_the_folder_are_refused(real: httpx.Client, name: str) -> None:
    answer = upload(real, save(lora()), name)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "name"


def test_others_are_served_while_a_bad_lora_is_refused(real: httpx.Client) -> None:
    alone = image_of(real)
    with ThreadPoolExecutor(4) as threads:
        images = [threads.submit(image_of, real) for _ in range(3)]
        refused = threads.submit(upload, real, not_finite())

    assert refused.result().status_code == 400
    assert [image.result() == alone for image in images] == [True] * 3


# Images ---------------------------------------------------------------------------------------------------------------


def png_header(width: int, height: int, **others: bytes) -> bytes:
    """A PNG that claims a size and has no pixels: whoever decodes before checking allocates it."""
    texts = {name.encode(): data for name, data in others.items()}
    head = {b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)}
    chunks = head | texts | {b"IDAT": zlib.compress(b"")}
    packed = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks.items()
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def bomb() -> bytes:
    """A few kilobytes that would be a hundred megapixels."""
    file = io.BytesIO()
    Image.new("1", (10_000, 10_000)).save(file, "png")
    assert len(file.getvalue()) < 100_000
    return file.getvalue()


def damaged() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(file, "png")
    return file.getvalue()[:-40]


def gif() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "gif")
    return file.getvalue()


PICTURES: dict[str, tuple[Callable[[], bytes], str]] = {
    "a hundred megapixels": (lambda: png_header(10_000, 10_000), "image_too_large"),
    "far more": (lambda: png_header(2**31 - 1, 2**31 - 1), "image_too_large"),
    "a bomb": (bomb, "image_too_large"),
    "a text of gigabytes": (lambda: png_header(8, 8, zTXt=b"k\0\0" + zlib.compress(b"0" * 10**8)), "invalid_image"),
    "no image": (lambda: b"certainly no image", "invalid_image"),
    "another format": (gif, "invalid_image"),
    "damaged": (damaged, "invalid_image"),
    "nothing": (lambda: b"", "invalid_image"),
}


@pytest.mark.parametrize("case", PICTURES)
def test_an_image_that_cannot_be_used_is_refused_before_it_is_decoded(real: httpx.Client, case: str) -> None:
    make, code = PICTURES[case]
    text = base64.b64encode(make()).decode() or "===="
    control = real.post(URL, json=ask(controls=[{"name": "control-1", "image": text}]))
    edit = real.post("/v1/images/edits", data={"prompt": "a cat"}, files={"image": make()})

    assert_refused(control, 400, code if make() else "invalid_base64")
    assert control.json()["error"]["param"] == "controls.0.image"
    assert_refused(edit, 400, code)


def test_a_control_nobody_serves_and_text_that_is_no_base64_are_named(real: httpx.Client) -> None:
    unknown = real.post(URL, json=ask(controls=[{"name": "nowhere", "image": "AAAA"}]))
    no_text = real.post(URL, json=ask(controls=[{"name": "control-1", "image": "what?"}]))

    assert_refused(unknown, 404, "control_not_found", "control-1")
    assert_refused(no_text, 400, "invalid_base64")


def test_a_mask_of_another_size_is_refused(real: httpx.Client) -> None:
    small, large = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (32, 32)).save(small, "png")
    Image.new("RGB", (64, 32)).save(large, "png")
    files = {"image": small.getvalue(), "mask": large.getvalue()}

    assert_refused(real.post("/v1/images/edits", data={"prompt": "a"}, files=files), 400, "invalid_value", "mask")


# Fields ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "word " * 10_000}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"negative_prompt": "x" * 4001}, "negative_prompt"),
        ({"n": 0}, "n"),
        ({"n": 11}, "n"),
        ({"n": "2"}, "n"),
        ({"steps": 151}, "steps"),
        ({"steps": 2.5}, "steps"),
        ({"guidance": 1e400}, "guidance"),
        ({"size": "32"}, "size"),
        ({"size": "-32x32"}, "size"),
        ({"size": "4096x4096"}, "size"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**53}, "seed"),
        ({"deadline_s": 0}, "deadline_s"),
        ({"loras": [{"name": "a", "scale": 1e9}]}, "loras.0.scale"),
        ({"loras": [{"name": "a"}] * 9}, "loras"),
        ({"loras": [{"name": "a"}] * 2}, "loras"),
        ({"controls": [{"name": "control-1", "image": "AAAA", "start": 0.5, "end": 0.5}]}, "controls.0"),
        ({"colour": "red"}, "colour"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_field_out_of_its_bounds_is_named(real: httpx.Client, fields: dict[str, Any], param: str) -> None:
    body = {**ask(), **fields}
    answer = real.post(URL, content=json.dumps(body), headers={"Content-Type": "application/json"})

    assert answer.status_code == 400
    assert set(answer.json()["error"]) == FIELDS
    assert answer.json()["error"]["param"] == param
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_prompt_of_ten_thousand_tokens_is_told_the_limit(real: httpx.Client) -> None:
    assert_refused(real.post(URL, json=ask(prompt="word " * 10_000)), 400, "invalid_value", "4000 characters")


def test_sizes_the_model_cannot_do_are_told_the_grain(real: httpx.Client) -> None:
    assert_refused(real.post(URL, json=ask(size="33x32")), 400, "invalid_value", "divide by 8")


def test_exact_and_late_at_once_is_a_contradiction(real: httpx.Client) -> None:
    assert_refused(real.post(URL, json=ask(exact=True, late_steps=2)), 400, "invalid_value", "exact")


def test_another_model_is_not_found(real: httpx.Client) -> None:
    assert_refused(real.post(URL, json=ask(model="gpt-image-1")), 404, "model_not_found")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"text"', b'{"prompt": "\\ud800"}', b"\xff\xfe", b"[" * 50_000])
def test_a_body_that_is_no_request_is_refused(real: httpx.Client, body: bytes) -> None:
    answer = real.post(URL, content=body, headers={"Content-Type": "application/json"})

    assert answer.status_code == 400
    assert set(answer.json()["error"]) == FIELDS


def test_a_form_of_thousands_of_fields_is_refused(real: httpx.Client) -> None:
    fields = {f"field{number}": "x" for number in range(5_000)}

    assert real.post("/v1/images/edits", data=fields, files={"image": b"x"}).status_code == 400


@pytest.mark.parametrize("image", ["http://169.254.169.254/latest", "file:///etc/passwd", "data:text/html;base64,AAAA"])
def test_an_address_in_place_of_an_image_is_not_visited(real: httpx.Client, image: str) -> None:
    answer = real.post(URL, json=ask(controls=[{"name": "control-1", "image": image}]))

    assert_refused(answer, 400, "invalid_base64")


def test_ways_that_lead_nowhere_answer_in_the_same_form(real: httpx.Client) -> None:
    assert_refused(real.get("/v1/nothing"), 404, "not_found")
    assert_refused(real.get(URL), 405, "method_not_allowed")


# The middle of things -------------------------------------------------------------------------------------------------


def test_a_client_that_goes_away_in_the_middle_of_the_steps_frees_the_engine(
    real: httpx.Client, backend: LocalBackend
) -> None:
    steps: list[str] = []
    with real.stream("POST", URL, json=ask(steps=150, n=2, stream=True)) as stream:
        for line in stream.iter_lines():
            steps += [line] if "progress" in line else []
            if len(steps) > 3:
                break
    eventually(lambda: backend.engine.num_running == 0)

    assert len(steps) < 300
    assert image_of(real)


def test_a_deadline_in_the_middle_of_the_steps_is_a_504(real: httpx.Client) -> None:
    gate = app_of(real).state.service.admission_queue
    usual, gate._step_s = gate._step_s, 0.0  # as if no image had been made yet, so nobody knows that it will be late
    answer = real.post(URL, json=ask(steps=150, size="64x64", deadline_s=0.2))
    gate._step_s = usual

    assert_refused(answer, 504, "deadline_exceeded")


def test_a_deadline_that_cannot_be_kept_is_refused_at_the_door(real: httpx.Client, backend: LocalBackend) -> None:
    image_of(real)
    before = backend.numbers()["steps"]
    answer = real.post(URL, json=ask(steps=150, size="64x64", deadline_s=0.001))

    assert_refused(answer, 429, "deadline_too_near", "allow more time")
    assert answer.json()["error"]["param"] == "deadline_s"
    assert answer.headers["x-should-retry"] == "false"
    assert backend.numbers()["steps"] == before


@contextmanager
def held_after_a_step(backend: LocalBackend) -> Iterator[Callable[[], None]]:
    """The next request makes one step, and no other until it is let go."""
    engine, usual, may_go = backend.engine, backend.engine._group, threading.Event()
    before = engine.num_calls

    def held(candidates: Sequence[Candidate]) -> list[tuple[int, ...]]:
        return usual(candidates) if may_go.is_set() or engine.num_calls == before else []

    engine._group = held
    try:
        yield may_go.set
    finally:
        engine._group = usual


def test_an_adapter_deleted_while_in_use_is_felt_to_the_end_and_then_gone(
    real: httpx.Client, backend: LocalBackend, lora_files: dict[str, Path]
) -> None:
    wanted = ask(steps=10, loras=[{"name": "going"}], seed=3)
    uploads = app_of(real).state.service.settings.uploads
    assert upload(real, lora_files["paper"].read_bytes(), "going").status_code == 201
    undisturbed = real.post(URL, json=wanted).json()["data"][0]["b64_json"]
    with held_after_a_step(backend) as let_go, real.stream("POST", URL, json=wanted | {"stream": True}) as stream:
        lines = stream.iter_lines()
        while "progress" not in next(lines):
            pass
        deleted = real.delete("/v1/adapters/going")
        refused = real.post(URL, json=wanted)
        num_files = len(list(uploads.glob("alice/going.*")))
        let_go()
        last = json.loads([line for line in lines if line.startswith("data: ")][-1].removeprefix("data: "))

    assert deleted.json() == {"id": "going", "object": "adapter", "deleted": True}
    assert_refused(refused, 404, "adapter_not_found")
    assert last["b64_json"] == undisturbed
    assert num_files == 1
    eventually(lambda: not list(uploads.glob("alice/going.*")))
    assert real.delete("/v1/adapters/going").status_code == 404
