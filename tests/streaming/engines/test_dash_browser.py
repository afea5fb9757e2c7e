"""Three real players in a real browser against the replay: what the picture did is what the rules of the player say."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.browser import PAGE, PLAYERS, BrowserTools, Clip, NoBrowserReport, encode_clip, find_tools, watch
from takeup.core.arrays import Floats
from takeup.errors import MissingEngine
from takeup.streaming.advice.players import PROFILES
from takeup.streaming.model import Player
from takeup.streaming.playback import Playback
from takeup.streaming.simulate.replay import SteadyLog
from takeup.streaming.traces import read_log

BITRATE_BPS, SEGMENT_S, LENGTH_S = 400e3, 2.0, 14.0
RATES_BPS = [800e3] * 3 + [100e3] * 10 + [800e3] * 60  # three good seconds, ten bad ones
ABOUT_S, SHARE = 1.2, 0.1  # Shaka looks at its buffer twice a second, and a busy machine shows pictures late


@pytest.fixture(scope="module")
def tools() -> BrowserTools:
    try:
        return find_tools()
    except MissingEngine as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def clip(tools: BrowserTools) -> Clip:
    return encode_clip(tools, LENGTH_S, BITRATE_BPS, SEGMENT_S)


def player_of(name: str) -> Player:
    """The player that starts at 4 s and stops its download at 8 s."""
    player = PROFILES[name].with_start(4.0, SEGMENT_S, BITRATE_BPS)
    return replace(player, goal_s=8.0, top_goal_s=8.0)


def replayed(player: Player) -> Floats:
    log = SteadyLog(np.ones(len(RATES_BPS)), np.array(RATES_BPS))
    found: Floats = log.outcomes(player, BITRATE_BPS, 1e12, length_s=LENGTH_S)[0]
    return found


def agrees(seen: Playback, expected: Floats) -> bool:
    _, num_stalls, stall_s, startup_s, *_ = expected.tolist()
    return bool(
        seen.num_stalls == round(num_stalls)
        and abs(seen.stall_s - stall_s) <= max(ABOUT_S, SHARE * stall_s)
        and abs(seen.startup_s - startup_s) <= ABOUT_S
    )


@pytest.mark.engine
@pytest.mark.parametrize("name", PLAYERS)
def test_a_browser_stalls_as_the_replay_says(name: str, tools: BrowserTools, clip: Clip, tmp_path: Path) -> None:
    player = player_of(name)
    expected = replayed(player)
    for _ in range(3):  # a browser that waits for a core stalls on any link
        seen, requests = asyncio.run(watch(tools, clip, name, player, RATES_BPS, limit_s=90.0))
        if agrees(seen, expected):
            break

    assert expected[1] > 0.5
    assert agrees(seen, expected), (seen, expected)
    assert len(requests) == clip.video.num_segments
    if name != "shaka":  # which does not send the throughput
        log_file = tmp_path / "access.log"
        log_file.write_text("".join(f"GET {path} 200\n" for path in requests))
        log = read_log(log_file)
        assert log.form.startswith("CMCD")
        assert log.rates_bps.max() == pytest.approx(800e3, rel=0.3)


@pytest.mark.engine
def test_a_browser_that_is_not_through_in_time_is_given_up(tools: BrowserTools, clip: Clip) -> None:
    with pytest.raises(NoBrowserReport, match=r"not through after 0.2 s"):
        asyncio.run(watch(tools, clip, "hls.js", player_of("hls.js"), RATES_BPS, limit_s=0.2))


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "ffmpeg" else f"/usr/bin/{name}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    with pytest.raises(MissingEngine, match=r"needs ffmpeg, .*dash\.js, .*which is not there; run scripts/browser-lab"):
        find_tools()


def test_tools_are_found_where_the_script_puts_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "takeup" / "browser-lab"
    folder.mkdir(parents=True)
    for name in PLAYERS.values():
        (folder / f"{name}.js").write_text("")

    assert find_tools() == BrowserTools("/usr/bin/chromium", "/usr/bin/ffmpeg", folder)


def test_the_page_asks_this_server_only() -> None:
    assert "://" not in PAGE.read_text("utf-8")
