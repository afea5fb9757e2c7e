"""From the cells of a table to a workload: rows that can be used, pools, organisations and nodes, and notes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from takeup.cluster.model import Kind, Workload, fits_pool
from takeup.core.arrays import Bools, Floats, Ints
from takeup.core.limits import LONGEST_S, MOST_COUNT
from takeup.core.seeds import Streams
from takeup.core.trace import TraceColumn, column_names, read_table
from takeup.core.trace.table import find_columns
from takeup.errors import BadInput, BadTrace

# The cells of a trace: which rows can be used, and why the others cannot ----------------------------------------------
#
# How it works. A strict reading refuses the file at the first cell that cannot be used, and names it. Otherwise the
# file is read fast where every number is one; where some are not, cell by cell. Either way a row with a cell that is
# missing, not finite or too small is not used, and the first thing wrong with it is counted.


@dataclass(frozen=True, slots=True)
class Field:
    """A column: a number, a moment (seconds, or a date and time, taken as UTC without a zone), or text.

    Without a default, every row needs it. `above`, `least` and `most` bound numbers.
    """

    name: str
    kind: Literal["number", "moment", "text"] = "number"
    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    default: float | str | None = None

    def problem(self, values: npt.NDArray[Any]) -> tuple[tuple[Bools, str], ...]:
        """Which cells cannot be used, and why."""
        if self.kind == "text":
            return () if self.default is not None else ((values == "", f"{self.name} is missing"),)
        small = (values < self.least) | (values <= self.above)
        bound = f"above {self.above:g}" if self.above > -math.inf else f"at least {self.least:g}"
        return (
            (~np.isfinite(values), f"{self.name} is missing or not a finite number"),
            (small, f"{self.name} is not {bound}"),
            (values > self.most, f"{self.name} is not at most {self.most:g}"),
        )


@dataclass(slots=True)
class TraceRows:
    """Columns of equal length, which rows are used, and why the others are not."""

    path: Path
    columns: dict[str, npt.NDArray[Any]]
    used: Bools
    skipped: dict[str, int] = field(default_factory=dict)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """The used cells of a column."""
        return self.columns[name][self.used]

    def __len__(self) -> int:
        return int(self.used.sum())

    def skip(self, wrong: Bools, reason: str) -> None:
        """Use none of these rows any more; `wrong` has an entry for every row of the file."""
        new = wrong & self.used
        if new.any():
            self.skipped[reason] = self.skipped.get(reason, 0) + int(new.sum())
            self.used = self.used & ~new

    def refuse(self, wrong: Bools, reason: str, column: str) -> None:
        """An error about the first of these rows, if there is one."""
        if (wrong & self.used).any():
            row = int(np.argmax(wrong & self.used))
            found = f"{reason} (found {self.columns[column][row]}); correct the row or read without strict"
            raise _bad_row(self.path, found, row, column)

    def check(self, wrong: Bools, reason: str, column: str, *, strict: bool) -> None:
        if strict:
            self.refuse(wrong, reason, column)
        self.skip(wrong, reason)

    def limit_times(self, names: Iterable[str], unit_s: float, *, strict: bool) -> None:
        """Refuse or skip moments and durations that are a century from the median: hours are counted one by one."""
        for name in names:
            with np.errstate(over="ignore", invalid="ignore"):
                times_s = self.columns[name] * unit_s
                usual_s = np.median(times_s[self.used]) if self.used.any() else 0.0
                wrong = np.abs(times_s - usual_s) > LONGEST_S
            self.check(wrong, f"{name} is a century from the others", name, strict=strict)


def read_fields(path: Path, fields: Sequence[Field], *, strict: bool = False) -> TraceRows:
    """The rows of a table that have all fields."""
    needed = [TraceColumn(each.name, "text") for each in fields if each.default is None]
    find_columns(path, needed, column_names(path))
    columns = _read(path, fields, strict=strict)
    rows = TraceRows(path, columns, np.ones(len(next(iter(columns.values()))), np.bool_))
    for each in fields:
        for wrong, reason in each.problem(columns[each.name]):
            rows.check(wrong, reason, each.name, strict=strict)
    return rows


def _read(path: Path, fields: Sequence[Field], *, strict: bool) -> dict[str, npt.NDArray[Any]]:
    """All cells; where a fast reading fails, moments as text, and numbers too unless they must be right."""
    try:
        return read_table(path, [_typed(each, strict=strict) for each in fields])
    except BadTrace:
        is_loose = not strict and path.name.lower().endswith((".csv", ".csv.gz"))
        if not is_loose and all(each.kind != "moment" for each in fields):
            raise
    loose = {"moment", "number"} if is_loose else {"moment"}
    columns = [_text(each) if each.kind in loose else _typed(each, strict=strict) for each in fields]
    texts = read_table(path, columns)
    return {each.name: _cells(path, each, texts[each.name], strict=strict) for each in fields}


def _typed(each: Field, *, strict: bool) -> TraceColumn:
    kind: Literal["float", "text"] = "text" if each.kind == "text" else "float"
    minimum = each.least if strict and each.least > -math.inf else None
    return TraceColumn(each.name, kind, required=each.default is None and strict, default=each.default, minimum=minimum)


def _text(each: Field) -> TraceColumn:
    return TraceColumn(each.name, "text", required=False)


def _cells(path: Path, each: Field, texts: npt.NDArray[Any], *, strict: bool) -> npt.NDArray[Any]:
    if each.kind == "text" or texts.dtype != np.object_:
        return texts
    empty = math.nan if each.default is None else float(each.default)
    read = moment_of if each.kind == "moment" else _number
    values = np.array([empty if cell == "" else read(cell) for cell in texts.tolist()], np.float64)
    if strict and np.isnan(values).any():
        row = int(np.argmax(np.isnan(values)))
        expected = "seconds, or a date and time such as 2024-03-01 08:30:00"
        raise _bad_row(path, f"{texts[row]!r} is no moment; expected {expected}", row, each.name)
    return values


def _bad_row(path: Path, problem: str, row: int, column: str) -> BadTrace:
    """The line of a CSV file is that of its rows after the header; Parquet has rows only."""
    if path.name.lower().endswith(".parquet"):
        return BadTrace(path, f"row {row + 1}: {problem}", column=column)
    return BadTrace(path, problem, line=row + 2, column=column)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def moment_of(cell: str) -> float:
    """Seconds, or a date and time, taken as UTC without a zone; not a number for anything else."""
    seconds = _number(cell)
    if not math.isnan(seconds):
        return seconds
    try:
        when = datetime.fromisoformat(cell.strip())
    except ValueError:
        return math.nan
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


Texts = npt.NDArray[np.object_]
Nodes = Mapping[str, tuple[int, ...]]

NODE_GPUS = 8
LEAST_SHARE = 1e-3  # of a GPU: schedulers count thousandths
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """What a trace file does not say.

    `strict` refuses a file with a row that cannot be used. `nodes` are the GPUs of each node by pool, for traces
    without a list of nodes. Where jobs carry no label, those of `spot_organisations` are spot, or without any, a share
    of all jobs drawn with `streams`. `time_unit_s` is what times and durations count; dates and times need 1.
    """

    strict: bool = False
    nodes: Nodes | None = None
    spot_organisations: tuple[str, ...] = ()
    spot_share: float = 0.2
    streams: Streams = field(default_factory=lambda: Streams(0))
    guarantee_h: float = 1.0
    checkpoint_s: float = 3600.0
    time_unit_s: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.spot_share <= 1.0:
            raise BadInput(f"the share of spot jobs is {self.spot_share:g}; choose a number from 0 to 1")
        if not (np.isfinite(self.time_unit_s) and self.time_unit_s > 0):
            raise BadInput(f"the unit of time is {self.time_unit_s:g} s; choose a number above zero")


@dataclass(frozen=True, slots=True)
class LoadedTrace:
    """A workload and how it was read: rows of the file, those skipped by reason, jobs no pool can hold, and notes."""

    workload: Workload
    num_rows: int
    skipped: Mapping[str, int]
    num_too_large: int
    notes: tuple[str, ...] = ()

    @property
    def num_skipped(self) -> int:
        return sum(self.skipped.values())


@dataclass(frozen=True, slots=True)
class JobColumns:
    """One entry for each row that is used; times in seconds."""

    is_spot: npt.NDArray[np.bool_]
    pool: Texts
    organisation: Texts
    gpus: Floats
    workers: Ints
    submit_s: Floats
    duration_s: Floats


def load(
    name: str, rows: TraceRows, jobs: JobColumns, nodes: Nodes, options: TraceOptions, notes: tuple[str, ...]
) -> LoadedTrace:
    """The workload of the jobs whose pool has nodes."""
    pools = tuple(nodes)
    number_of = {pool: number for number, pool in enumerate(pools)}
    codes, names = _numbered(jobs.pool)
    job_pool = np.array([number_of.get(pool, -1) for pool in names], np.int64)[codes]
    _skip_unknown(rows, job_pool < 0, jobs.pool, options)
    kept = np.flatnonzero(job_pool >= 0)
    order = kept[np.argsort(jobs.submit_s[kept], kind="stable")]
    if (np.diff(jobs.submit_s[kept]) < 0).any():
        notes = (*notes, "rows were not in order of submission; they were sorted")
    organisation, organisations = _numbered(jobs.organisation[order])
    is_spot, sizes = jobs.is_spot[order], [size for pool in pools for size in nodes[pool]]
    workload = Workload(
        name=name,
        pools=pools,
        organisations=organisations,
        node_pool=np.repeat(np.arange(len(pools)), [len(nodes[pool]) for pool in pools]),
        node_gpus=np.array(sizes, np.int64),
        job_kind=np.where(is_spot, int(Kind.SPOT), int(Kind.HIGH)),
        job_pool=job_pool[order],
        job_organisation=organisation,
        job_gpus=jobs.gpus[order],
        job_workers=jobs.workers[order],
        job_submit_s=jobs.submit_s[order],
        job_duration_s=jobs.duration_s[order],
        job_guarantee_h=np.where(is_spot, options.guarantee_h, 0.0),
        job_checkpoint_s=np.full(len(order), options.checkpoint_s),
    )
    return LoadedTrace(workload, len(rows.used), dict(rows.skipped), int((~fits_pool(workload)).sum()), notes)


def _skip_unknown(rows: TraceRows, unknown: npt.NDArray[np.bool_], pool: Texts, options: TraceOptions) -> None:
    wrong = np.zeros(len(rows.used), np.bool_)
    wrong[np.flatnonzero(rows.used)[unknown]] = True
    if options.strict and unknown.any():
        found = f"{int(unknown.sum())} jobs ask for GPUs of pools without nodes, the first for {pool[unknown][0]!r}"
        raise BadInput(f"{found}; list their nodes or read without strict")
    rows.skip(wrong, "no node has this GPU model")


def _numbered(texts: Texts) -> tuple[Ints, tuple[str, ...]]:
    """Numbers in the order in which texts are first seen, and the texts."""
    numbers: dict[str, int] = {}
    places = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
    return places, tuple(numbers)


def skip_odd_sizes(rows: TraceRows, gpus: str, workers: str | None = None, *, strict: bool) -> None:
    """Skip rows with a fractional number of GPUs above one or below all shares, or of workers."""
    asked = rows.columns[gpus]
    reason = f"{gpus} is above one and not a whole number"
    rows.check((asked > 1) & (asked != np.floor(asked)), reason, gpus, strict=strict)
    rows.check((asked > 0) & (asked < LEAST_SHARE), f"{gpus} is below {LEAST_SHARE:g}", gpus, strict=strict)
    if workers:
        count = rows.columns[workers]
        rows.check(count != np.floor(count), f"{workers} is not a whole number", workers, strict=strict)


def labelled(organisation: Texts, options: TraceOptions) -> tuple[npt.NDArray[np.bool_], str]:
    """Which jobs are spot in a trace that does not say, and a note of how that was decided."""
    if options.spot_organisations:
        chosen = ", ".join(options.spot_organisations)
        unknown = set(options.spot_organisations) - set(organisation.tolist())
        if unknown:
            raise BadInput(f"no job is of organisation {min(unknown)!r}; name virtual clusters of the trace")
        return np.isin(
            organisation, options.spot_organisations
        ), f"no spot label in the trace; jobs of {chosen} are spot"
    coin = options.streams.stream("spot labels").random(len(organisation)) < options.spot_share
    how = f"each job is spot with probability {options.spot_share:g}, seed {options.streams.seed}"
    return coin, f"no spot label in the trace; {how}"


def split_gangs(num_gpus: Floats, node_gpus: int = NODE_GPUS) -> tuple[Floats, Ints]:
    """GPUs of a job as equal workers, as few as fit on nodes of this size."""
    totals, codes = np.unique(num_gpus, return_inverse=True)
    workers = np.array([_num_workers(total, node_gpus) for total in totals.tolist()], np.int64)
    return (totals / workers)[codes], workers[codes]


def _num_workers(total: float, node_gpus: int) -> int:
    if total <= node_gpus:
        return 1
    return next(int(total // size) for size in range(node_gpus, 0, -1) if total % size == 0)


def nodes_of(rows: TraceRows, jobs: JobColumns, options: TraceOptions) -> tuple[Nodes, tuple[str, ...]]:
    """The nodes that were given, or as many as jobs usually need, with a note on that."""
    if not len(rows):
        why = rows.skipped or "the table is empty"
        raise BadInput(f"{rows.path}: no row can be used ({why}); check the column names")
    if options.nodes is not None:
        return options.nodes, ()
    try:
        nodes, note = most_usual_nodes(jobs)
    except BadInput as error:
        raise BadTrace(rows.path, str(error)) from error
    return nodes, (note,)


def most_usual_nodes(jobs: JobColumns, quantile: float = 0.95) -> tuple[Nodes, str]:
    """For each pool as many nodes of eight as demand without waiting needs at most times, and its largest job."""
    nodes = {}
    for pool in sorted(set(jobs.pool.tolist())):
        mine = jobs.pool == pool
        gpus = jobs.gpus[mine] * jobs.workers[mine]
        usual = np.quantile(_hourly(jobs.submit_s[mine], jobs.duration_s[mine], gpus), quantile)
        largest = np.max(jobs.workers[mine] / np.maximum(1, NODE_GPUS // jobs.gpus[mine]))
        num = max(usual / NODE_GPUS, largest, 1)
        if num > MOST_COUNT:
            found = f"its jobs in pool {pool!r} need {num:.3g} nodes of {NODE_GPUS} GPUs, more than {MOST_COUNT}"
            raise BadInput(f"{found}; correct the largest jobs, or give the unit of time")
        nodes[pool] = (NODE_GPUS,) * int(np.ceil(num))
    count = sum(len(sizes) for sizes in nodes.values())
    return nodes, f"no list of nodes; {count} nodes of {NODE_GPUS} GPUs hold the demand of {quantile:.0%} of all hours"


def _hourly(submit_s: Floats, duration_s: Floats, gpus: Floats) -> Floats:
    """GPUs in use at the beginning of each hour if no job waits."""
    first_s = submit_s.min()
    last = int((submit_s.max() - first_s) // HOUR_S) + 1
    start = np.minimum(np.ceil((submit_s - first_s) / HOUR_S), last).astype(np.int64)
    end = np.minimum(np.ceil((submit_s + duration_s - first_s) / HOUR_S), last).astype(np.int64)
    change = np.bincount(start, gpus, last + 1) - np.bincount(end, gpus, last + 1)
    return np.asarray(np.cumsum(change)[:-1])
