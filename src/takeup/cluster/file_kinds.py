"""Files of cluster that `takeup try` answers: job records of Slurm and Kubernetes, tables of GPU
jobs, and hourly demand for GPUs.
"""

import re
import shlex
from pathlib import Path

from takeup.core.file_kinds import Answer, FileKind, Sample, rows_of

POLICIES = ("fifo", "slurm", "gfs")
FEW_BYTES = 40_000  # of a table: some 600 jobs, which plain Python replays in seconds; compiling takes nearly a minute
GPUS = {"num_gpus", "num_gpu", "gpu_num", "gpus", "gpu_count", "gpu_request"}
SUBMISSION = {
    "submit_time",
    "submitted_time",
    "submission_time",
    "arrival_time",
    "timestamp",
    "submit_s",
    "creation_time",
}


def _is_sacct(sample: Sample) -> bool:
    is_json = re.match(r'\s*\{[\s\S]*"jobs"\s*:', sample.text) and '"job_id"' in sample.text
    return bool(is_json) or (sample.has("jobid", "submit") and "|" in sample.text.partition("\n")[0])


def _is_pods(sample: Sample) -> bool:
    return sample.text.lstrip().startswith("{") and '"items"' in sample.text and "containers" in sample.text


def _is_jobs(sample: Sample) -> bool:
    is_v2026 = {"job_info_df.csv", "node_info_df.csv"} <= sample.entries
    return is_v2026 or bool(sample.columns & GPUS and sample.columns & SUBMISSION)


KINDS = (
    FileKind("job records of Slurm (sacct)", _is_sacct, "takeup.cluster.file_kinds:answer_records"),
    FileKind("pods of Kubernetes", _is_pods, "takeup.cluster.file_kinds:answer_records"),
    FileKind("a table of GPU jobs", _is_jobs, "takeup.cluster.file_kinds:answer_jobs"),
    FileKind(
        "a table of the hourly demand for GPUs",
        lambda sample: sample.has("hour") and sample.text.lower().startswith(("hour", '"hour')),
        "takeup.cluster.file_kinds:answer_demand",
    ),
)


def _without_compiling(path: Path) -> None:
    """Let a small table be replayed in plain Python, with the same result."""
    if path.is_file() and path.stat().st_size < FEW_BYTES:
        from takeup.core.compiled import run_plain

        run_plain()


def answer_records(path: Path, *, quiet: bool) -> Answer:
    """The jobs replayed under the site's own policy, stock ones and gfs, counted in GPU-hours."""
    _without_compiling(path)
    from takeup.cluster.experiment import ClusterScenario, run

    report = run(ClusterScenario(verb="whatif", records=str(path)), quiet=quiet)
    rows = rows_of(report)
    own, ours = rows[0], rows[-1]
    bounds = "" if ours["from"] is None else f" ({ours['from']:,.0f} to {ours['to']:,.0f} with 95 % confidence)"
    gain = "the record is too short for an estimate a month" if ours["a month"] is None else (
        f"that is {ours['a month']:,.0f} GPU-hours a month{bounds}"
    )  # fmt: skip
    sentences = (
        f"{report.notes[0]}.",
        f"Under {own['policy']} {own['useful GPU time']:.2f} % of GPU time is useful, and high-priority jobs wait "
        f"{own['high JQT']:,.0f} s on average.",
        f"Under {ours['policy']} it is {ours['useful GPU time']:.2f} %, and they wait {ours['high JQT']:,.0f} s; "
        f"{gain}.",
    )
    return Answer(report, sentences, f"takeup cluster whatif --sacct {shlex.quote(str(path))} --price USD --nodes NxM")


def answer_jobs(path: Path, *, quiet: bool) -> Answer:
    """The jobs replayed first-come-first-served, as stock Slurm at its defaults would, and with guarantees."""
    _without_compiling(path)
    from takeup.cluster.experiment import ClusterScenario, run

    report = run(ClusterScenario(verb="compare", policies=POLICIES, trace=str(path)), quiet=quiet)
    rows = {row["policy"]: row for row in rows_of(report)}
    waits = {(row["policy"], row["class"]): row["JQT mean"] for row in rows_of(report, 1)}
    high = ", ".join(f"{waits[name, 'high']:,.0f} s with {name}" for name in POLICIES if (name, "high") in waits)
    sentences = (
        f"{report.notes[0].rstrip('.')}; {report.notes[1].rstrip('.')}.",
        f"High-priority jobs wait {high}; evictions destroy {rows['slurm']['lost']:,.1f} GPU-hours with slurm and "
        f"{rows['gfs']['lost']:,.1f} with gfs.",
        f"gfs promises hours to {rows['gfs']['spot time promised']:.0f} % of the spot GPU time and keeps "
        f"{rows['gfs']['promises kept']:.0f} % of the promises; slurm promises nothing.",
    )
    command = f"takeup cluster benefit gfs --against slurm --price 2 --trace {shlex.quote(str(path))}"
    return Answer(report, sentences, command)


def answer_demand(path: Path, *, quiet: bool) -> Answer:
    """How well bounds on the demand of the next hours hold, and how many GPUs they leave for promises."""
    from takeup.cluster.experiment import ClusterScenario, run

    report = run(ClusterScenario(verb="forecast", models=("anchored", "last_week_peak"), demand=str(path)), quiet=quiet)
    ours, peak = rows_of(report)[:2]
    last = {column.name: cell for column, cell in zip(report.tables[1].columns, report.tables[1].rows[0], strict=True)}
    sentences = (
        f"A bound that should hold in 90 % of all hours held in {ours['coverage']:.1f} %; it lies "
        f"{ours['pinball']:.2f} GPUs off (pinball loss), the peak of last week {peak['pinball']:.2f}.",
        f"The bound reserves {ours['reserved']:,.0f} GPUs where {ours['needed']:,.0f} are needed, the peak of last "
        f"week {peak['reserved']:,.0f}.",
        f"For the next four hours {last['free, 4 h']:,.0f} of {last['capacity']:,.0f} GPUs of {last['pool']} can be "
        "promised to spot jobs.",
    )
    return Answer(report, sentences, f"takeup cluster forecast --demand {shlex.quote(str(path))} --hours 4")
