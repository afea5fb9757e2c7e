"""The result of a run: tables, series and checks as plain data with units, saved as JSON.

How it works: a `Report` is a tree of frozen dataclasses. Writing walks the tree down to plain JSON values; reading
walks the type annotations of the same dataclasses, so that a file and the code cannot drift apart. The order of keys is
fixed (fields as declared, free mappings sorted), so equal reports are equal bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, TypeAlias, get_args, get_origin, get_type_hints

from takeup.core.extras import need
from takeup.core.files import write_atomically
from takeup.errors import BadInput, MissingEngine

SCHEMA_VERSION = 1
Cell: TypeAlias = str | int | float | bool | None
Source: TypeAlias = Literal["paper", "unverified", "bar", "measured"]
Exercises: TypeAlias = Literal["product", "simulation", "arithmetic", "restated"]


@dataclass(frozen=True, slots=True)
class Column:
    """The heading of a table column, with the unit of its numbers and the decimals worth showing."""

    name: str
    unit: str = ""
    digits: int = 3

    def __post_init__(self) -> None:
        if not 0 <= self.digits <= 15:
            raise BadInput(f"column {self.name!r}: digits is {self.digits}; show between 0 and 15 decimals")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under typed columns."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise BadInput(
                    f"table {self.title!r}: row {number} has {len(row)} cells for {len(self.columns)} columns; "
                    "give every row one cell per column"
                )


@dataclass(frozen=True, slots=True)
class Series:
    """Long-form data of one chart; `x`, `y`, `colour` and `facet` name keys of the rows.

    A chart of spans has lanes: `y` is the name of a lane, a span in it lasts from `x` to `x_end`, and `mark` names an
    additional point in time, such as the deadline of the span.
    """

    title: str
    x: str
    y: str
    rows: tuple[Mapping[str, Cell], ...]
    colour: str | None = None
    facet: str | None = None
    x_unit: str = ""
    y_unit: str = ""
    kind: Literal["line", "bar", "point", "step", "span"] = "line"
    note: str = ""
    x_end: str | None = None
    mark: str | None = None

    def __post_init__(self) -> None:
        if (self.kind == "span") != (self.x_end is not None) or (self.mark is not None and self.kind != "span"):
            raise BadInput(f"series {self.title!r}: spans need 'x_end' and may have a 'mark', other kinds have neither")
        keys = (self.x, self.x_end, self.mark, self.y, self.colour, self.facet)
        wanted = [key for key in keys if key is not None]
        for number, row in enumerate(self.rows):
            for key in wanted:
                if key not in row:
                    found = ", ".join(row)
                    raise BadInput(f"series {self.title!r}: row {number} has no key {key!r}; it has only: {found}")


@dataclass(frozen=True, slots=True)
class Check:
    """One measured number compared with its expected value.

    `source` says where the expected number comes from: printed in the paper, recalled but unverified, a target we set,
    or an independent measurement. `tolerance` is absolute, in the unit of the numbers. `exercises` says what computed
    ours: code of the product, its decisions in one of our simulators, arithmetic on the paper's own numbers, or a
    generator that is compared with the table it was built from. Only the first two count.
    """

    name: str
    ours: float | str | None
    expected: float | str | None
    unit: str
    holds: bool
    source: Source
    tolerance: float | None
    why: str = ""
    relation: Literal["near", "at least", "at most"] = "near"
    exercises: Exercises = "product"

    @property
    def counts(self) -> bool:
        """Whether this check counts for `Report.holds` and in "N of M"."""
        return self.source != "unverified" and self.exercises in {"product", "simulation"}

    @classmethod
    def near(
        cls,
        name: str,
        ours: float | None,
        expected: float,
        tolerance: float,
        *,
        unit: str = "",
        source: Source = "paper",
        why: str = "",
    ) -> Check:
        """Holds when `ours` is at most `tolerance` away from `expected`, on either side."""
        holds = ours is not None and abs(ours - expected) <= tolerance
        return cls(name, ours, expected, unit, holds, source, tolerance, why)

    @classmethod
    def at_least(
        cls, name: str, ours: float | None, expected: float, *, unit: str = "", source: Source = "bar", why: str = ""
    ) -> Check:
        """Holds when `ours` is `expected` or more."""
        holds = ours is not None and ours >= expected
        return cls(name, ours, expected, unit, holds, source, None, why, "at least")

    @classmethod
    def at_most(
        cls, name: str, ours: float | None, expected: float, *, unit: str = "", source: Source = "bar", why: str = ""
    ) -> Check:
        """Holds when `ours` is `expected` or less."""
        holds = ours is not None and ours <= expected
        return cls(name, ours, expected, unit, holds, source, None, why, "at most")


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one run, with the scenario and seed that reproduce it."""

    title: str
    domain: str
    scenario: Mapping[str, object]
    seed: int
    tables: tuple[Table, ...] = ()
    series: tuple[Series, ...] = ()
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    version: str = ""
    created: str = ""
    machine: str = ""

    @property
    def holds(self) -> bool:
        """Whether every check against a verified number holds."""
        return all(check.holds for check in self.checks if check.counts)

    def to_json(self) -> str:
        """The report as JSON text with a fixed order of keys; numbers that are not finite are refused."""
        return json.dumps({"schema_version": SCHEMA_VERSION} | _plain(self, "report"), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Read what `to_json` wrote; sequences inside `scenario` come back as lists."""
        report = _decode(cls, _checked_schema(text), "report")
        assert isinstance(report, Report)
        return report

    def _repr_html_(self) -> str:
        """What a notebook shows: the checks, the first chart and the tables."""
        from takeup.core.render.html import notebook_html

        return notebook_html(self)

    def to_arrow(self, number: int = 0) -> Any:
        """A table of the report as a table of pyarrow; names of columns carry their unit, as in `time (s)`."""
        need("a table of Arrow", "traces")
        import pyarrow as pa

        return pa.table(self._columns_of(number))

    def to_pandas(self, number: int = 0) -> Any:
        """A table of the report as a DataFrame of pandas; names of columns carry their unit, as in `time (s)`."""
        try:
            pandas = import_module("pandas")
        except ModuleNotFoundError as error:
            raise MissingEngine("a DataFrame needs the package 'pandas'; run pip install pandas") from error
        return pandas.DataFrame(self._columns_of(number))

    def _columns_of(self, number: int) -> dict[str, list[Cell]]:
        """The cells of a table by column; a name that is there twice gets a number."""
        if not 0 <= number < len(self.tables):
            raise BadInput(f"{self.title!r} has no table {number}; it has {len(self.tables)}, counted from 0")
        columns: dict[str, list[Cell]] = {}
        for place, column in enumerate(self.tables[number].columns):
            name = f"{column.name} ({column.unit})" if column.unit else column.name
            columns[f"{name} {place}" if name in columns else name] = [row[place] for row in self.tables[number].rows]
        return columns

    def save(self, path: Path) -> None:
        """Write the report to `path` atomically."""
        write_atomically(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Report:
        """Read a report from `path`."""
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            reason = error.strerror or str(error)
            raise BadInput(f"cannot read report {path}: {reason}; give the path of a report.json") from error
        except UnicodeDecodeError as error:
            raise BadInput(f"{path}: this is not a text file; give the path of a report.json") from error
        try:
            return cls.from_json(text)
        except BadInput as error:
            raise BadInput(f"{path}: {error}") from error


class Reported:
    """A result of the library. It shows itself as the report that `report_of`, a public name of its domain, makes."""

    __slots__ = ()

    def report(self) -> Report:
        """The result as tables and charts; its scenario is empty, because no command made it."""
        domain = import_module(".".join(type(self).__module__.split(".")[:2]))
        report = domain.report_of(self)
        assert isinstance(report, Report)
        return report

    def _repr_html_(self) -> str:
        """What a notebook shows: the first chart and the tables."""
        return self.report()._repr_html_()

    def to_arrow(self, number: int = 0) -> Any:
        """A table of the report, as a table of pyarrow."""
        return self.report().to_arrow(number)

    def to_pandas(self, number: int = 0) -> Any:
        """A table of the report, as a DataFrame of pandas."""
        return self.report().to_pandas(number)


def _plain(value: object, where: str) -> Any:
    """`value` as plain JSON types; `where` is its path for error messages."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name), f"{where}.{field.name}") for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(value[key], f"{where}.{key}") for key in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise BadInput(f"{where}: {value} cannot be written as JSON; use None where there is no number")
    if value is None or isinstance(value, str | int | float):
        return value
    if hasattr(value, "item"):  # a numpy scalar
        return _plain(value.item(), where)
    raise BadInput(f"{where}: a {type(value).__name__} cannot be written as JSON; use text, numbers, lists or mappings")


def _checked_schema(text: str) -> dict[str, Any]:
    """The fields of a report in `text`, once it is known to be a report of a schema we can read."""
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"this is not JSON ({error}); give a report written by takeup") from error
    if not isinstance(data, dict) or "schema_version" not in data:
        raise BadInput("this is not a report, there is no 'schema_version'; give a report written by takeup")
    schema = data.pop("schema_version")
    if type(schema) is not int or schema < 1:
        _refuse(schema, f"a whole number such as {SCHEMA_VERSION}", "schema_version")
    if schema > SCHEMA_VERSION:
        raise BadInput(
            f"the schema_version {schema} is newer than {SCHEMA_VERSION}, the last one known; upgrade takeup"
        )
    return data


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number JSON knows")


def _decode(hint: Any, value: Any, where: str) -> Any:
    """`value` from JSON as the annotated type `hint`; the first mismatch is refused by name."""
    origin, arguments = get_origin(hint), get_args(hint)
    if is_dataclass(hint):
        return _decode_fields(hint, value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_decode(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is Mapping and isinstance(value, dict):
        return {key: _decode(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin is Literal:
        return value if value in arguments else _refuse(value, " or ".join(map(repr, arguments)), where)
    if hint is object:
        return value
    allowed = arguments if origin is UnionType else (hint,)
    finite = not isinstance(value, float) or math.isfinite(value)
    whole_as_float = type(value) is int and float in allowed
    return value if finite and (type(value) in allowed or whole_as_float) else _refuse(value, _name(hint), where)


def _decode_fields(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        _refuse(value, f"a mapping with the keys of a {kind.__name__.lower()}", where)
    hints = get_type_hints(kind)
    for key in value:
        if key not in hints:
            raise BadInput(f"{where}: unknown key {key!r}; expected {', '.join(hints)}")
    for field in fields(kind):
        if field.name not in value and field.default is MISSING:
            raise BadInput(f"{where}: the key {field.name!r} is missing; this file is cut short or was edited")
    decoded = {key: _decode(hints[key], item, f"{where}.{key}") for key, item in value.items()}
    return kind(**decoded)


def _name(hint: Any) -> str:
    words = {str: "text", int: "a whole number", float: "a number", bool: "true or false", NoneType: "null"}
    words |= {tuple: "a list", Mapping: "a mapping"}
    kinds = get_args(hint) if get_origin(hint) is UnionType else (get_origin(hint) or hint,)
    return " or ".join(words[kind] for kind in kinds)


def _refuse(value: object, expected: str, where: str) -> NoReturn:
    found = json.dumps(value)
    raise BadInput(f"{where} is {found if len(found) <= 40 else found[:37] + '...'}, expected {expected}")
