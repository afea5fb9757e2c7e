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
    chromium.value("document.getElementById('size').value = '64x64'")
    return chromium


@pytest.fixture
def phone(tab: Tab) -> Iterator[Tab]:
    """The same page in a narrow window with touch."""
    tab.ask("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    yield tab
    tab.ask("Emulation.clearDeviceMetricsOverride")


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
    assert re.fullmatch(r"\d+\.\d\d s, \d+ % computed, error at most \d+ %, seed 7", facts)
    assert problem == ""
    assert tab.value("document.getElementById('progress').value") == 3


@needs_browser
def test_an_image_is_generated_painted_on_edited_and_edited_again(tab: Tab, tmp_path: Path) -> None:
    do(tab, "#generate")
    paint(tab, (0.6, 0.6))
    do(tab, "#edit")
    first = downloaded(tab, tmp_path)
    do(tab, "#again")
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


def loaded(tab: Tab, file: Path) -> None:
    tab.choose("#file", file)
    tab.until("document.getElementById('image').width === 64 && document.body.dataset.done === 'yes'")


def slide(tab: Tab, name: str, value: float) -> None:
    one = f"document.getElementById('{name}')"
    tab.value(f"{one}.value = {value}")
    tab.value(f"{one}.dispatchEvent(new Event('input'))")


@needs_browser
def test_the_eraser_takes_paint_away_and_undo_brings_it_back(tab: Tab, original: Path) -> None:
    loaded(tab, original)
    paint(tab, (0.2, 0.5), (0.8, 0.5))
    whole = painted_pixels(tab)
    tab.click("#erase")
    paint(tab, (0.5, 0.2), (0.5, 0.8))
    erased = painted_pixels(tab)
    tab.click("#undo")
    back = painted_pixels(tab)
    tab.click("#undo")

    assert 0 < erased.sum() < whole.sum()
    assert not (erased & ~whole).any()
    assert (back == whole).all()
    assert not painted_pixels(tab).any()
    assert tab.value("document.getElementById('edit').disabled && document.getElementById('undo').disabled")


@needs_browser
def test_after_zoom_and_move_the_brush_paints_where_the_pointer_is(tab: Tab, original: Path) -> None:
    loaded(tab, original)
    usual = tab.box("#mask")[2]
    slide(tab, "zoom", 3)
    tab.click("#move")
    left, top, width, height = tab.box("#view")
    tab.drag([(left + 0.6 * width, top + 0.6 * height), (left + 0.3 * width, top + 0.4 * height)])
    scrolled = tab.value("document.getElementById('view').scrollLeft")
    tab.click("#paint")
    place = left + 0.5 * width, top + 0.5 * height
    x, y, wide = (
        tab.value(f"document.getElementById('mask').getBoundingClientRect().{name}") for name in ("x", "y", "width")
    )
    tab.drag([place])
    rows, columns = painted_pixels(tab).nonzero()

    assert scrolled > 0
    assert wide == pytest.approx(3 * usual, rel=0.01)
    assert columns.mean() + 0.5 == pytest.approx((place[0] - x) / wide * SIDE, abs=1)
    assert rows.mean() + 0.5 == pytest.approx((place[1] - y) / wide * SIDE, abs=1)


@needs_browser
def test_results_are_compared_shown_and_found_again_in_the_history(tab: Tab, original: Path) -> None:
    loaded(tab, original)
    paint(tab, (0.5, 0.5))
    for seed in (1, 2):
        tab.value(f"document.getElementById('seed').value = {seed}")
        do(tab, "#edit")
    slide(tab, "split", 40)
    tab.click("#computed")
    newest = tab.value("document.getElementById('facts').textContent")
    tab.click("#history button:nth-child(2)")
    older = tab.value("document.getElementById('facts').textContent")

    assert newest.endswith("seed 2")
    assert older.endswith("seed 1")
    assert tab.value("document.getElementById('history').children.length") == 2
    tab.until(f"document.getElementById('before').naturalWidth === {SIDE}")
    assert not tab.value("document.getElementById('overlay').hidden")
    assert (
        tab.value("document.getElementById('result').style.clipPath") == "inset(0px 0px 0px 0%)"
    )  # the older one, whole


@needs_browser
def test_a_cancelled_image_leaves_the_page_ready_for_the_next(tab: Tab, server: httpx.Client) -> None:
    tab.value("document.getElementById('steps').value = 150")
    tab.click("#generate")
    tab.until("document.getElementById('progress').value > 0")
    tab.click("#cancel")
    tab.until("document.body.dataset.done === 'yes'")
    said = tab.value("document.getElementById('problem').textContent")
    tab.value("document.getElementById('steps').value = 2")
    do(tab, "#generate")

    assert said == "Cancelled."
    assert tab.value("document.getElementById('problem').textContent") == ""
    assert tab.value("document.getElementById('step').value") == "step 2 of 2"
    assert re.fullmatch(r"seed \d+", tab.value("document.getElementById('facts').textContent"))


@needs_browser
def test_an_image_that_is_dropped_or_pasted_is_taken(tab: Tab) -> None:
    make = """(async (kind) => {
        const canvas = new OffscreenCanvas(64, 64);
        canvas.getContext("2d").fillRect(0, 0, 64, 64);
        const data = new DataTransfer();
        data.items.add(new File([await canvas.convertToBlob()], "one.png", { type: "image/png" }));
        const [where, event] = kind === "drop"
            ? [document.getElementById("view"), new DragEvent("drop", { dataTransfer: data })]
            : [document, new ClipboardEvent("paste", { clipboardData: data })];
        document.getElementById("drop").hidden = false;
        where.dispatchEvent(event);
    })"""
    for kind in ("drop", "paste"):
        tab.value(f"{make}('{kind}')")
        tab.until("document.getElementById('drop').hidden && document.body.dataset.done === 'yes'")

        assert tab.value("document.getElementById('image').getContext('2d').getImageData(5, 5, 1, 1).data[3]") == 255


@needs_browser
def test_on_a_phone_nothing_is_wider_than_the_screen_and_a_finger_paints(phone: Tab, original: Path) -> None:
    loaded(phone, original)
    paint(phone, (0.3, 0.3), (0.6, 0.3))
    do(phone, "#edit")

    assert painted_pixels(phone).any()
    assert phone.value("document.documentElement.scrollWidth") <= 390
    assert phone.box("#edit")[3] >= 40  # large enough for a finger
    assert phone.value("document.getElementById('problem').textContent") == ""


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
    own = {f"http://127.0.0.1/{path}" for path in ("edit", "v1/models", "v1/adapters")}
    assert {re.sub(r":\d+/", "/", url) for url in asked} <= own | {"about:blank"}


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
