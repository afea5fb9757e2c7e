"""A report as a folder of files: data, page and one chart per series."""

import re
import unicodedata
from collections.abc import Collection, Iterator
from pathlib import Path

from takeup.core.files import write_atomically
from takeup.core.report import Report
from takeup.errors import UnknownName

PICTURES = ("svg", "png")
FORMATS = ("json", "html", *PICTURES)
_MAX_NAME_LENGTH = 60


def write(report: Report, folder: Path, formats: Collection[str] = FORMATS) -> list[Path]:
    """Write the report into `folder`, each file atomically; returns the paths written.

    Everything is drawn before the first byte is written, so that a report that cannot be drawn leaves nothing behind.
    Without the extra `charts` no picture is written.
    """
    for name in formats:
        if name not in FORMATS:
            raise UnknownName("format", name, FORMATS)
    files = [(folder / name, content) for name, content in _files(report, formats)]
    for path, content in files:
        write_atomically(path, content)
    return [path for path, _ in files]


def _files(report: Report, formats: Collection[str]) -> Iterator[tuple[str, str | bytes]]:
    from takeup.core.render.charts import missing_charts, to_png, to_svg
    from takeup.core.render.html import to_html

    if missing_charts():
        formats = [name for name in formats if name not in PICTURES]
    if "json" in formats:
        yield "report.json", report.to_json()
    if "html" in formats:
        yield "report.html", to_html(report)
    for name, series in zip(_chart_names(report), report.series, strict=True):
        if "png" in formats:
            yield f"{name}.png", to_png(series)
        if "svg" in formats:
            yield f"{name}.svg", to_svg(series)


def _chart_names(report: Report) -> list[str]:
    """A file name per series, from its title; a name taken already gets a number."""
    names: list[str] = []
    for series in report.series:
        base = _slug(series.title)
        candidates = (base if number == 1 else f"{base}-{number}" for number in range(1, len(report.series) + 1))
        names.append(next(name for name in candidates if name not in names))
    return names


def _slug(title: str) -> str:
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", plain)[:_MAX_NAME_LENGTH].strip("-") or "chart"
