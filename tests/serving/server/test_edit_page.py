"""The editing page in a real browser: a mask is painted with the mouse, and nothing else of the image changes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")
pytest.importorskip("diffusers", reason="needs the package 'diffusers': pip install 'takeup[diffusion]'")

from PIL import Image

from serving.server.chromium import CHROMIUM, Tab, browser
from serving.server.clients import ALICE, eventually, house
from serving.server.painting import Painter
from serving.stock import ENGINE_MARKS
from takeup.serving.server.backends.local import ServingPlan
from takeup.serving.server.image_routes import edit_page

pytestmark = ENGINE_MARKS
Pixels = npt.NDArray[np.uint8]
MODEL = "takeup/tiny-sd15"
SIDE = 64
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs the program 'chromium'")


def pixels(path: Path) -> Pixels:
    return np.asarray(Image.open(path).convert("RGB"))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    noise = np.random.default_rng(5).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    path = tmp_path_factory.mktemp("page") / "original.png"
    Image.fromarray(noise).save(path)
    return path


@pytest.fixture(scope="module")
def server() -> Iterator[httpx.Client]:
    with house(ServingPlan(MODEL).build(), model=MODEL) as client:
        yield client


@pytest.fixture(scope="module")
def chromium() -> Iterator[Tab]:
    """One browser for all tests; it takes seconds to start."""
    with browser() as made:
        yield made


@pytest.fixture
def tab(chromium: Tab, server: httpx.Client, tmp_path: Path) -> Tab:
    """The page anew, with the key of Alice and few steps."""
    chromium.ask("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    chromium.open(str(server.base_url.join("/edit")))
    chromium.value(f"document.getElementById('key').value = {json.dumps(ALICE)}")
    chromium.value("document.getElementById('steps').value = 3")
    return chromium


def paint(tab: Tab, *path: tuple[float, float]) -> None:
    """With the mouse over these places of the image, as shares of its sides."""
    left, top, width, height = tab.box("#mask")
    tab.drag([(left + x * width, top + y * height) for x, y in path])


def do(tab: Tab, button: str) -> None:
    """Press a button, and wait until what it does is done."""
    tab.click(button)
    tab.until("document.body.dataset.done === 'yes'")


def downloaded(tab: Tab, folder: Path) -> Pixels:
    tab.until("document.getElementById('result').complete && document.getElementById('result').naturalWidth > 0")
    tab.click("#download")  # which the image has moved to its place
    eventually((folder / "edited.png").exists)
    found = pixels(folder / "edited.png")
    (folder / "edited.png").unlink()
    return found


def painted_pixels(tab: Tab) -> npt.NDArray[np.bool_]:
    """Where the canvas has any paint, asked of the browser itself."""
    script = "[...document.getElementById('mask').getContext('2d').getImageData(0, 0, 64, 64).data]"
    values = np.array(tab.value(script), np.uint8).reshape(SIDE, SIDE, 4)
    return values[..., 3] > 0


def computed_share(tab: Tab) -> float:
    return float(tab.value("document.getElementById('facts').dataset.computedShare"))


@needs_browser
def test_only_what_was_painted_changes_and_the_second_edit_computes_less(
    tab: Tab, original: Path, tmp_path: Path
) -> None:
    tab.choose("#file", original)
    tab.until("document.getElementById('image').width === 64 && document.body.dataset.done === 'yes'")
    is_off = tab.value("document.getElementById('edit').disabled")
    paint(tab, (0.3, 0.3), (0.4, 0.35), (0.45, 0.45))
    painted = painted_pixels(tab)
    do(tab, "#edit")
    first_share, first = computed_share(tab), downloaded(tab, tmp_path)
    tab.value("document.getElementById('seed').value = 7")
    do(tab, "#edit")
    second = downloaded(tab, tmp_path)
    facts, problem = (tab.value(f"document.getElementById('{name}').textContent") for name in ("facts", "problem"))

    assert is_off
    assert 20 < painted.sum() < 0.3 * painted.size
    for edited in (first, second):
        changed = (edited != pixels(original)).any(axis=2)
        assert not changed[~painted].any()
        assert changed[painted].mean() > 0.9
    assert (first != second).any()
    assert first_share == 1.0
    assert computed_share(tab) < 0.6
    assert re.fullmatch(r"\d+\.\d\d s, \d+ % computed, rest stale by \S+", facts)
    assert problem == ""
    assert tab.value("document.getElementById('progress').value") == 3


@needs_browser
def test_an_image_is_generated_painted_on_edited_and_edited_again(tab: Tab, tmp_path: Path) -> None:
    do(tab, "#generate")
    paint(tab, (0.6, 0.6))
    do(tab, "#edit")
    first = downloaded(tab, tmp_path)
    tab.click("#again")
    tab.until("document.getElementById('edit').disabled")
    paint(tab, (0.2, 0.2))
    painted = painted_pixels(tab)
    do(tab, "#edit")
    changed = (downloaded(tab, tmp_path) != first).any(axis=2)

    assert first.shape == (SIDE, SIDE, 3)
    assert changed[painted].any()
    assert not changed[~painted].any()


@needs_browser
def test_what_the_server_says_is_shown_and_the_next_try_works(tab: Tab, original: Path, server: httpx.Client) -> None:
    tab.choose("#file", original)
    tab.until("document.body.dataset.done === 'yes'")
    paint(tab, (0.5, 0.5))
    do(tab, "#edit")
    for kept in server.get("/v1/templates").json()["data"]:
        server.delete(f"/v1/templates/{kept['id']}")
    do(tab, "#edit")
    gone = tab.value("document.getElementById('problem').textContent")
    do(tab, "#edit")
    tab.value("document.getElementById('key').value = 'a wrong key'")
    after = tab.value("document.getElementById('problem').textContent")
    do(tab, "#edit")

    assert "send the image again" in gone
    assert after == ""
    assert "no valid key" in tab.value("document.getElementById('problem').textContent")


@needs_browser
def test_the_page_may_run_nothing_of_others(tab: Tab) -> None:
    """The policy is that of the server's answer, and the browser obeys it."""
    asked = [
        event["params"]["request"]["url"] for event in tab.events if event.get("method") == "Network.requestWillBeSent"
    ]
    tab.value("""(() => { const one = document.createElement("script"); one.textContent = "window.foreign = true";
        document.body.append(one); })()""")
    blocked = tab.value("fetch('http://127.0.0.1:9/').then(() => 'through', () => 'blocked')")

    assert tab.value("window.foreign === undefined")
    assert blocked == "blocked"
    assert {re.sub(r":\d+/", "/", url) for url in asked} <= {"http://127.0.0.1/edit", "about:blank"}


def test_the_page_needs_no_key_and_nothing_from_elsewhere() -> None:
    with house(Painter()) as client:
        answer = client.get("/edit", headers={"Authorization": ""})
    policy: Any = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))

    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["script-src"].startswith("'sha256-")
    assert "://" not in edit_page()
