"""Chromium with dash.js, Shaka or hls.js: real segments over a shaped link, and what the picture on the screen did.

`scripts/browser-lab` puts in place what this needs. The page watches the position of the video, so a stall is a picture
that stands still, whatever the player calls it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from support.dash.links import UserSpaceLink
from support.dash.server import SegmentServer, StaticPage, Video
from takeup.errors import MissingEngine, TakeupError
from takeup.streaming.model import Player
from takeup.streaming.playback import Playback

PAGE = Path(__file__).with_name("player.html")
PLAYERS = {"dash.js": "dash", "shaka": "shaka", "hls.js": "hls"}
MOST_CONNECTIONS = 16  # a browser opens several, and uses one
FRAMES_PER_S = 25
QUANTUM_BYTES = 1024  # one in a second where a link stands nearly still: Shaka gives up after five without a byte
ENCODE_LIMIT_S = 120.0


class NoBrowserReport(TakeupError):
    """The browser reported nothing."""


@dataclass(frozen=True, slots=True)
class BrowserTools:
    """Where the programs are, and the folder of the players."""

    chromium: str
    ffmpeg: str
    players: Path


@dataclass(frozen=True, slots=True)
class Clip:
    """A video of constant bitrate, and the files that players read before the first segment."""

    video: Video
    pages: dict[str, StaticPage]


def find_tools() -> BrowserTools:
    """What `scripts/browser-lab` has put in place, or a sentence that names what is missing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "takeup" / "browser-lab"
    chromium, ffmpeg = shutil.which("chromium"), shutil.which("ffmpeg")
    scripts = [cache / f"{name}.js" for name in PLAYERS.values()]
    absent = [name for name, place in (("chromium", chromium), ("ffmpeg", ffmpeg)) if place is None]
    missing = ", ".join([*absent, *(str(script) for script in scripts if not script.exists())])
    if chromium is None or ffmpeg is None or missing:
        raise MissingEngine(f"the browser player needs {missing}, which is not there; run scripts/browser-lab")
    return BrowserTools(chromium, ffmpeg, cache)


def encode_clip(tools: BrowserTools, length_s: float, bitrate_bps: float, segment_s: float) -> Clip:
    """A test picture cut at exact segment borders; a box of free bytes makes all segments equally large."""
    frames = round(FRAMES_PER_S * segment_s)
    with TemporaryDirectory() as folder:
        command = [tools.ffmpeg, "-v", "error", "-f", "lavfi", "-i", f"testsrc2=size=320x180:rate={FRAMES_PER_S}"]
        command += ["-t", f"{length_s}", "-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-bf", "0"]
        command += ["-g", f"{frames}", "-keyint_min", f"{frames}", "-sc_threshold", "0", "-crf", "45"]
        command += ["-f", "dash", "-seg_duration", f"{segment_s}", "-use_template", "1", "-use_timeline", "0"]
        command += ["-init_seg_name", "init.mp4", "-media_seg_name", "$Number%06d$.m4s", f"{folder}/clip.mpd"]
        subprocess.run(command, check=True, timeout=ENCODE_LIMIT_S, capture_output=True)
        parts = [path.read_bytes() for path in sorted(Path(folder).glob("*.m4s"))]
        init = Path(folder, "init.mp4").read_bytes()
    size = round(bitrate_bps * segment_s / 8)
    video = Video(length_s, bitrate_bps, segment_s, tuple(_padded(part, size) for part in parts))
    return Clip(video, _manifests(video, init))


def _padded(part: bytes, size: int) -> bytes:
    assert len(part) + 8 <= size, f"a segment has {len(part)} bytes, more than {size}; take a higher bitrate"
    return part + (size - len(part)).to_bytes(4, "big") + b"free" + bytes(size - len(part) - 8)


def _manifests(video: Video, init: bytes) -> dict[str, StaticPage]:
    lines = [f'#EXT-X-MAP:URI="/init.mp4"\n#EXTINF:{video.segment_s:.6f},\n/video/0/0']
    lines += [f"#EXTINF:{video.segment_s:.6f},\n/video/0/{number}" for number in range(1, video.num_segments)]
    head = f"#EXTM3U\n#EXT-X-VERSION:7\n#EXT-X-TARGETDURATION:{round(video.segment_s)}\n#EXT-X-PLAYLIST-TYPE:VOD\n"
    m3u8 = head + "\n".join([*lines, "#EXT-X-ENDLIST"]) + "\n"
    mpd = (
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011"'
        ' profiles="urn:mpeg:dash:profile:isoff-live:2011"'
        f' type="static" mediaPresentationDuration="PT{video.length_s}S" minBufferTime="PT0S"><Period><AdaptationSet'
        ' mimeType="video/mp4" segmentAlignment="true"><SegmentTemplate timescale="1000" startNumber="0"'
        f' duration="{round(1000 * video.segment_s)}" initialization="/init.mp4" media="/video/0/$Number$"/>'
        f'<Representation id="0" codecs="avc1.42c00d" width="320" height="180" bandwidth="{round(video.bitrate_bps)}"/>'
        "</AdaptationSet></Period></MPD>"
    )
    contents = {"/init.mp4": (init, "video/mp4"), "/clip.m3u8": (m3u8.encode(), "application/vnd.apple.mpegurl")}
    main = f'#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH={round(video.bitrate_bps)},CODECS="avc1.42c00d"\nclip.m3u8\n'
    contents["/main.m3u8"] = (main.encode(), "application/vnd.apple.mpegurl")
    contents["/clip.mpd"] = (mpd.encode(), "application/dash+xml")
    return {path: StaticPage(*content) for path, content in contents.items()}


async def watch(
    tools: BrowserTools, clip: Clip, name: str, player: Player, rates_bps: Sequence[float], limit_s: float
) -> tuple[Playback, list[str]]:
    """What a viewer experiences, and the requests; the link has a rate for every second from the first segment on."""
    seen: asyncio.Future[tuple[int, ...]] = asyncio.get_running_loop().create_future()
    begun, requests = asyncio.Event(), list[str]()
    link = UserSpaceLink(rates_bps[0] / 8, QUANTUM_BYTES)

    def note(numbers: tuple[int, ...]) -> None:
        if not seen.done():
            seen.set_result(numbers)

    def request(path: str) -> None:
        requests.append(path)
        begun.set()

    pages = clip.pages | {
        "/": StaticPage(PAGE.read_bytes(), "text/html; charset=utf-8"),
        "/player.js": StaticPage((tools.players / f"{PLAYERS[name]}.js").read_bytes(), "text/javascript"),
    }
    server = SegmentServer(link, MOST_CONNECTIONS, {0: clip.video}, pages, on_seen=note, on_segment=request)
    query = f"player={PLAYERS[name]}&start={player.start_s}&goal={player.full_s}&length={clip.video.length_s}"
    varying = asyncio.create_task(_vary(link, rates_bps, begun))
    try:
        async with server.listening() as (host, port), _browser(tools, f"http://{host}:{port}/?{query}"):
            numbers = await asyncio.wait_for(seen, limit_s)
    except TimeoutError as error:
        raise NoBrowserReport(f"the browser was not through after {limit_s:g} s; give it more time") from error
    finally:
        varying.cancel()
    startup_ms, num_stalls, stall_ms, _ = numbers
    return Playback(startup_ms / 1e3, num_stalls, stall_ms / 1e3, finished_early=False), requests


async def _vary(link: UserSpaceLink, rates_bps: Sequence[float], begun: asyncio.Event) -> None:
    await begun.wait()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for second, rate_bps in enumerate(rates_bps):
        await asyncio.sleep(began_s + second - loop.time())
        link.set_rate(rate_bps / 8)


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
