"""Chromium as a player: it decodes real segments with hls.js, and its own events say when it played and when not.

hls.js starts as soon as it can, so the page holds the screen back until the thresholds of the player are reached.
`scripts/browser-lab` puts in place what this needs.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from takeup.errors import MissingEngine, TakeupError
from takeup.streaming.engines.dash.links import BottleneckLink
from takeup.streaming.engines.dash.player import Playback
from takeup.streaming.engines.dash.server import SegmentServer, StaticPage, Video
from takeup.streaming.model import Player

PAGE = Path(__file__).with_name("player.html")
MOST_CONNECTIONS = 16  # a browser opens several, and uses one
FRAMES_PER_S = 25
ENCODE_LIMIT_S = 120.0


class NoBrowserReport(TakeupError):
    """The browser reported nothing."""


@dataclass(frozen=True, slots=True)
class BrowserTools:
    """Where the programs are."""

    chromium: str
    ffmpeg: str
    hls_js: Path


def find_tools() -> BrowserTools:
    """What `scripts/browser-lab` has put in place, or a sentence that names what is missing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    chromium, ffmpeg, hls_js = shutil.which("chromium"), shutil.which("ffmpeg"), cache / "takeup/browser-lab/hls.min.js"
    found = {"chromium": chromium, "ffmpeg": ffmpeg, str(hls_js): hls_js.exists()}
    missing = ", ".join(name for name, there in found.items() if not there)
    if chromium is None or ffmpeg is None or missing:
        raise MissingEngine(f"the browser player needs {missing}, which is not there; run scripts/browser-lab")
    return BrowserTools(chromium, ffmpeg, hls_js)


def encode_video(tools: BrowserTools, length_s: float, bitrate_bps: float, segment_s: float) -> Video:
    """A test picture of constant bitrate (padded where the picture needs less), cut at exact segment borders."""
    frames = round(FRAMES_PER_S * segment_s)
    with TemporaryDirectory() as folder:
        command = [tools.ffmpeg, "-v", "error", "-f", "lavfi", "-i", f"testsrc2=size=320x180:rate={FRAMES_PER_S}"]
        command += ["-t", f"{length_s}", "-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-bf", "0"]
        command += ["-g", f"{frames}", "-sc_threshold", "0", "-b:v", f"{0.7 * bitrate_bps:.0f}"]
        command += ["-maxrate", f"{0.8 * bitrate_bps:.0f}", "-bufsize", f"{0.4 * bitrate_bps:.0f}"]
        command += ["-f", "segment", "-segment_time", f"{segment_s}", "-segment_format", "mpegts"]
        command += ["-segment_format_options", f"muxrate={bitrate_bps:.0f}", f"{folder}/%06d.ts"]
        subprocess.run(command, check=True, timeout=ENCODE_LIMIT_S, capture_output=True)
        media = tuple(path.read_bytes() for path in sorted(Path(folder).iterdir()))
    return Video(length_s, bitrate_bps, segment_s, media)


async def watch(tools: BrowserTools, video: Video, player: Player, link: BottleneckLink, limit_s: float) -> Playback:
    """Let a browser watch the video over this link; it is given up after `limit_s`."""
    seen: asyncio.Future[tuple[int, ...]] = asyncio.get_running_loop().create_future()

    def note(numbers: tuple[int, ...]) -> None:
        if not seen.done():
            seen.set_result(numbers)

    server = SegmentServer(link, MOST_CONNECTIONS, {0: video}, _pages(tools), on_seen=note)
    query = f"video=0&start={player.start_s}&resume={player.again_s}&length={video.length_s}"
    async with server.listening() as (host, port), _browser(tools, f"http://{host}:{port}/?{query}"):
        try:
            numbers = await asyncio.wait_for(seen, limit_s)
        except TimeoutError as error:
            raise NoBrowserReport(f"the browser was not through after {limit_s:g} s; give it more time") from error
    startup_ms, num_stalls, stall_ms, finished_early = numbers
    return Playback(startup_ms / 1e3, num_stalls, stall_ms / 1e3, finished_early == 1)


def _pages(tools: BrowserTools) -> dict[str, StaticPage]:
    script = StaticPage(tools.hls_js.read_bytes(), "text/javascript")
    return {"/": StaticPage(PAGE.read_bytes(), "text/html; charset=utf-8"), "/hls.js": script}


@asynccontextmanager
async def _browser(tools: BrowserTools, address: str) -> AsyncIterator[None]:
    """Chromium on one page, without a screen, a profile or a word to anyone else; gone afterwards."""
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    quiet += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--mute-audio", "--disable-gpu"]
    quiet += ["--no-sandbox"] if os.geteuid() == 0 else []
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            tools.chromium,
            "--headless=new",
            f"--user-data-dir={profile}",
            "--autoplay-policy=no-user-gesture-required",
            *quiet,
            address,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # its many processes end together
        )
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
