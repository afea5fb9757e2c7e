"""Every error a user can cause, as one hierarchy. Each message says what was found, what was expected, the next step.

TakeupError                 exit code 2, printed as one sentence without a traceback
├── UnknownName             a policy, engine, workload, column, paper ... that does not exist; carries a suggestion
├── BadInput                a value, file or scenario that cannot be used
│   ├── BadTrace            a trace file; names file, line and column
│   └── BadScenario         a scenario file or option; names the key
├── MissingEngine           an engine or extra that is not installed; names the command that installs it
└── OutputFailed            a result that could not be written; nothing half-written is left behind
"""

import copyreg
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import chain
from typing import Any


class TakeupError(Exception):
    """An error the user can act on."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the finished message: the constructor arguments are not kept."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class BadInput(TakeupError):
    """A value that cannot be used."""


class BadTrace(BadInput):
    """A trace file that cannot be read as what it claims to be."""

    def __init__(self, path: object, problem: str, *, line: int | None = None, column: str | None = None) -> None:
        where = str(path) if line is None else f"{path}, line {line}"
        super().__init__(f"{where}{'' if column is None else f', column {column!r}'}: {problem}")


class BadScenario(BadInput):
    """A scenario that cannot be run."""


class MissingEngine(TakeupError):
    """Something optional that this command needs is not installed."""


class OutputFailed(TakeupError):
    """A report or chart that could not be written."""


class UnknownName(TakeupError):
    """An unknown name, with the nearest known one as a suggestion."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = list(known)
        near = nearest(name, names)
        hint = f"; did you mean {near!r}?" if near else ""
        super().__init__(f"no {kind} {name!r}{hint} (known: {', '.join(names)})")


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name that is meant: one of the same letters, one that begins so, or the nearest in spelling."""
    swapped = (other for other in known if sorted(other) == sorted(name))
    longer = (other for other in known if name and other.lower().startswith(name.lower()))
    return next(chain(swapped, longer, get_close_matches(name, known, n=1, cutoff=0.5)), None)
