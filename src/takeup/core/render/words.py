"""How values, units and verdicts are written, the same in every format."""

from __future__ import annotations

from takeup.core.report import Cell, Check, Report, Table

CHECK_HEADINGS = ("check", "ours", "expected", "off by", "verdict", "source")
_SOURCES = {"paper": "the paper", "unverified": "not verified", "bar": "our bar", "measured": "measured"}


def clean(text: str) -> str:
    """Text without characters that move a cursor or cannot be encoded; every kind of white space becomes a space."""
    return "".join(" " if sign.isspace() else sign if sign.isprintable() else "\ufffd" for sign in text)


def name_with_unit(name: str, unit: str) -> str:
    """A name with its unit: `run time (s)`."""
    return clean(f"{name} ({unit})" if unit else name)


def cell_text(value: Cell, digits: int = 3) -> str:
    """One value of a table; numbers too small or too large for `digits` decimals get an exponent."""
    match value:
        case None:
            return "—"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            fits = value == 0 or 0.5 * 10**-digits < abs(value) < 1e12
            return f"{value:,.{digits}f}" if fits else f"{value:.{max(digits, 2)}g}"
    return clean(str(value))


def is_numeric(table: Table, index: int) -> bool:
    """Whether the column at `index` holds numbers only, and so reads best when set to the right."""
    present = [row[index] for row in table.rows if row[index] is not None]
    return bool(present) and all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in present)


def verdict(check: Check) -> str:
    """Whether a check holds, in words that stand out without colour."""
    if check.holds:
        return "holds"
    return "FAILS" if check.counts else "differs"


def check_cells(check: Check) -> tuple[str, ...]:
    """The cells of one check, under `CHECK_HEADINGS`."""
    return (
        name_with_unit(check.name, check.unit),
        _number(check.ours),
        _expected(check),
        _difference(check),
        verdict(check),
        _SOURCES[check.source],
    )


def reasons(report: Report) -> list[str]:
    """Why checks came out as they did, where a check says so."""
    return [clean(f"{check.name}: {check.why}") for check in report.checks if check.why]


def summary(report: Report) -> str:
    """One line on the checks of a report: how many hold, which fail, how many do not count."""
    counted = [check for check in report.checks if check.counts]
    failing = [clean(check.name) for check in counted if not check.holds]
    num_ignored = len(report.checks) - len(counted)
    ignored = f" ({num_ignored} not verified and not counted)" if num_ignored else ""
    if not counted:
        return f"no checks that count{ignored}"
    held = f"{len(counted) - len(failing)} of {len(counted)} checks hold{ignored}"
    return f"{held}; FAILS: {', '.join(failing)}" if failing else held


def provenance(report: Report) -> str:
    """One line on what made a report: domain, seed, version, time, machine."""
    version = report.version and f"takeup {report.version}"
    parts = (report.domain, f"seed {report.seed}", version, report.created, report.machine)
    return clean(" · ".join(part for part in parts if part))


def _number(value: float | str | None) -> str:
    """A number with six significant digits, enough to see why a check near its limit holds or fails."""
    if not isinstance(value, float):
        return cell_text(value)
    return f"{value:,.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:,.6g}"


def _expected(check: Check) -> str:
    number = _number(check.expected)
    if check.relation != "near":
        return f"{check.relation} {number}"
    return f"{number} ± {_number(check.tolerance)}" if check.tolerance else number


def _difference(check: Check) -> str:
    ours, expected = check.ours, check.expected
    if isinstance(ours, str) or isinstance(expected, str) or ours is None or not expected:
        return "—"
    return f"{(ours - expected) / abs(expected):+.1%}"
