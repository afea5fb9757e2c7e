"""Live streaming: the curve of latency against stalls on a log, and settings for the least latency that is enough."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from takeup.core.report import Column, Report, Table
from takeup.streaming.advice.tuning import StallTarget
from takeup.streaming.experiment.logs import log_of, log_warnings, steady_log
from takeup.streaming.experiment.scenario import StreamingScenario, scenario_report
from takeup.streaming.report import Curve, curve_series

if TYPE_CHECKING:
    from takeup.streaming.simulate.replay import SteadyLog

COLUMNS = (
    Column("target latency", "s", 1),
    *(Column(name, digits=4) for name in ("P(stall)", "from", "to", "stalls")),
    *(Column(name, "s", 2) for name in ("in stalls", "start-up", "mean latency", "skipped")),
)


def live(scenario: StreamingScenario, quiet: bool) -> Report:
    """What viewers experience at every target latency, and settings for the least one that meets the stall target."""
    target = StallTarget(scenario.stall_target).stall_probability
    log = log_of(scenario)
    steady = steady_log(log, scenario)
    rows = [_row(latency_s, steady, scenario) for latency_s in scenario.latencies_s]
    enough = [latency_s for latency_s, chance, *_ in rows if chance <= target]
    verdict = f"no latency of the list has P(stall) of {target:g} or less; add capacity or lower the bitrate"
    if enough:
        verdict = f"least latency with P(stall) of {target:g} or less: {min(enough):g} s"
    curve = Curve("P(stall)", [row[0] for row in rows], [row[1] for row in rows])
    chart = curve_series("P(stall) by latency", "target latency", "P(stall)", [curve])
    notes = (f"read as {log.form}", *log_warnings(log), verdict)
    tables = (_curve_table(rows, scenario), *(_settings(each, scenario.catch_up) for each in sorted(enough)[:1]))
    return scenario_report(scenario, f"Streaming: live over {log.name}", *tables, chart, notes=notes)


def _row(latency_s: float, steady: SteadyLog, scenario: StreamingScenario) -> tuple[float, ...]:
    from takeup.streaming.simulate.live import LivePlayer, live_intervals

    player = LivePlayer(latency_s, scenario.chunk_s, scenario.catch_up)
    found = live_intervals(steady, player, scenario.bitrate_bps, scenario.mean_video_s[0])
    stalls = found["stall_probability"]
    names = ("num_stalls", "stall_s", "startup_s", "latency_s", "skipped_s")
    return (latency_s, stalls.value, stalls.low, stalls.high, *(found[name].value for name in names))


def _curve_table(rows: list[tuple[float, ...]], scenario: StreamingScenario) -> Table:
    note = (
        f"sessions of {scenario.mean_video_s[0]:g} s on average, chunks of {scenario.chunk_s:g} s, catch-up at "
        f"{1 + scenario.catch_up:g}; 'from', 'to': 90 % interval for the next log of this link"
    )
    return Table("Latency against stalls", COLUMNS, tuple(rows), note)


def _settings(latency_s: float, catch_up: float) -> Table:
    dash = {
        "buffer": {"initialBufferLevel": latency_s / 2},
        "delay": {"liveDelay": latency_s},
        "liveCatchup": {"enabled": True, "playbackRate": {"min": 0, "max": catch_up}},
    }
    shaka = {
        "rebufferingGoal": latency_s / 2,
        "liveSync": {"enabled": True, "targetLatency": latency_s, "maxPlaybackRate": 1 + catch_up},
    }
    hls = {"lowLatencyMode": True, "liveSyncDuration": latency_s, "maxLiveSyncPlaybackRate": 1 + catch_up}
    rows = (
        ("dash.js", f"player.updateSettings({json.dumps({'streaming': dash})});"),
        ("shaka", f"player.configure({json.dumps({'streaming': shaka})});"),
        ("hls.js", f"new Hls({json.dumps(hls)});"),
        (
            "media3",
            f"MediaItem.LiveConfiguration.Builder().setTargetOffsetMs({round(1000 * latency_s)})"
            f".setMaxPlaybackSpeed({1 + catch_up:g}f).build()",
        ),
    )
    return Table(f"Settings for {latency_s:g} s", (Column("player"), Column("configuration")), rows)
