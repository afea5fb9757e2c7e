"""Player products: their start, resume, buffer and bitrate rules with their defaults, and the code that sets them.

All append whole segments. What each setting means for start and resume differs, so a threshold is replayed by the rules
of the player that it is printed for.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass

from takeup.streaming.model import Player


@dataclass(frozen=True, slots=True)
class PlayerProfile:
    """A player product: the version whose source was read, its defaults, its rules and its settings as code.

    `goals_s` gives the buffer goal below the highest bitrate, and at it, for a video of that bitrate. `resume_s` is
    where playback resumes for a start threshold and a segment length, `snippet` prints the code.
    """

    version: str
    start_s: float
    goals_s: Callable[[float], tuple[float, float]]
    resume_s: Callable[[float, float], float]
    rule: str
    snippet: Callable[[Player], str]
    pause_s: float = 0.0
    timeout_s: float = math.inf

    def default(self, segment_s: float, bitrate_bps: float) -> Player:
        """The player as it comes; playback needs one segment at least."""
        resume_s = self.resume_s(self.start_s, segment_s)
        return self._player(max(self.start_s, segment_s), resume_s, segment_s, *self.goals_s(bitrate_bps))

    def with_start(self, start_s: float, segment_s: float, bitrate_bps: float) -> Player:
        """The player that starts at `start_s`: its goals are twice that at least, so that they add no stalls."""
        resume_s = self.resume_s(start_s, segment_s)
        goals_s = (max(goal_s, 2 * start_s, 2 * resume_s) for goal_s in self.goals_s(bitrate_bps))
        return self._player(start_s, resume_s, segment_s, *goals_s)

    def _player(self, start_s: float, resume_s: float, segment_s: float, goal_s: float, top_goal_s: float) -> Player:
        goal_s, top_goal_s, resume_s = (max(each, segment_s) for each in (goal_s, top_goal_s, resume_s))
        limits = (self.pause_s, self.timeout_s)
        return Player(start_s, resume_s, goal_s, segment_s, self.rule, top_goal_s, *limits)


ROUNDING_S = 0.1


def _dash_js(player: Player) -> str:
    buffer = {
        "initialBufferLevel": _start_s(player),
        "bufferTimeDefault": _seconds(player.goal_s),
        "bufferTimeAtTopQuality": _seconds(player.full_s),
        "bufferTimeAtTopQualityLongForm": _seconds(player.full_s),
    }
    return f"player.updateSettings({json.dumps({'streaming': {'buffer': buffer}}, indent=2)});"


def _shaka(player: Player) -> str:
    streaming = {"rebufferingGoal": _start_s(player), "bufferingGoal": _seconds(player.goal_s)}
    return f"player.configure({json.dumps({'streaming': streaming}, indent=2)});"


def _media3(player: Player) -> str:
    goal_ms, start_ms, resume_ms = (round(1000 * each) for each in (player.goal_s, _start_s(player), player.again_s))
    builder = f"DefaultLoadControl.Builder().setBufferDurationsMs({goal_ms}, {goal_ms}, {start_ms}, {resume_ms})"
    return f"@OptIn(UnstableApi::class)\nval loadControl = {builder}.build()"


def _hls_js(player: Player) -> str:
    return (
        f"const hls = new Hls({{ maxBufferLength: {player.goal_s:g}, maxBufferSize: 0, startFragPrefetch: true }});\n"
        "hls.on(Hls.Events.FRAG_BUFFERED, () => {  // with <video> not set to autoplay\n"
        "  const { buffered, currentTime, paused } = hls.media;\n"
        f"  if (paused && currentTime === 0 && buffered.length && buffered.end(0) >= {_start_s(player):g})"
        " hls.media.play();\n});"
    )


def _avplayer(player: Player) -> str:
    return (
        "player.automaticallyWaitsToMinimizeStalling = false\n"
        f"item.preferredForwardBufferDuration = {player.goal_s:g}\n"
        f"// observe item.loadedTimeRanges: player.playImmediately(atRate: 1) when {_start_s(player):g} s are ahead,\n"
        "// at the start and after every AVPlayerItemPlaybackStalled"
    )


def _start_s(player: Player) -> float:
    """The threshold, a little less if it is some whole segments: a player that rounds would wait for one more."""
    is_whole = player.segment_s > 0 and player.start_s > 0 and player.start_s % player.segment_s == 0
    return _seconds(player.start_s - ROUNDING_S * is_whole)


def _seconds(value: float) -> float:
    return round(value, 3)


def _fixed(goal_s: float, top_goal_s: float | None = None) -> Callable[[float], tuple[float, float]]:
    return lambda _: (goal_s, goal_s if top_goal_s is None else top_goal_s)


def _sixty_megabytes(bitrate_bps: float) -> tuple[float, float]:
    goal_s = min(max(30.0, 8 * 60e6 / bitrate_bps), 600.0)
    return goal_s, goal_s


def _one_segment(_: float, segment_s: float) -> float:
    return segment_s


def _as_start(start_s: float, _: float) -> float:
    return start_s


# dash.js: initialBufferLevel holds at the start only; after a stall it plays on with the next segment. Its goal is
# higher at the highest bitrate (60 s from ten minutes of video on). hls.js: no threshold, the browser plays on with the
# next segment; its goal is maxBufferLength or maxBufferSize, whichever is more, and 600 s at most: the setting below
# takes the size out. AVPlayer: its own rules are not published. Media3 (DefaultLoadControl) was read at commit 01836e6.
PROFILES = {
    "dash.js": PlayerProfile("5.2.1", 0.0, _fixed(18.0, 30.0), _one_segment, "dynamic", _dash_js, 0.3, 20.0),
    "shaka": PlayerProfile("5.2.12", 0.0, _fixed(10.0), _as_start, "throughput", _shaka, 0.5, 30.0),
    "media3": PlayerProfile("1.x, commit 01836e6", 1.0, _fixed(50.0), lambda _, __: 2.0, "throughput", _media3),
    "hls.js": PlayerProfile("1.7.4", 0.0, _sixty_megabytes, _one_segment, "throughput", _hls_js, 0.0, 120.0),
    "avplayer": PlayerProfile("rules not published", 0.0, _fixed(30.0), _as_start, "throughput", _avplayer),
}
