"""The nine systems of the tour, as `stops.toml` has them: problem, scenario, number shown, where the system loses."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from takeup.core.file_kinds import rows_of
from takeup.core.report import Report

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


@dataclass(frozen=True, slots=True)
class Shown:
    """The numbers of a stop by label, in the order of the report; each is shown with the decimals and the unit."""

    stop: TourStop
    values: dict[str, float]

    @property
    def best(self) -> str:
        """The label of the best alternative; the first of those that are equal."""
        others = [label for label in self.values if label != self.stop.measure.ours]
        sign = -1 if self.stop.measure.more_is_better else 1
        return min(others, key=lambda label: sign * self.values[label])

    def text(self, label: str) -> str:
        """A number with its decimals and its unit."""
        return f"{self.values[label]:,.{self.stop.measure.digits}f}{self.stop.measure.unit}"


def shown_of(stop: TourStop, report: Report) -> Shown:
    """The numbers that the measure of a stop names in its report."""
    measure = stop.measure
    rows = [row for row in rows_of(report, measure.table) if _matches(row, measure.where)]
    values = {str(row[measure.label]): measure.scale * float(row[measure.column]) for row in rows}
    assert measure.ours in values, f"{report.title} has no row for {measure.ours!r}"
    return Shown(stop, values)


def _matches(row: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    """Whether the row is shown; sizes of a cache are whole per cent up to rounding."""
    cells = {name: row[name] for name in where}
    return all(
        round(cell, 3) == where[name] if isinstance(cell, float) else cell == where[name]
        for name, cell in cells.items()
    )


def stop_of(system: str, values: dict[str, Any]) -> TourStop:
    """A stop from its entry in `stops.toml`; logs lie in the package."""
    scenario, measure = values.pop("scenario"), Measure(**values.pop("measure"))
    if "logs" in scenario:
        scenario["logs"] = [str(PACKAGE / log) for log in scenario["logs"]]
    return TourStop(system, scenario=scenario, measure=measure, **values)


PACKAGE = files("takeup")
ENTRIES = tomllib.loads((PACKAGE / "tour" / "stops.toml").read_text("utf-8"))
STOPS = tuple(stop_of(system, values) for system, values in ENTRIES.items())
