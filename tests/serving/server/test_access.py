"""The doors: keys and tenants, who may come without one, pictures in and out, and what the log says."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")
pytest.importorskip("diffusers", reason="needs the package 'diffusers': pip install 'takeup[diffusion]'")

import torch
from PIL import Image

from benchmarks.support.background_server import background_server
from serving.server.clients import ALICE, BOB, KEYS, ask, bearer, house
from serving.server.painting import Painter
from serving.stock import SERVER_MARKS
from takeup.core.pages import is_loopback
from takeup.errors import BadInput
from takeup.serving.server.access import DEFAULT_TENANT, ApiKeys, load_keys
from takeup.serving.server.app import JsonLines, listen_on, log_config, make_app
from takeup.serving.server.backends import ImageFormat
from takeup.serving.server.backends.local import encode_image
from takeup.serving.server.errors import ApiError
from takeup.serving.server.image_codec import base64_text, image_from_base64, image_from_bytes
from takeup.serving.server.settings import ServerLimits, ServerSettings

pytestmark = SERVER_MARKS
URL = "/v1/images/generations"


# Keys -----------------------------------------------------------------------------------------------------------------


def test_a_key_opens_for_its_tenant_only() -> None:
    assert KEYS.tenant_of(f"Bearer {ALICE}") == "alice"
    assert KEYS.tenant_of(f"bearer {BOB}") == "bob"


@pytest.mark.parametrize("header", [None, "", ALICE, f"Basic {ALICE}", f"Bearer {ALICE}x", "Bearer", "Bearer \udcff"])
def test_anything_else_opens_nothing(header: str | None) -> None:
    assert KEYS.tenant_of(header) is None


def test_without_keys_everybody_is_one_tenant() -> None:
    assert ApiKeys().tenant_of(None) == DEFAULT_TENANT
    assert not ApiKeys()


def test_keys_are_not_in_what_is_printed() -> None:
    assert ALICE not in repr(KEYS) + str(KEYS) + repr(vars(KEYS))


def test_keys_come_from_a_file_and_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# who\n\nalice: {ALICE}\nalice:{ALICE}-new\n")
    keys = load_keys(file, {"TAKEUP_API_KEYS": f"bob:{BOB}", "TAKEUP_API_KEY": "one-key-for-anyone"})

    headers = [f"Bearer {key}" for key in (ALICE, f"{ALICE}-new", BOB, "one-key-for-anyone")]
    assert [keys.tenant_of(header) for header in headers] == ["alice", "alice", "bob", DEFAULT_TENANT]
    assert not load_keys(None, {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("alice", "line 1: no colon"),
        ("alice:short", "too weak"),
        ("../up:" + ALICE, "called"),
        ("# none\n", "no keys"),
        ("alice:has spaces in it, many", "too weak"),
    ],
)
def test_a_file_of_keys_that_cannot_be_used_is_refused_without_repeating_it(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(BadInput, match=said) as refused:
        load_keys(file, {})

    assert "short" not in str(refused.value)
    assert ALICE not in str(refused.value)


def test_a_file_of_keys_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("nowhere", "binary"):
        with pytest.raises(BadInput, match=name):
            load_keys(tmp_path / name, {})


def test_without_a_key_only_health_and_the_document_answer(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), house(Painter()) as client, httpx.Client(base_url=client.base_url) as stranger:
        open_ones = [stranger.get(path).status_code for path in ("/health", "/ready", "/openapi.json")]
        paths = ("/v1/models", "/v1/adapters", "/metrics", "/v1/requests/x/events")
        closed = [stranger.get(path) for path in paths] + [stranger.post(URL, json=ask())]
        wrong = stranger.get("/v1/models", headers=bearer("not-a-key-of-anyone"))

    assert open_ones == [200] * 3
    assert [answer.status_code for answer in [*closed, wrong]] == [401] * 6
    assert wrong.json()["error"] == {
        "message": "no valid key was sent; send one as `Authorization: Bearer KEY`",
        "type": "authentication_error",
        "param": None,
        "code": "invalid_api_key",
    }
    assert wrong.headers["WWW-Authenticate"] == "Bearer"
    assert ALICE not in caplog.text
    assert "not-a-key-of-anyone" not in caplog.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:8000"}, 403),
    ],
)
def test_without_keys_pages_of_other_sites_do_not_come_through(headers: dict[str, str], status: int) -> None:
    with house(Painter(), keys=ApiKeys()) as client:
        answer = client.post(URL, json=ask(), headers=headers)

    assert answer.status_code == status


def test_with_keys_a_server_may_have_any_name() -> None:
    with house(Painter()) as client:
        assert client.post(URL, json=ask(), headers={"Host": "images.example"}).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "127.8.8.8", "localhost"])
def test_loopback_is_what_no_other_machine_can_reach(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", None, "", "127.evil.example", "127.0.0.1.evil.example"])
def test_whatever_could_lead_elsewhere_is_not_loopback(host: str | None) -> None:
    assert not is_loopback(host)


def test_a_port_that_is_taken_is_a_sentence() -> None:
    with listen_on("127.0.0.1", 0) as first:
        first.listen()
        with pytest.raises(BadInput, match="choose another port"):
            listen_on("127.0.0.1", first.getsockname()[1])


# Pictures -------------------------------------------------------------------------------------------------------------


def file_of(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["png", "webp"])
def test_an_image_goes_out_and_comes_in_unchanged(kind: ImageFormat) -> None:
    values = torch.rand(3, 8, 16, generator=torch.Generator().manual_seed(0))
    data = encode_image(values, "png", 90) if kind == "png" else file_of(
        Image.open(io.BytesIO(encode_image(values, "png", 90))), "webp", lossless=True
    )  # fmt: skip
    image = image_from_base64("data:image/png;base64," + base64_text(data), ServerLimits(), "image")

    assert (image.mode, image.size) == ("RGB", (16, 8))
    assert np.abs(np.asarray(image) / 255 - values.permute(1, 2, 0).numpy()).max() <= 0.5 / 255 + 1e-6


def test_better_quality_is_a_larger_file() -> None:
    values = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0))

    assert len(encode_image(values, "jpeg", 20)) < len(encode_image(values, "jpeg", 95))


def test_an_image_that_is_not_a_number_is_no_image() -> None:
    with pytest.raises(BadInput, match="not finite"):
        encode_image(torch.full((3, 8, 8), float("nan")), "png", 90)


def test_a_camera_that_was_turned_is_turned_back() -> None:
    turned = Image.new("RGB", (8, 4))
    exif = turned.getexif()
    exif[0x0112] = 6

    assert image_from_bytes(file_of(turned, "jpeg", exif=exif), ServerLimits(), "image").size == (4, 8)


@pytest.mark.parametrize(
    ("mode", "becomes"), [("L", "RGB"), ("P", "RGB"), ("RGBA", "RGBA"), ("LA", "RGBA"), ("1", "RGB")]
)
def test_every_mode_becomes_rgb_with_or_without_transparency(mode: str, becomes: str) -> None:
    assert image_from_bytes(file_of(Image.new(mode, (4, 4)), "png"), ServerLimits(), "image").mode == becomes


def test_sixteen_bit_grey_as_of_depth_maps_keeps_its_shades() -> None:
    shades = np.linspace(0, 65535, 64).reshape(8, 8).astype(np.uint16)
    read = image_from_bytes(file_of(Image.fromarray(shades), "png"), ServerLimits(), "image")

    assert abs(np.asarray(read)[..., 0].astype(float) - shades / 257).max() <= 0.5


@pytest.mark.parametrize("limits", [ServerLimits(max_image_bytes=50), ServerLimits(max_input_pixels=63)])
def test_an_image_above_either_limit_is_refused(limits: ServerLimits) -> None:
    with pytest.raises(ApiError) as refused:
        image_from_bytes(file_of(Image.new("RGB", (8, 8)), "png"), limits, "mask")

    assert (refused.value.status, refused.value.detail.code, refused.value.detail.param) == (
        400,
        "image_too_large",
        "mask",
    )


def test_limits_that_let_nobody_in_are_refused() -> None:
    for wrong in ({"max_running": 0}, {"max_waiting": -1}):
        with pytest.raises(BadInput):
            ServerLimits(**wrong)


# The log --------------------------------------------------------------------------------------------------------------


def test_a_line_of_the_log_is_an_object_with_its_traceback() -> None:
    try:
        raise ValueError("inside")
    except ValueError as problem:
        record = logging.LogRecord(
            "takeup", logging.ERROR, "x.py", 1, "it %s", ("failed",), (ValueError, problem, None)
        )
    told = json.loads(JsonLines().format(record))

    assert (told["level"], told["message"]) == ("error", "it failed")
    assert "inside" in told["traceback"]


@pytest.mark.parametrize("as_json", [True, False])
def test_the_configuration_is_one_that_logging_takes(as_json: bool) -> None:
    config = log_config(as_json)

    assert logging.config.dictConfigClass(config).config == config
    assert ("()" in config["formatters"]["lines"]) == as_json


@pytest.mark.parametrize("keys", [ApiKeys(), KEYS])
def test_pages_of_an_allowed_origin_may_use_the_server_and_others_may_not(tmp_path: Path, keys: ApiKeys) -> None:
    origin, other = {"Origin": "https://app.example"}, {"Origin": "https://evil.example"}
    settings = ServerSettings("m", tmp_path, cors=["https://app.example"])
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    with (
        background_server(make_app(settings, Painter(), keys)) as url,
        httpx.Client(base_url=url, headers=bearer(ALICE)) as client,
    ):
        before = httpx.options(url + URL, headers={**origin, **asks})
        answer = client.post(URL, json=ask(), headers=origin)
        foreign = client.post(URL, json=ask(), headers=other)

    assert before.status_code == 200
    assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (200, "https://app.example")
    assert "Access-Control-Allow-Origin" not in foreign.headers
