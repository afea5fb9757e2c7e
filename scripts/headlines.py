"""Table and picture of README: takeup on each engine, with numbers from the newest dated reports."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
URL = "https://github.com/takeup-project/takeup/blob/main"
RAW = "https://raw.githubusercontent.com/takeup-project/takeup/main"
NUMBER = re.compile(r"-?[\d,]+(\.\d+)?(e-?\d+)?")
Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class Dated:
    """A dated report: its path, and the rows of its tables by column, in order."""

    path: Path
    rows: tuple[Row, ...]

    def all(self, **cells: str) -> list[Row]:
        """The rows with these cells; underscores stand for spaces in names of columns."""
        wanted = {name.replace("_", " "): text for name, text in cells.items()}
        return [row for row in self.rows if all(row.get(name) == text for name, text in wanted.items())]

    def number(self, column: str, **cells: str) -> float:
        """The number in a column of the first of these rows."""
        row = next((row for row in self.all(**cells) if column in row), None)
        assert row is not None, f"{self.path.name} has no row with {cells} and a column {column!r}"
        return number(row[column])


@dataclass(frozen=True, slots=True)
class Headline:
    """An engine of the user: what to install, the line that puts takeup on it, and a number from a dated report."""

    engine: str
    extra: str
    command: str
    guide: str
    report: str  # the name of the file begins with this
    sentence: Callable[[Dated], str]


def number(text: str) -> float:
    """The first number of a cell."""
    found = NUMBER.search(text)
    assert found is not None, f"{text!r} holds no number"
    return float(found.group().replace(",", ""))


def newest(begin: str) -> Dated:
    """The newest report whose name begins so."""
    paths = sorted(RESULTS.glob(f"{begin}_*.md"), key=lambda path: path.stem.rpartition("_")[2])
    assert paths, f"no report {begin}_*.md in {RESULTS}"
    return Dated(paths[-1], tuple(_rows(paths[-1].read_text("utf-8").splitlines())))


def _rows(lines: Sequence[str]) -> Iterator[Row]:
    columns: list[str] = []
    for line in lines:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not cells or set(line) <= set("|-: "):
            columns = columns if cells else []
        elif columns:
            yield dict(zip(columns, cells, strict=False))
        else:
            columns = cells


# One number for each engine -------------------------------------------------------------------------------------------


def _spark(report: Dated) -> str:
    ratios = _everyday(report)
    return (
        f"{len(ratios)} everyday jobs, each run once from cold: {mean(ratios):.2f} of stock Spark's task CPU "
        f"on average ({min(ratios):.2f} to {max(ratios):.2f})"
    )


def _everyday(report: Dated) -> list[float]:
    return [number(row["dag to stock"]) for row in report.rows if "dag to stock" in row]


def _dask(report: Dated) -> str:
    rows = _own_settings(report)
    read, written = (mean(number(row[name]) for row in rows) for name in ("read", "written"))
    return (
        f"{len(rows)} jobs at Dask's own settings, one round: {read:.2f} of stock Dask's bytes read from disk "
        f"and {written:.2f} written on average"
    )


def _own_settings(report: Dated) -> list[Row]:
    """The jobs that spill."""
    return [row for row in report.rows if row.get("read")]


def _torchrun(report: Dated) -> str:
    right = [row["right"] for row in report.rows if "right" in row]
    return f"the slow rank or link is named in {right.count('yes')} of {len(right)} emulated jobs, without a pause"


def _slurm(report: Dated) -> str:
    median = report.number("median (s)", what="gang of 4 nodes runs, 16 victims")
    lost = report.number("count", what="jobs lost")
    return f"a gang of 4 nodes runs {median:.2f} s after it is due; controller killed 20 times: {lost:.0f} jobs lost"


def _kubernetes(report: Dated) -> str:
    ours, stock = (
        report.number("median (s)", what=f"gang of 4 nodes bound, {name}") for name in ("takeup", "default-scheduler")
    )
    return f"a gang of 4 nodes is bound in {ours:.2f} s, by the default scheduler in {stock:.2f} s"


def _diffusers(report: Dated) -> str:
    ours, compiled, eager = (
        report.number("p50 (s)", request="SDXL", computed_by=name)
        for name in ("ours, lossless", "stock, compiled", "stock, eager")
    )
    return f"SDXL to pixels on an H200: {ours:.2f} s, stock diffusers compiled {compiled:.2f} s, eager {eager:.1f} s"


def _streaming(report: Dated) -> str:
    cases, held = (report.number(name, logs_in="all") for name in ("cases", "held (%)"))
    return f"its 90 % intervals held {held:.1f} % of {cases:.0f} second halves of recorded logs"


def _edge(report: Dated) -> str:
    cells = sum(number(row["cells"]) for row in report.rows if row.get("setting", "").endswith("20 to 60 devices"))
    gaps = (report.number("ours", check=f"up to 60 devices, {name} gap (%)") for name in ("mean", "largest"))
    typical, worst = gaps
    return (
        f"{cells:.0f} cells of 3GPP with 20 to 60 devices, 2 s each: proven {typical:.1f} % from the best possible "
        f"on average, {worst:.0f} % at worst"
    )


HEADLINES = (
    Headline(
        "Spark",
        "spark",
        "takeup caching run dag --engine spark -- spark-submit job.py",
        "spark",
        "caching-everyday-spark",
        _spark,
    ),
    Headline("Dask", "dask", "takeup.caching.engines.dask.install(client)", "dask", "caching-defaults-dask", _dask),
    Headline(
        "torchrun",
        "torch",
        "takeup training watch -- torchrun --nproc-per-node 4 train.py",
        "stragglers",
        "stragglers-locate",
        _torchrun,
    ),
    Headline("Slurm", "", "takeup cluster run gfs --engine slurm --dry-run", "slurm", "cluster-labs-slurm", _slurm),
    Headline(
        "Kubernetes",
        "k8s",
        "takeup cluster run gfs --engine kubernetes --dry-run",
        "kubernetes",
        "cluster-labs-kubernetes",
        _kubernetes,
    ),
    Headline("diffusers", "web,diffusion", "takeup serve takeup/tiny-sdxl", "serve", "serving-peers", _diffusers),
    Headline(
        "throughput log",
        "",
        "takeup streaming advise drive.csv --bitrate 2.4Mbit",
        "predict-from-a-throughput-log",
        "streaming-advice",
        _streaming,
    ),
    Headline("edge site", "", "takeup edge solve --devices 20", "plan-an-edge-site", "edge-library", _edge),
)


def table() -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headings, and a row for each engine: guide, what to install, the line to use, the number with its report."""
    return ("on my", "`pip install`", "then", "measured"), [_row(headline) for headline in HEADLINES]


def _row(line: Headline) -> tuple[str, ...]:
    report = newest(line.report)
    install = f"takeup[{line.extra}]" if line.extra else "takeup"
    measured = f"{line.sentence(report)} ([report]({URL}/{report.path.relative_to(ROOT).as_posix()}))"
    return f"[{line.engine}]({URL}/docs/guides/{line.guide}.md)", f"`{install}`", f"`{line.command}`", measured


# The picture ----------------------------------------------------------------------------------------------------------

WIDTH, BAR, LEFT, RIGHT, TOP = 880, 34, 330, 110, 64
STYLE = """
  text { font: 15px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 13px; fill: #59636e }
  .title { font-size: 18px; font-weight: 600 } .stock { fill: #d0d7de } .ours { fill: #1a7f64 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .small { fill: #9198a1 } .stock { fill: #3d444d } .ours { fill: #3fb58f }
  }
"""


def _bars() -> Iterator[tuple[str, float]]:
    """What is compared with stock, and takeup's share of it."""
    spark, dask = newest("caching-everyday-spark"), newest("caching-defaults-dask")
    pods, images, pipeline = (newest(name) for name in ("cluster-labs-kubernetes", "serving-peers", "pipeline-latency"))
    yield "Spark, everyday jobs, cold: task CPU", mean(_everyday(spark))
    yield "Dask at its own settings: bytes read", mean(number(row["read"]) for row in _own_settings(dask))
    gang = [
        pods.number("median (s)", what=f"gang of 4 nodes bound, {name}") for name in ("takeup", "default-scheduler")
    ]
    yield "Kubernetes: gang of 4 nodes bound", gang[0] / gang[1]
    names = "ours, lossless", "stock, compiled"
    times = [images.number("p50 (s)", request="SDXL", computed_by=name) for name in names]
    yield "diffusers, compiled: SDXL to pixels", times[0] / times[1]
    yield (
        "pipeline with a slow link: iteration",
        1 / pipeline.number("ours", check="latency: faster than stock 1F1B, least (x)"),
    )


def picture() -> str:
    """Bars of time, bytes or energy compared with stock, as an SVG image for light and dark pages."""
    bars = list(_bars())
    height = TOP + BAR * len(bars) + 34
    lines = [_bar(place, *bar) for place, bar in enumerate(bars)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="takeup compared with stock">\n<style>{STYLE}</style>\n'
        '<text class="title" x="16" y="30">The same work on the same machines, compared with stock</text>\n'
        '<text class="small" x="16" y="50">shorter is better; the grey bar is stock at its defaults</text>\n'
        + "".join(lines)
        + f'<text class="small" x="16" y="{height - 10}">One workload for each engine; reports in benchmarks/results '
        "have all of them.</text>\n</svg>\n"
    )


def _bar(place: int, name: str, share: float) -> str:
    full, y = WIDTH - LEFT - RIGHT, TOP + BAR * place
    return (
        f'<text x="16" y="{y + 21}">{name}</text>'
        f'<rect class="stock" x="{LEFT}" y="{y + 5}" width="{full}" height="22" rx="4"/>'
        f'<rect class="ours" x="{LEFT}" y="{y + 5}" width="{full * share:.0f}" height="22" rx="4"/>'
        f'<text x="{LEFT + full + 12}" y="{y + 21}">{share:.0%} of stock</text>\n'
    )
