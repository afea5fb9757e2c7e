"""One question about a cell, from the command line or from a file.

The scenario is a plain dataclass, made directly by commands, whose options have their types already. Values from a file
have not, so pydantic checks them first, against the same fields.
"""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

import numpy as np

from takeup.core.report import Report, Series, Table
from takeup.errors import BadInput, BadScenario, UnknownName
from takeup.streaming.model import RULES, CapacityFit, Cell, Player, Views

Numbers = tuple[float, ...]
MOST_LOAD = 5.0  # of a cell, or a bitrate over the mean rate of a log; above it a unit is mistaken
LEAST_BPS = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingScenario:
    """One question about a cell. Rates are in bit/s, times in seconds, buffers in seconds of video."""

    domain: Literal["streaming"] = "streaming"
    verb: Literal["predict", "optimise", "size", "fit", "simulate", "compare", "advise", "live"]
    seed: int = 1
    capacity_bps: float | None = None
    bitrate_bps: float = 360e3
    bitrates_bps: Numbers = ()
    rule: str | None = None
    arrivals_per_s: Numbers = (0.12,)
    max_users: int = 10
    mean_video_s: Numbers = (60.0,)
    view_shares: Numbers = (1.0,)
    opportunistic: bool = False
    variation: float = 0.0
    start_s: Numbers = (5.0,)
    resume_s: float | None = None
    goal_s: float | None = None
    give_up_per_s: float = 0.0
    log: str | None = None
    logs: tuple[str, ...] = ()
    players: tuple[str, ...] = ("dash.js", "shaka", "media3", "hls.js", "avplayer")
    segment_s: float = 4.0
    stall_cost: float = 10.0
    p1203: bool = False
    stall_target: float = 0.05
    latencies_s: Numbers = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0)
    chunk_s: float = 0.5
    catch_up: float = 0.05
    simulators: tuple[str, ...] = ("tagged", "cell")
    num_videos: int | None = None

    def __post_init__(self) -> None:
        if len(self.mean_video_s) != len(self.view_shares):
            raise BadScenario("give as many view_shares as mean_video_s, one for each class of views")
        if not (self.arrivals_per_s and self.start_s and self.simulators):
            raise BadScenario("give at least one arrival rate, one start threshold and one simulator")
        if self.verb != "predict" and (len(self.arrivals_per_s) > 1 or len(self.start_s) > 1):
            raise BadScenario(f"{self.verb!r} takes one arrival rate and one start threshold; 'predict' takes lists")
        if self.goal_s is not None and (self.opportunistic or self.give_up_per_s > 0 or self.variation > 0):
            raise BadScenario("a buffer goal needs plain sharing, one bit rate and viewers that stay; leave goal_s out")
        if self.goal_s is not None and self.log:
            raise BadScenario("a buffer goal on a log is replayed by 'takeup streaming advise'; leave goal_s out")
        if not 0 <= self.give_up_per_s < float("inf"):
            raise BadScenario(f"give_up_per_s is {self.give_up_per_s}; give a rate per second, zero or more")
        if self.give_up_per_s > 0 and (self.verb not in {"predict", "simulate", "compare"} or self.log):
            raise BadScenario("viewers give up in predict, simulate and compare, at a constant capacity; leave it out")
        if not self.players or not 0 < self.segment_s <= 60:
            raise BadScenario(f"segment_s is {self.segment_s}; give seconds above zero, and at least one player")
        if self.rule is not None and self.rule not in RULES:
            raise UnknownName("bitrate rule", self.rule, RULES)
        bitrates = [("bitrate_bps", rate_bps) for rate_bps in (self.bitrate_bps, *self.bitrates_bps)]
        for name, rate_bps in (*bitrates, ("capacity_bps", self.capacity_bps)):
            if rate_bps is not None and 0 < rate_bps < LEAST_BPS:
                raise BadScenario(f"{name} is {rate_bps:g} bit/s; write the unit, such as '2.5Mbit' or '360kbit'")


def checked_scenario(values: Mapping[str, Any], source: str) -> StreamingScenario:
    """The scenario that `values` of any type describe; `source` names the file or report in an error."""
    from pydantic import create_model

    from takeup.core.scenario import Scenario, validate

    hints = get_type_hints(StreamingScenario)
    defaults = {item.name: ... if item.default is MISSING else item.default for item in fields(StreamingScenario)}
    shape: dict[str, Any] = {name: (hints[name], default) for name, default in defaults.items()}
    model = create_model("StreamingScenario", __base__=Scenario, **shape)
    checked = validate(model, values, source)
    try:
        return StreamingScenario(**checked.model_dump())
    except BadScenario as error:
        raise BadScenario(f"{source}: {error}") from error


def scenario_report(
    scenario: StreamingScenario, title: str, *parts: Table | Series, notes: tuple[str, ...] = ()
) -> Report:
    """A report that says which scenario it answers."""
    tables = tuple(part for part in parts if isinstance(part, Table))
    series = tuple(part for part in parts if isinstance(part, Series))
    return Report(title, "streaming", asdict(scenario), scenario.seed, tables, series, notes=notes)


# The cells and players of a scenario ----------------------------------------------------------------------------------


def cells_of(scenario: StreamingScenario, fitted: CapacityFit | None = None) -> list[Cell]:
    """The cell, once for each arrival rate; `fitted` is its capacity if that was fitted already."""
    fitted = fitted_capacity(scenario) if fitted is None else fitted
    mean_bps = fitted.mean_bps if fitted else 2.8e6
    capacity_bps = mean_bps if scenario.capacity_bps is None else scenario.capacity_bps
    views = tuple(
        Views(share, mean_s) for share, mean_s in zip(scenario.view_shares, scenario.mean_video_s, strict=True)
    )
    capacity = fitted.capacity if fitted else None
    bitrate_bps, max_users, best_served = scenario.bitrate_bps, scenario.max_users, scenario.opportunistic
    cells = [
        Cell(capacity_bps, bitrate_bps, arrivals_per_s, max_users, views, best_served, capacity, scenario.variation)
        for arrivals_per_s in scenario.arrivals_per_s
    ]
    for cell in cells:
        if cell.load > MOST_LOAD and scenario.verb != "size":
            raise BadInput(f"the load is {cell.load:g}, more than {MOST_LOAD:g}; check the units of rates and arrivals")
    return cells


def players_of(scenario: StreamingScenario) -> list[Player]:
    """The player, once for each start threshold."""
    goal_s = np.inf if scenario.goal_s is None else scenario.goal_s
    return [Player(start_s, scenario.resume_s, goal_s) for start_s in scenario.start_s]


def fitted_capacity(scenario: StreamingScenario) -> CapacityFit | None:
    """The capacity from the log of a scenario, if it has one."""
    if scenario.log is None:
        return None
    from takeup.streaming.capacity_fit import fit_capacity
    from takeup.streaming.traces import read_log

    return fit_capacity(read_log(Path(scenario.log)).per_second())
