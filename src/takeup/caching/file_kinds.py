"""Files of caching that `takeup try` answers: Spark event logs, and tables of tasks."""

import shlex
from dataclasses import replace
from pathlib import Path

from takeup.core.file_kinds import Answer, FileKind, Sample, rows_of
from takeup.errors import BadInput

WORTH_TELLING = 0.02  # of the task time


def _is_event_log(sample: Sample) -> bool:
    rolled = any(name.startswith("events_1_") for name in sample.entries)
    return rolled or (sample.text.startswith("{") and '"Event":"SparkListener' in sample.text[:4096].replace(" ", ""))


KINDS = (
    FileKind("a Spark event log", _is_event_log, "takeup.caching.file_kinds:answer_event_log"),
    FileKind(
        "a table of tasks and their blocks",
        lambda sample: sample.has("task") and bool(sample.columns & {"inputs", "outputs"}),
        "takeup.caching.file_kinds:answer_tasks",
    ),
)


def answer_event_log(path: Path, *, quiet: bool) -> Answer:
    """Stock Spark compared with other policies, at the recorded memory and at half of what is alive."""
    from takeup.caching.experiment import CachingScenario, run

    policies = ("spark", "lrc", "dag")
    scenario = CachingScenario(
        verb="whatif",
        policies=policies,
        capacities=("recorded", "50%"),
        trace=str(path),
        miss="level",
        profile="online",
    )
    try:
        report = run(scenario, quiet=quiet)
    except BadInput:  # a log without the memory of its run
        report = run(scenario.model_copy(update={"capacities": ("100%", "50%")}), quiet=quiet)
    rows = rows_of(report)
    groups = [rows[place : place + len(policies)] for place in range(0, len(rows), len(policies))]
    best = min(rows, key=lambda row: float(row["ratio"]))
    saves = 1 - best["ratio"] > WORTH_TELLING
    verdict = (
        f"The largest saving is {1 - best['ratio']:.0%} of the task time, with {best['policy']} at "
        f"{best['memory']:.1f} MB ({1 - best['most']:.0%} to {1 - best['least']:.0%})."
        if saves
        else "No policy saves 2 % of the task time at these sizes: this application has enough memory."
    )
    quoted = shlex.quote(str(path))
    put_to_use = f"takeup caching run {best['policy']} --engine spark -- spark-submit YOUR_JOB.py"
    return Answer(
        replace(report, series=report.series[1:] + report.series[:1]),
        (*map(_at_size, groups), verdict),
        put_to_use if saves else f"takeup caching whatif {quoted} --capacity 25%,50%",
    )


def _at_size(rows: list[dict[str, object]]) -> str:
    """Stock Spark and the best policy at one size of memory."""
    stock, best = rows[0], min(rows[1:], key=lambda row: float(str(row["ratio"])))
    return (
        f"With {stock['memory']:.1f} MB for blocks, stock Spark finds {stock['hits']:.0%} of its reads in memory; "
        f"{best['policy']} finds {best['hits']:.0%} and takes {best['ratio']:.2f} of the task time."
    )


def answer_tasks(path: Path, *, quiet: bool) -> Answer:
    """LRU compared with DAG-aware policies at two sizes of the cache."""
    from takeup.caching.experiment import CachingScenario, run

    policies = ("lru", "lerc", "dag")
    report = run(
        CachingScenario(verb="compare", policies=policies, capacities=("25%", "50%"), trace=str(path)), quiet=quiet
    )
    rows = rows_of(report)
    groups = [rows[place : place + len(policies)] for place in range(0, len(rows), len(policies))]
    best = min(rows, key=lambda row: float(row["ratio"]))
    sentences = [
        f"With a cache of {size} of the blocks, lru finds {group[0]['hits']:.0%} of the reads, lerc "
        f"{group[1]['hits']:.0%} and dag {group[2]['hits']:.0%}."
        for size, group in zip(("a quarter", "half"), groups, strict=True)
    ]
    verdict = f"The shortest time compared with lru is {best['ratio']:.2f}, with {best['policy']}."
    command = f"takeup caching compare lru,lerc,dag --trace {shlex.quote(str(path))} --capacity 20%,40%,60%,80%"
    return Answer(report, (*sentences, verdict), command)
