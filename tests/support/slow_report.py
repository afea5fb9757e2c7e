"""Report of a slowdown: what happened, which ranks or links are suspected and why, and time accounts of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from takeup.core.report import Cell, Column, Report, Series, Table
from takeup.training.stragglers.contract import CallLog, SlowdownEvent
from takeup.training.stragglers.locate.accounts import TimeAccount, windows_of

MS = 1e3


def report_of_event(
    event: SlowdownEvent, logs: Sequence[CallLog] = (), iterations_s: Sequence[float] = (), first: int = 0
) -> Report:
    """The report; `logs` are calls since the event, `iterations_s` iteration times from number `first` on."""
    tables = (_what(event), *([_suspects(event)] if event.suspects else []), *([_accounts(logs)] if logs else []))
    series = (_times(event, iterations_s, first),) if len(iterations_s) else ()
    title = "A job became slower" if event.is_slow else "A job recovered"
    return Report(title, "training", {"command": "takeup training watch"}, 0, tables, series, (), (event.sentence(),))


def _what(event: SlowdownEvent) -> Table:
    columns = (
        Column("since iteration"),
        Column("known in iteration"),
        Column("before", "ms", 2),
        Column("now", "ms", 2),
        Column("factor", "x", 2),
        Column("lost throughput", "%", 1),
    )
    times = (MS * event.before_s, MS * event.after_s)
    row = (event.began, event.declared, *times, event.factor, 100 * event.lost_share)
    return Table("What happened", columns, (row,), event.sentence())


def _suspects(event: SlowdownEvent) -> Table:
    columns = (Column("what"), Column("ranks"), Column("factor", "x", 2), Column("late", "%", 0), Column("why"))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (each.kind, ", ".join(map(str, each.ranks)), each.factor, 100 * each.share_late, each.reason)
        for each in event.suspects
    )
    note = "late: the share of calls to which the rank came last, or that took too long over the link"
    return Table("Who is suspected", columns, rows, note)


def medians_of(account: TimeAccount) -> tuple[float, ...]:
    """Medians of the whole iteration, own work, waiting and transfers."""
    parts = account.iterations_s, account.owns_s, account.waits_s, account.transfers_s
    return tuple(float(np.median(each)) for each in parts)


def _accounts(logs: Sequence[CallLog]) -> Table:
    """Time account of every rank."""
    now, _ = windows_of(logs, ())
    names = ("iteration", "own work", "waiting for others", "transfers")
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (rank, *(MS * value for value in medians_of(account))) for rank, account in sorted(now.accounts.items())
    )
    note = "medians over iterations; who works longest and waits least is who the others wait for"
    return Table(
        "Where the time of ranks goes", (Column("rank"), *(Column(name, "ms", 2) for name in names)), rows, note
    )


def _times(event: SlowdownEvent, iterations_s: Sequence[float], first: int) -> Series:
    rows: tuple[dict[str, Cell], ...] = tuple(
        {"iteration": first + place, "time": MS * time_s, "when": "since" if first + place >= event.began else "before"}
        for place, time_s in enumerate(iterations_s)
    )
    return Series("Iterations", "iteration", "time", rows, "when", y_unit="ms", kind="point")
