"""Player products: their start, resume and buffer rules with their defaults, and the code that sets them.

dash.js, hls.js and Shaka append whole segments. What each setting means for start and resume differs, so a threshold is
replayed by the rules of the player that it is printed for.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

from takeup.streaming.model import Player


@dataclass(frozen=True, slots=True)
class PlayerProfile:
    """A player product: the version whose documents were read, its defaults, its rules and its settings as code.

    `resumes` says where playback resumes for a start threshold and a segment length, `snippet` prints the code.
    """

    version: str
    default_start_s: float
    default_resume_s: float
    default_goal_s: float
    resumes: Callable[[float, float], float]
    snippet: Callable[[Player], str]

    def default(self, segment_s: float) -> Player:
        """The player as it comes; playback needs one segment at least."""
        start_s, resume_s = (max(each, segment_s) for each in (self.default_start_s, self.default_resume_s))
        return Player(start_s, resume_s, max(self.default_goal_s, segment_s), segment_s)

    def with_start(self, start_s: float, segment_s: float) -> Player:
        """The player that starts at `start_s`: its goal is twice that at least, so that the goal adds no stalls."""
        resume_s = max(self.resumes(start_s, segment_s), segment_s)
        return Player(start_s, resume_s, max(self.default_goal_s, 2 * start_s, 2 * resume_s), segment_s)


def _dash_js(player: Player) -> str:
    buffer = {"initialBufferLevel": _seconds(player.start_s), "bufferTimeDefault": _seconds(player.goal_s)}
    return f"player.updateSettings({json.dumps({'streaming': {'buffer': buffer}}, indent=2)});"


def _shaka(player: Player) -> str:
    streaming = {"rebufferingGoal": _seconds(player.start_s), "bufferingGoal": _seconds(player.goal_s)}
    return f"player.configure({json.dumps({'streaming': streaming}, indent=2)});"


def _media3(player: Player) -> str:
    goal_ms, start_ms, resume_ms = (round(1000 * each) for each in (player.goal_s, player.start_s, player.again_s))
    builder = f"DefaultLoadControl.Builder().setBufferDurationsMs({goal_ms}, {goal_ms}, {start_ms}, {resume_ms})"
    return f"@OptIn(UnstableApi::class)\nval loadControl = {builder}.build()"


def _hls_js(player: Player) -> str:
    return (
        f"const hls = new Hls({{ maxBufferLength: {player.goal_s:g}, startFragPrefetch: true }});\n"
        "hls.on(Hls.Events.FRAG_BUFFERED, () => {  // with <video> not set to autoplay\n"
        "  const { buffered, currentTime, paused } = hls.media;\n"
        f"  if (paused && currentTime === 0 && buffered.length && buffered.end(0) >= {player.start_s:g})"
        " hls.media.play();\n});"
    )


def _avplayer(player: Player) -> str:
    return (
        "player.automaticallyWaitsToMinimizeStalling = false\n"
        f"item.preferredForwardBufferDuration = {player.goal_s:g}\n"
        f"// observe item.loadedTimeRanges: player.playImmediately(atRate: 1) when {player.start_s:g} s are ahead,\n"
        "// at the start and after every AVPlayerItemPlaybackStalled"
    )


def _seconds(value: float) -> float:
    return round(value, 3)


def _one_segment(_: float, segment_s: float) -> float:
    return segment_s


def _as_start(start_s: float, _: float) -> float:
    return start_s


def _two_seconds(_: float, __: float) -> float:
    return 2.0


# dash.js: initialBufferLevel holds at the start only; after a stall it plays on with the next segment (0.3 s do).
# hls.js: has no threshold; the browser plays on with the next segment. AVPlayer: its own rule is not published.
PROFILES = {
    "dash.js": PlayerProfile("5.x", 0.0, 0.0, 18.0, _one_segment, _dash_js),
    "shaka": PlayerProfile("5.x", 0.0, 0.0, 10.0, _as_start, _shaka),
    "media3": PlayerProfile("1.x, 2026", 1.0, 2.0, 50.0, _two_seconds, _media3),
    "hls.js": PlayerProfile("1.x", 0.0, 0.0, 30.0, _one_segment, _hls_js),
    "avplayer": PlayerProfile("rules not published", 0.0, 0.0, 30.0, _as_start, _avplayer),
}
