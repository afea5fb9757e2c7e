"""Chromium without a screen, driven over its debugging pipe: real mouse events, real files, real downloads."""

from __future__ import annotations

import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

__all__ = ["CHROMIUM", "Tab", "browser"]

CHROMIUM = shutil.which("chromium")
LIMIT_S = 120.0
QUIET = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--mute-audio",
    "--no-first-run",
)


class Tab:
    """One page. Everything is asked by a number, and answered with it; what nobody asked for is kept as `events`."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def open(self, address: str) -> None:
        """Show a page in a new tab, and listen to what it does."""
        self._session, self.events = None, []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "DOM", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def ask(self, method: str, **parameters: Any) -> Any:
        """A command of the browser, and its answer."""
        number = next(self._numbers)
        session = (
            {} if self._session is None or method.startswith(("Target", "Browser")) else {"sessionId": self._session}
        )
        message = {"id": number, "method": method, "params": parameters, **session}
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._hear()
            if heard.get("id") == number:
                assert "error" not in heard, heard
                return heard["result"]
            self.events.append(heard)

    def value(self, script: str) -> Any:
        """What an expression gives, in the page."""
        answer = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true."""
        until_s = time.monotonic() + LIMIT_S
        while not self.value(script):
            assert time.monotonic() < until_s, script
            time.sleep(0.02)

    def choose(self, selector: str, file: Path) -> None:
        """Choose a file, as in its dialog."""
        root = self.ask("DOM.getDocument")["root"]["nodeId"]
        node = self.ask("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.ask("DOM.setFileInputFiles", nodeId=node, files=[str(file)])

    def click(self, selector: str) -> None:
        """With the mouse, in the middle of it."""
        left, top, width, height = self.box(selector)
        self.drag([(left + width / 2, top + height / 2)])

    def drag(self, path: list[tuple[float, float]]) -> None:
        """Press at the first place, move over all others, let go at the last."""
        for place in path:
            kind = "mousePressed" if place == path[0] else "mouseMoved"
            self._mouse(kind, place, buttons=1)
        self._mouse("mouseReleased", path[-1], buttons=0)

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """Left, top, width and height on the screen, scrolled into view."""
        script = f"""(() => {{ const one = document.querySelector({json.dumps(selector)});
            one.scrollIntoView({{block: "center"}}); const box = one.getBoundingClientRect();
            return [box.left, box.top, box.width, box.height]; }})()"""
        left, top, width, height = self.value(script)
        return left, top, width, height

    def _mouse(self, kind: str, place: tuple[float, float], buttons: int) -> None:
        button = "none" if kind == "mouseMoved" else "left"
        self.ask(
            "Input.dispatchMouseEvent",
            type=kind,
            x=place[0],
            y=place[1],
            button=button,
            buttons=buttons,
            clickCount=0 if kind == "mouseMoved" else 1,
        )

    def _hear(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reads], [], [], LIMIT_S)
            assert ready, "the browser says nothing"
            piece = os.read(self._reads, 1 << 20)
            assert piece, "the browser is gone"
            self._rest += piece
        said, self._rest = self._rest.split(b"\0", maxsplit=1)
        heard: dict[str, Any] = json.loads(said)
        return heard


@contextmanager
def browser() -> Iterator[Tab]:
    """A browser with a fresh profile; gone afterwards, with all its processes."""
    assert CHROMIUM is not None
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}", *QUIET, *root]
        moved = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'  # where Chromium expects the two ends
        process = subprocess.Popen(
            ["bash", "-c", moved, "bash", *command],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Tab(ours_in, ours_out)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(ours_in)
            os.close(ours_out)
