"""Real players in a real browser against the replay of a log: `python -m benchmarks.streaming browsers --logs FOLDER`.

Logs are scaled to 1.1 times the bitrate of a clip. Each is the rate of a link over which dash.js, Shaka and hls.js in
turn play the clip in Chromium, with start thresholds from 1 to 20 s and buffer goals from 10 to 50 s, from a moment of
the log at which the replay has about eight seconds of stalls, also if the link is 2 % slower or quicker: elsewhere one
segment more or less decides about five seconds, and HTTP headers or a late timer decide about the segment. The time in
stalls is what the video took longer than it is, also in pauses that are too short to count as a stall.
`scripts/browser-lab` fetches what this needs. With `--cmcd FILE` the requests of the first dash.js run are kept.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.streaming.advice import sample_of_logs
from benchmarks.support.dated import options_of, publish, versions
from support.browser import PLAYERS, BrowserTools, Clip, NoBrowserReport, encode_clip, find_tools, watch
from takeup.core.arrays import Floats
from takeup.core.report import Check, Column, Report, Table
from takeup.streaming.advice.players import PROFILES
from takeup.streaming.model import Player
from takeup.streaming.simulate.replay import SteadyLog
from takeup.streaming.traces import read_log

BITRATE_BPS, SEGMENT_S, LENGTH_S, SPEED = 400e3, 2.0, 40.0, 1.1
USUAL_STALL_S, NEARLY = 8.0, 0.02
SETTINGS = (  # start, goal
    (1.0, 10.0),
    (2.0, 20.0),
    (4.0, 30.0),
    (8.0, 20.0),
    (12.0, 50.0),
    (6.0, 15.0),
    (20.0, 50.0),
    (16.0, 40.0),
    (3.0, 10.0),
    (10.0, 25.0),
)
LEAST_SHARE = 0.02  # of the bitrate: no player waits long for a link that stands still
LIMIT_S, LEAST_S, BAR = 400.0, 2.0, 0.1


def runs(
    tools: BrowserTools, clip: Clip, folder: Path, num_logs: int, cmcd: Path | None
) -> Iterator[tuple[str | float, ...]]:
    """One row for every log: the players and settings take turns."""
    for number, path in enumerate(sample_of_logs(folder, num_logs)):
        name, (start_s, goal_s) = list(PLAYERS)[number % 3], SETTINGS[number % len(SETTINGS)]
        rates = np.concatenate(read_log(path).per_second())
        rates = np.maximum(rates / rates.mean() * SPEED, LEAST_SHARE) * BITRATE_BPS
        player = PROFILES[name].with_start(start_s, SEGMENT_S, BITRATE_BPS)
        player = replace(player, goal_s=goal_s, top_goal_s=goal_s)
        steady = SteadyLog(np.ones(len(rates)), rates)
        outcomes = steady.outcomes(player, BITRATE_BPS, 1e12, length_s=LENGTH_S)
        place = stable_moment(steady, player, outcomes)
        told, rates = outcomes[place], np.roll(rates, -int(steady.begins()[place]))
        try:
            played = watch(tools, clip, name, player, np.resize(rates, 600).tolist(), LIMIT_S)
            seen, requests = asyncio.run(played)
        except NoBrowserReport:
            continue
        if cmcd is not None and name == "dash.js" and not cmcd.exists():
            cmcd.write_text("".join(f'"GET {request} HTTP/1.1" 200\n' for request in requests))
        stalls = (float(told[1]), float(seen.num_stalls), float(told[2]), seen.stall_s)
        yield (path.name, name, start_s, goal_s, *stalls, float(told[3]), seen.startup_s)


def stable_moment(steady: SteadyLog, player: Player, outcomes: Floats) -> int:
    """The session with about eight seconds in stalls that a slightly slower or quicker link changes least."""
    changed = [steady.outcomes(player, BITRATE_BPS, 1e12, scale, LENGTH_S)[:, 2] for scale in (1 - NEARLY, 1 + NEARLY)]
    change = np.abs(np.array(changed) - outcomes[:, 2]).max(axis=0)
    return int(np.argmin(np.abs(outcomes[:, 2] - USUAL_STALL_S) + change))


def measure(folder: Path, num_logs: int, cmcd: Path | None) -> Report:
    """The table of all runs and the differences of their seconds in stalls."""
    tools = find_tools()
    clip = encode_clip(tools, LENGTH_S, BITRATE_BPS, SEGMENT_S)
    rows = tuple(runs(tools, clip, folder, num_logs, cmcd))
    told, seen = (np.array([float(str(row[place])) for row in rows]) for place in (6, 7))
    errors = np.abs(seen - told) / np.maximum(told, LEAST_S)
    columns = (
        *(Column(name) for name in ("log", "player")),
        *(Column(name, "s", 0) for name in ("start at", "goal")),
        *(Column(name, digits=0) for name in ("stalls, replay", "stalls, browser")),
        *(
            Column(name, "s", 2)
            for name in ("in stalls, replay", "in stalls, browser", "start-up, replay", "start-up, browser")
        ),
    )
    checks = (
        Check.at_most("seconds in stalls, all runs together", abs(float(seen.sum() / told.sum()) - 1), BAR),
        Check.at_most("largest difference of a run, of its seconds in stalls (at least 2)", float(errors.max()), BAR),
        Check.at_least("runs that ended", float(len(rows)), float(num_logs)),
    )
    players = ", ".join(f"{name} {PROFILES[name].version}" for name in PLAYERS)
    return Report(
        title="Streaming: players in a browser and the replay",
        domain="streaming",
        scenario={"command": "python -m benchmarks.streaming browsers --logs FOLDER"},
        seed=0,
        tables=(Table("Seconds in stalls and start-up", columns, rows),),
        checks=checks,
        notes=(f"Versions: {versions(('takeup', 'numpy', 'numba'))}; {players}.",),
    )


def main() -> int:
    parser: argparse.ArgumentParser = options_of(__doc__)
    parser.add_argument("--logs", type=Path, metavar="FOLDER", required=True, help="folders of throughput logs")
    parser.add_argument("--num-logs", type=int, default=20, help="how many of them")
    parser.add_argument("--cmcd", type=Path, metavar="FILE", help="keep the requests of a dash.js run")
    options = parser.parse_args()
    return publish(measure(options.logs, options.num_logs, options.cmcd), "streaming-browsers", options)
