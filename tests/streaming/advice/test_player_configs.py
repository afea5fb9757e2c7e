"""Thresholds in the words of real players."""

from __future__ import annotations

import json

import pytest

from takeup.errors import UnknownName
from takeup.streaming.advice.tuning import player_settings
from takeup.streaming.model import Player


def settings_in(text: str) -> dict[str, dict[str, object]]:
    settings: dict[str, dict[str, object]] = json.loads(text[text.index("{") : text.rindex("}") + 1])
    return settings


def test_dash_js_starts_at_the_threshold() -> None:
    text = player_settings("dash.js", Player(5.0))

    assert text.startswith("player.updateSettings(")
    assert settings_in(text) == {"streaming": {"buffer": {"initialBufferLevel": 5.0}}}


def test_dash_js_buffers_at_least_its_threshold() -> None:
    buffer = settings_in(player_settings("dash.js", Player(25.4)))["streaming"]["buffer"]

    assert buffer == {"initialBufferLevel": 25.4, "bufferTimeDefault": 25.4}


def test_shaka_has_one_goal_for_start_and_resume() -> None:
    assert settings_in(player_settings("shaka", Player(4.0, 15.0))) == {
        "streaming": {"rebufferingGoal": 15.0, "bufferingGoal": 15.0}
    }


def test_media3_takes_both_in_milliseconds() -> None:
    assert "setBufferDurationsMs(50000, 50000, 2500, 5000)" in player_settings("media3", Player(2.5, 5.0))
    assert "setBufferDurationsMs(80000, 80000, 80000, 1000)" in player_settings("media3", Player(80.0, 1.0))


def test_an_unknown_player_is_named() -> None:
    with pytest.raises(UnknownName, match="did you mean 'shaka'"):
        player_settings("shakka", Player(5.0))
