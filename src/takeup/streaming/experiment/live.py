"""Live streaming: the curve of latency against stalls on a log, and settings for the least latency that is enough."""

import json

from takeup.core.report import Column, Report, Table
from takeup.streaming.advice.tuning import StallTarget
from takeup.streaming.experiment.logs import log_of, log_warnings, steady_log
from takeup.streaming.experiment.scenario import StreamingScenario, scenario_report
from takeup.streaming.report import Curve, curve_series

COLUMNS = (
    Column("target latency", "s", 1),
    *(Column(name, digits=4) for name in ("P(stall)", "from", "to", "stalls")),
    *(Column(name, "s", 2) for name in ("in stalls", "start-up", "mean latency", "skipped")),
)


def live(scenario: StreamingScenario, quiet: bool) -> Report:
    """What viewers experience at every target latency, and settings for the least one that meets the stall target."""
    from takeup.streaming.simulate.live import LivePlayer, live_intervals

    target = StallTarget(scenario.stall_target).stall_probability
    log = log_of(scenario)
    steady, rows = steady_log(log, scenario), []
    for latency_s in scenario.latencies_s:
        player = LivePlayer(latency_s, scenario.chunk_s, scenario.catch_up)
        found = live_intervals(steady, player, scenario.bitrate_bps, scenario.mean_video_s[0])
        stalls = found["stall_probability"]
        means = (found[name].value for name in ("num_stalls", "stall_s", "startup_s", "latency_s", "skipped_s"))
        rows.append((latency_s, stalls.value, stalls.low, stalls.high, *means))
    enough = [row[0] for row in rows if row[1] <= target]
    note = (
        f"sessions of {scenario.mean_video_s[0]:g} s on average, chunks of {scenario.chunk_s:g} s, catch-up at "
        f"{1 + scenario.catch_up:g}; 'from', 'to': 90 % interval for the next log of this link"
    )
    tables = [Table("Latency against stalls", COLUMNS, tuple(rows), note)]
    tables += [_settings(min(enough), scenario.catch_up)] if enough else []
    verdict = (
        f"least latency with P(stall) of {target:g} or less: {min(enough):g} s"
        if enough
        else (f"no latency of the list has P(stall) of {target:g} or less; add capacity or lower the bitrate")
    )
    chart = curve_series(
        "P(stall) by latency",
        "target latency",
        "P(stall)",
        [Curve("P(stall)", [row[0] for row in rows], [row[1] for row in rows])],
    )
    notes = (f"read as {log.form}", *log_warnings(log), verdict)
    return scenario_report(scenario, f"Streaming: live over {log.name}", *tables, chart, notes=notes)


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
