"""The command-line interface of streaming: parse options, call the experiment, print the report."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from takeup.errors import BadInput
from takeup.output import output_options, show

Command = TypeVar("Command", bound=Callable[..., Any])
CHARTS = Path("takeup-out")
RATE = re.compile(r"(?P<number>[0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*(?P<prefix>[kmg]?)(?:bit(?:/s)?|bps)?", re.IGNORECASE)
FACTORS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}

# Options by their names, the last one shown first.
CELL_OPTIONS: dict[str, dict[str, Any]] = {
    "--seed": {"default": 1, "show_default": True, "help": "Seed of what is drawn."},
    "--give-up give_up_per_s": {"default": 0.0, "help": "Rate per second at which waiting viewers leave."},
    "--resume resume_s": {"type": float, "help": "Seconds of video to resume at; as --start if absent."},
    "--goal goal_s": {"type": float, "help": "Seconds of video at which the download pauses; never if absent."},
    "--start start_s": {"default": "5", "show_default": True, "help": "Seconds of video to start at; a list sweeps."},
    "--variation": {"default": 0.0, "help": "Coefficient of variation of the size of a second of video."},
    "--opportunistic": {"is_flag": True, "help": "Serve the user with the best channel."},
    "--view-shares": {"default": "1", "show_default": True, "help": "Shares of the classes of videos."},
    "--mean-video-s": {"default": "60", "show_default": True, "help": "Mean length of a video; a list for classes."},
    "--max-users": {"default": 10, "show_default": True, "help": "Users admitted at a time."},
    "--arrivals arrivals_per_s": {"default": "0.12", "show_default": True, "help": "Videos per second; a list sweeps."},
    "--bitrate bitrate_bps": {"default": "360kbit", "show_default": True, "help": "Of the video, such as 2.5Mbit."},
    "--capacity capacity_bps": {"help": "Of the cell, such as 30Mbit; the fitted mean if absent, else 2.8Mbit."},
    "--log": {"help": "A throughput log to take the variation of the capacity from."},
}


def cell_options(command: Command) -> Command:
    """Add the options that describe the cell and its traffic."""
    for name, settings in CELL_OPTIONS.items():
        command = click.option(*name.split(), **settings)(command)
    return command


def _report(verb: Any, *, quiet: bool, **settings: Any) -> Any:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # more threads only slow small matrices down
    from takeup.streaming.experiment import StreamingScenario, run

    for key in ("arrivals_per_s", "start_s", "mean_video_s", "view_shares", "latencies_s"):
        if key in settings:
            settings[key] = tuple(_numbers(key, settings[key]))
    if "bitrates_bps" in settings:
        settings["bitrates_bps"] = tuple(_bits(part) for part in settings["bitrates_bps"].split(","))
        settings["bitrate_bps"] = settings["bitrates_bps"][-1]
    for key in ("capacity_bps",) if "bitrates_bps" in settings else ("capacity_bps", "bitrate_bps"):
        if settings.get(key) is not None:
            settings[key] = _bits(settings[key])
    return run(StreamingScenario(verb=verb, **settings), quiet=quiet)


def _numbers(key: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise BadInput(f"{key} is {text!r}; give a number, or several separated by commas") from error


def _bits(text: str) -> float:
    """`2.5Mbit` and `360kbit` as bit/s; a plain number is bit/s already."""
    found = RATE.fullmatch(text.strip())
    if found is None:
        raise BadInput(f"{text!r} is not a rate; write bit/s with a unit such as '2.5Mbit' or '360kbit'")
    return float(found["number"]) * FACTORS[found["prefix"].lower()]


@click.group()
def streaming() -> None:
    """Compute start-up delay and stalls of video in a shared cell, exactly, from equations.

    Buffers and thresholds are in seconds of video. Rates are written '2.5Mbit' or '360kbit'.
    """


@streaming.command()
@cell_options
@output_options
def predict(as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Predict start-up delay, stalls, blocking and score; lists of arrivals and thresholds give a sweep."""
    show(_report("predict", quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@streaming.command()
@click.option(
    "--stall-cost", default=10.0, show_default=True, help="Cost of a second in stalls; a second of start-up costs 1."
)
@cell_options
@output_options
def optimise(as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Find the best start threshold, with settings for dash.js, Shaka and Media3."""
    show(_report("optimise", quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@streaming.command()
@click.option("--stall-target", default=0.05, show_default=True, help="Share of videos that may stall.")
@cell_options
@output_options
def size(as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Find how many arrivals, how little capacity and how many users meet a stall target."""
    show(_report("size", quiet=quiet, **settings), as_json=as_json, out=out)


@streaming.command()
@click.argument("log")
@output_options
def fit(log: str, as_json: bool, out: Path | None, quiet: bool) -> None:
    """Fit a model of the link to the throughput LOG, and say how well it describes the log."""
    show(_report("fit", quiet=quiet, log=log), as_json=as_json, out=out, charts=CHARTS)


@streaming.command()
@click.argument("logs", nargs=-1, required=True)
@click.option("--bitrate", "bitrates_bps", required=True, help="Of the video, such as 2.5Mbit; a list is a ladder.")
@click.option(
    "--rule", help="How a bitrate is chosen: throughput, bola, bba or dynamic; that of each player if absent."
)
@click.option(
    "--capacity", "capacity_bps", help="Mean rate that you expect, such as 3Mbit; that of the logs if absent."
)
@click.option("--players", default="dash.js,shaka,media3,hls.js,avplayer", show_default=True, help="Comma-separated.")
@click.option("--segment-s", default=4.0, show_default=True, help="Seconds of video in a segment.")
@click.option("--mean-video-s", default="60", show_default=True, help="Mean length of a video.")
@click.option(
    "--stall-cost", default=10.0, show_default=True, help="Seconds of start-up that a second in stalls costs."
)
@click.option("--p1203", is_flag=True, help="Also score by ITU-T P.1203; needs the package itu_p1203.")
@output_options
def advise(players: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Replay throughput LOGS with the rules of real players, and choose their start thresholds.

    A log is recognised by its content: tables, Sabre, Pensieve, Mahimahi, Puffer, CMCD query strings or JSON.
    """
    names = tuple(players.split(","))
    show(_report("advise", quiet=quiet, players=names, **settings), as_json=as_json, out=out, charts=CHARTS)


@streaming.command()
@click.argument("logs", nargs=-1, required=True)
@click.option("--bitrate", "bitrate_bps", required=True, help="Of the stream, such as 2.5Mbit.")
@click.option("--capacity", "capacity_bps", help="Mean rate that you expect; that of the logs if absent.")
@click.option("--latencies", "latencies_s", default="1,2,3,4,5,6,8,10,15", show_default=True, help="Seconds.")
@click.option("--chunk-s", default=0.5, show_default=True, help="Seconds in a chunk or part of the stream.")
@click.option("--catch-up", default=0.05, show_default=True, help="How much faster than 1 the player may play.")
@click.option("--mean-video-s", default="600", show_default=True, help="Mean length of a session.")
@click.option("--stall-target", default=0.05, show_default=True, help="Share of sessions that may stall.")
@output_options
def live(as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Find the least latency of a live stream that keeps a stall target on throughput LOGS, with settings."""
    show(_report("live", quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@streaming.command()
@click.argument("simulators", default="tagged,cell")
@click.option("--num-videos", type=int, help="Videos to play; a few seconds' worth if absent.")
@cell_options
@output_options
def simulate(simulators: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Simulate random videos in SIMULATORS (comma-separated): tagged, cell or slots."""
    show(
        _report("simulate", quiet=quiet, simulators=tuple(simulators.split(",")), **settings), as_json=as_json, out=out
    )


@streaming.command()
@click.argument("simulators", default="tagged,cell")
@click.option("--num-videos", type=int, help="Videos to play; a few seconds' worth if absent.")
@cell_options
@output_options
def compare(simulators: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Compare the equations with SIMULATORS, with z-scores."""
    show(_report("compare", quiet=quiet, simulators=tuple(simulators.split(",")), **settings), as_json=as_json, out=out)
