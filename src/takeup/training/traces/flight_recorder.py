"""Dumps of PyTorch's Flight Recorder, a file for every rank: in which call a job hangs, and which ranks never made it.

The recorder knows when calls began, but not reliably when they ended: a dump shows hangs and calls that do not match,
not slow ranks. A dump is a pickle of plain values, or JSON; a pickle with anything else is refused.
"""

import io
import json
import pickle
import re
import struct
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from takeup.core.limits import MOST_TEXT_BYTES, reading
from takeup.errors import BadTrace

EXPECTED = "expected dumps of PyTorch's Flight Recorder, one file for every rank, whose name ends with the rank"
PICKLE = b"\x80"


class _Call(NamedTuple):
    """A collective call: its sequence number in the group, its name, and the bytes or shapes that it moves."""

    number: int
    name: str
    sizes: str


@dataclass(frozen=True, slots=True)
class StuckGroup:
    """The first call of a group that not all of its ranks have made alike: its name by rank.

    Ranks in `missing` never made it; the number is that of their last call.
    """

    group: str
    number: int
    calls: Mapping[int, str]
    missing: Mapping[int, int]

    def sentence(self) -> str:
        """What is wrong in this group."""
        by_name: dict[str, list[int]] = defaultdict(list)
        for rank, name in sorted(self.calls.items()):
            by_name[name].append(rank)
        made = " and ".join(f"{name} by {_ranks(ranks)}" for name, ranks in by_name.items())
        where = f"call {self.number} of group {self.group}"
        if not self.missing:
            return f"{where} differs: {made}"
        last = ", ".join(f"{number} of rank {rank}" for rank, number in sorted(self.missing.items())[:8])
        return f"{where} ({made}) was never made by {_ranks(sorted(self.missing))}; the last calls there are {last}"


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def is_dump(path: Path) -> bool:
    """Whether this file, or the first of this folder, begins like a dump."""
    first = min((each for each in path.iterdir() if each.is_file()), default=path) if path.is_dir() else path
    if not first.is_file():
        return False
    with first.open("rb") as file:
        begin = file.read(4096)
    return begin.startswith(PICKLE) or (b'"entries"' in begin and b'"traceEvents"' not in begin)


def load_stuck_groups(path: Path) -> list[StuckGroup]:
    """The groups that are stuck; empty if all ranks have made the same calls."""
    files = sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]
    calls: dict[str, dict[int, dict[int, _Call]]] = defaultdict(dict)
    members: dict[str, set[int]] = defaultdict(set)
    for file in files:
        _add(file, calls, members)
    found = (_stuck(group, ranks, members[group]) for group, ranks in sorted(calls.items()))
    return [each for each in found if each is not None]


def _stuck(group: str, ranks: Mapping[int, Mapping[int, _Call]], members: set[int]) -> StuckGroup | None:
    """The first call that not all ranks have made alike, among those that the recorders of all still hold."""
    latest = {rank: max(ranks.get(rank, {0: None})) for rank in members | set(ranks)}
    first = max((min(each) for each in ranks.values() if each), default=1)
    numbers = {number for each in ranks.values() for number in each} | {last + 1 for last in latest.values()}
    for number in sorted(each for each in numbers if first <= each <= max(latest.values())):
        made = {rank: each[number] for rank, each in ranks.items() if number in each}
        missing = {rank: last for rank, last in latest.items() if last < number}
        if missing or len({(each.name, each.sizes) for each in made.values()}) > 1:
            return StuckGroup(group, number, _named(made), missing)
    return None


def _named(made: Mapping[int, _Call]) -> dict[int, str]:
    """Names of calls, with sizes if the names are the same and the sizes are not."""
    are_named = len({each.name for each in made.values()}) > 1 or len({each.sizes for each in made.values()}) == 1
    return {rank: each.name if are_named else f"{each.name} of {each.sizes}" for rank, each in made.items()}


def _add(path: Path, calls: dict[str, dict[int, dict[int, _Call]]], members: dict[str, set[int]]) -> None:
    digits = re.search(r"(\d+)$", path.name.removesuffix(".json").removesuffix(".pkl"))
    if digits is None:
        raise BadTrace(path, f"has no rank at the end of its name; {EXPECTED}")
    rank, dump = int(digits[1]), _read(path)
    try:
        for entry in dump["entries"]:
            group = str(entry["process_group"][1] or entry["process_group"][0])
            if not entry.get("is_p2p") and entry["collective_seq_id"] is not None:
                call = _Call(int(entry["collective_seq_id"]), str(entry["profiling_name"]), str(entry["input_sizes"]))
                calls[group].setdefault(rank, {})[call.number] = call
        for each in dump.get("pg_config", {}).values():
            members[str(each["desc"] or each["name"])].update(
                int(one) for one in re.findall(r"\d+", str(each["ranks"]))
            )
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError, ValueError) as error:
        raise BadTrace(path, f"is no dump ({type(error).__name__}: {error}); {EXPECTED}") from error


class _PlainUnpickler(pickle._Unpickler):  # in C, a forged index fills the memory
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it holds {module}.{name}, and would execute it")


def _read(path: Path) -> Any:
    with reading(path, EXPECTED):
        if path.stat().st_size > MOST_TEXT_BYTES:
            raise ValueError("it is too large")
        data = path.read_bytes()
        try:
            return _PlainUnpickler(io.BytesIO(data)).load() if data.startswith(PICKLE) else json.loads(data)
        except (pickle.PickleError, struct.error, LookupError, TypeError, AttributeError, AssertionError) as error:
            raise ValueError(str(error)) from error
