"""A real browser against the emulated screen: what Chromium lives through is what `play` computes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import pytest

from support.browser import PAGE, BrowserTools, NoBrowserReport, encode_video, find_tools, watch
from takeup.errors import MissingEngine
from takeup.streaming.engines.dash.links import UserSpaceLink
from takeup.streaming.engines.dash.player import Playback, play
from takeup.streaming.engines.dash.server import Video
from takeup.streaming.model import Player

BITRATE_BPS = 400e3


@pytest.fixture(scope="module")
def tools() -> BrowserTools:
    try:
        return find_tools()
    except MissingEngine as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def video(tools: BrowserTools) -> Video:
    return encode_video(tools, length_s=6.0, bitrate_bps=BITRATE_BPS, segment_s=1.0)


def emulated(video: Video, player: Player, rate_bytes_per_s: float) -> Playback:
    """The same video alone on a perfect link, in whole segments."""
    ends = accumulate(video.segment_bytes)
    return play([(end / rate_bytes_per_s, float(number + 1)) for number, end in enumerate(ends)], player)


def watched(
    tools: BrowserTools, video: Video, player: Player, rate_bytes_per_s: float, is_so: Callable[[Playback], bool]
) -> Playback:
    """What a browser lives through; again, at most three times in all: one that waits for a core stalls on any link."""
    for _ in range(3):
        seen = asyncio.run(watch(tools, video, player, UserSpaceLink(rate_bytes_per_s), limit_s=90.0))
        if is_so(seen):
            break
    return seen


@pytest.mark.engine
def test_segments_have_the_size_that_the_bitrate_says(video: Video) -> None:
    assert video.num_segments == 6
    assert all(size == pytest.approx(BITRATE_BPS / 8, rel=0.1) for size in video.segment_bytes)


@pytest.mark.engine
def test_a_fast_link_has_no_stalls(tools: BrowserTools, video: Video) -> None:
    player, rate = Player(2.0), 4 * BITRATE_BPS / 8
    seen = watched(tools, video, player, rate, lambda seen: seen.num_stalls == 0)

    assert (seen.num_stalls, seen.stall_s, seen.finished_early) == (0, 0.0, False)
    assert seen.startup_s >= emulated(video, player, rate).startup_s - 0.1


@pytest.mark.engine
def test_a_slow_link_stalls_as_the_emulated_screen_says(tools: BrowserTools, video: Video) -> None:
    player, rate = Player(start_s=2.0, resume_s=1.0), 0.6 * BITRATE_BPS / 8
    expected = emulated(video, player, rate)

    def is_as_expected(seen: Playback) -> bool:
        is_near = abs(seen.num_stalls - expected.num_stalls) <= 1 and seen.startup_s < expected.startup_s + 5.0
        return is_near and 0.3 * expected.stall_s < seen.stall_s < expected.stall_s + 5.0

    seen = watched(tools, video, player, rate, is_as_expected)

    assert expected.num_stalls >= 2
    assert is_as_expected(seen), (seen, expected)
    assert seen.startup_s >= expected.startup_s - 0.1


@pytest.mark.engine
def test_a_browser_that_is_not_through_in_time_is_given_up(tools: BrowserTools, video: Video) -> None:
    with pytest.raises(NoBrowserReport, match=r"not through after 0.2 s"):
        asyncio.run(watch(tools, video, Player(2.0), UserSpaceLink(1e5), limit_s=0.2))


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "ffmpeg" else f"/usr/bin/{name}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    with pytest.raises(
        MissingEngine, match=r"needs ffmpeg, .*hls\.min\.js, which is not there; run scripts/browser-lab"
    ):
        find_tools()


def test_tools_are_found_where_the_script_puts_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    script = tmp_path / "takeup" / "browser-lab" / "hls.min.js"
    script.parent.mkdir(parents=True)
    script.write_text("")

    assert find_tools() == BrowserTools("/usr/bin/chromium", "/usr/bin/ffmpeg", script)


def test_the_page_asks_this_server_only() -> None:
    assert "://" not in PAGE.read_text("utf-8")
