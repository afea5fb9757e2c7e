"""Thresholds in the words of real players."""

from __future__ import annotations

import json

import pytest

from takeup.streaming.advice.players import PROFILES

BITRATE_BPS = 2e6


def printed(name: str, start_s: float) -> str:
    profile = PROFILES[name]
    return profile.snippet(profile.with_start(start_s, 4.0, BITRATE_BPS))


def settings_in(text: str) -> dict[str, dict[str, object]]:
    settings: dict[str, dict[str, object]] = json.loads(text[text.index("{") : text.rindex("}") + 1])
    return settings


def test_dash_js_starts_at_the_threshold() -> None:
    text = printed("dash.js", 5.0)

    assert text.startswith("player.updateSettings(")
    assert settings_in(text)["streaming"]["buffer"] == {
        "initialBufferLevel": 5.0,
        "bufferTimeDefault": 18.0,
        "bufferTimeAtTopQuality": 30.0,
        "bufferTimeAtTopQualityLongForm": 30.0,
    }


def test_dash_js_buffers_twice_its_threshold() -> None:
    buffer = settings_in(printed("dash.js", 25.4))["streaming"]["buffer"]

    assert isinstance(buffer, dict)
    assert set(buffer.values()) == {25.4, 50.8}


def test_shaka_has_one_goal_for_start_and_resume() -> None:
    assert settings_in(printed("shaka", 15.0)) == {"streaming": {"rebufferingGoal": 15.0, "bufferingGoal": 30.0}}


def test_a_start_at_exactly_some_segments_is_printed_a_little_lower() -> None:
    assert '"initialBufferLevel": 7.9,' in printed("dash.js", 8.0)
    assert '"rebufferingGoal": 7.9,' in printed("shaka", 8.0)


def test_media3_takes_both_in_milliseconds() -> None:
    assert "setBufferDurationsMs(50000, 50000, 2500, 4000)" in printed("media3", 2.5)
    assert "setBufferDurationsMs(160000, 160000, 79900, 4000)" in printed("media3", 80.0)


def test_media3_is_printed_with_the_annotation_that_its_class_needs() -> None:
    assert printed("media3", 2.5).startswith("@OptIn(UnstableApi::class)")


@pytest.mark.parametrize("name", PROFILES)
def test_a_goal_is_never_as_low_as_a_threshold(name: str) -> None:
    player = PROFILES[name].with_start(40.0, 4.0, BITRATE_BPS)

    assert player.goal_s >= 2 * max(player.start_s, player.again_s)


@pytest.mark.parametrize(("name", "resume_s"), [("dash.js", 4.0), ("hls.js", 4.0), ("shaka", 20.0), ("media3", 4.0)])
def test_every_player_resumes_by_its_own_rule(name: str, resume_s: float) -> None:
    assert PROFILES[name].with_start(20.0, 4.0, BITRATE_BPS).again_s == resume_s


@pytest.mark.parametrize("name", PROFILES)
def test_a_player_as_it_comes_waits_for_one_segment(name: str) -> None:
    player = PROFILES[name].default(6.0, BITRATE_BPS)

    assert (player.start_s, player.again_s) == (6.0, 6.0)


@pytest.mark.parametrize(("bitrate_bps", "goal_s"), [(0.1e6, 600.0), (4e6, 120.0), (50e6, 30.0)])
def test_hls_js_fills_sixty_megabytes_between_half_a_minute_and_ten(bitrate_bps: float, goal_s: float) -> None:
    assert PROFILES["hls.js"].default(4.0, bitrate_bps).full_s == goal_s
    assert "maxBufferSize: 0" in printed("hls.js", 5.0)


def test_dash_js_has_a_higher_goal_at_the_highest_bitrate() -> None:
    player = PROFILES["dash.js"].default(4.0, BITRATE_BPS)

    assert (player.goal_s, player.full_s, player.rule) == (18.0, 30.0, "dynamic")
