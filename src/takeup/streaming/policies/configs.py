"""Ready configuration for real players: the thresholds of a `Player` in the words of dash.js, Shaka and Media3.

How it works. dash.js has one level for the start (`initialBufferLevel`, seconds) and resumes on its own; Shaka has one
goal for start and resume (`rebufferingGoal`, seconds); Media3 (ExoPlayer) has both (`setBufferDurationsMs`: the least
and the most to buffer, to start, to resume, milliseconds), and wants start and resume not above the least to buffer.
"""

from __future__ import annotations

import json

from takeup.errors import UnknownName
from takeup.streaming.model import Player

MEDIA3_LEAST_MS = 50_000  # what Media3 buffers by default, at least and at most


def dash_js(player: Player) -> str:
    """Settings for `MediaPlayer.updateSettings`; the buffer goal is raised where it would be below the threshold."""
    buffer = {"initialBufferLevel": _seconds(player.start_s)}
    if player.start_s > 18:
        buffer["bufferTimeDefault"] = _seconds(player.start_s)
    return f"player.updateSettings({json.dumps({'streaming': {'buffer': buffer}}, indent=2)});"


def shaka(player: Player) -> str:
    """Settings for `Player.configure`: one goal for both, so the larger threshold is taken."""
    goal = max(player.start_s, player.again_s)
    streaming = {"rebufferingGoal": _seconds(goal), "bufferingGoal": _seconds(max(10.0, goal))}
    return f"player.configure({json.dumps({'streaming': streaming}, indent=2)});"


def media3(player: Player) -> str:
    """A load control for `ExoPlayer.Builder.setLoadControl`, in Kotlin."""
    start_ms, resume_ms = round(player.start_s * 1000), round(player.again_s * 1000)
    least_ms = max(MEDIA3_LEAST_MS, start_ms, resume_ms)
    numbers = f"{least_ms}, {least_ms}, {start_ms}, {resume_ms}"
    return f"DefaultLoadControl.Builder().setBufferDurationsMs({numbers}).build()"


PLAYER_SETTINGS = {"dash.js": dash_js, "shaka": shaka, "media3": media3}


def player_settings(name: str, player: Player) -> str:
    """The configuration of the player product `name`."""
    if name not in PLAYER_SETTINGS:
        raise UnknownName("player", name, PLAYER_SETTINGS)
    return PLAYER_SETTINGS[name](player)


def _seconds(value: float) -> float:
    return round(value, 3)
