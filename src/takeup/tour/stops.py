"""The nine systems of the tour, as `stops.toml` has them: problem, scenario, number shown, where the system loses."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

GUIDES = "https://github.com/takeup-project/takeup/blob/main/docs/guides"


@dataclass(frozen=True, slots=True)
class Measure:
    """Which rows and column of a report are shown: ours, and the alternatives compared with it.

    `what` says what the number is; values are multiplied by `scale` and shown with `digits` decimals and `unit`.
    """

    what: str
    ours: str
    column: str
    unit: str
    label: str = "policy"
    table: int = 0
    where: Mapping[str, Any] = field(default_factory=dict)
    more_is_better: bool = False
    scale: float = 1.0
    digits: int = 0


@dataclass(frozen=True, slots=True)
class TourStop:
    """One system: its problem in at most seven words, what is run and shown, and the line that puts it to use."""

    system: str
    problem: str
    scenario: Mapping[str, Any]
    measure: Measure
    why: str
    command: str
    guide: str


def stop_of(system: str, values: dict[str, Any]) -> TourStop:
    """A stop from its entry in `stops.toml`; logs lie in the package."""
    scenario, measure = values.pop("scenario"), Measure(**values.pop("measure"))
    if "logs" in scenario:
        scenario["logs"] = [str(PACKAGE / log) for log in scenario["logs"]]
    return TourStop(system, scenario=scenario, measure=measure, **values)


PACKAGE = files("takeup")
ENTRIES = tomllib.loads((PACKAGE / "tour" / "stops.toml").read_text("utf-8"))
STOPS = tuple(stop_of(system, values) for system, values in ENTRIES.items())
