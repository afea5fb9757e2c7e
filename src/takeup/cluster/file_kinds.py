"""Files of cluster that `takeup try` answers: tables of GPU jobs, and hourly demand for GPUs."""

import shlex
from pathlib import Path

from takeup.core.file_kinds import Answer, FileKind, Sample, rows_of

POLICIES = ("fifo", "slurm", "gfs")
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


def _is_jobs(sample: Sample) -> bool:
    is_v2026 = {"job_info_df.csv", "node_info_df.csv"} <= sample.entries
    return is_v2026 or bool(sample.columns & GPUS and sample.columns & SUBMISSION)


KINDS = (
    FileKind("a table of GPU jobs", _is_jobs, "takeup.cluster.file_kinds:answer_jobs"),
    FileKind(
        "a table of the hourly demand for GPUs",
        lambda sample: sample.has("hour") and sample.text.lower().startswith(("hour", '"hour')),
        "takeup.cluster.file_kinds:answer_demand",
    ),
)


def answer_jobs(path: Path, *, quiet: bool) -> Answer:
    """The jobs replayed first-come-first-served, as stock Slurm at its defaults would, and with guarantees."""
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
