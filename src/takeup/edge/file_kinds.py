"""Files of edge that `takeup try` answers: cells in JSON, and logs of a radio channel."""

import shlex
from dataclasses import replace
from pathlib import Path

from takeup.core.file_kinds import Answer, FileKind, rows_of
from takeup.core.report import Series

PLAIN_TIMES = 12

KINDS = (
    FileKind(
        "a cell with its devices",
        lambda sample: '"takeup edge instance"' in sample.text,
        "takeup.edge.file_kinds:answer_cell",
    ),
    FileKind(
        "a log of a radio channel",
        lambda sample: sample.has("timestamp") and bool(sample.columns & {"snr", "cqi"}),
        "takeup.edge.file_kinds:answer_channel",
    ),
)


def _budget_ms(compiled_ms: float) -> float:
    """The time for a search: more where its kernels would be compiled first, and run as plain Python instead."""
    from takeup.core.compiled import has_code, run_plain

    if has_code("takeup.edge.solvers.compiled"):
        return compiled_ms
    run_plain()
    return PLAIN_TIMES * compiled_ms


def answer_cell(path: Path, *, quiet: bool) -> Answer:
    """The best plan of the cell, compared with running everything on the devices."""
    budget_ms = _budget_ms(500.0)  # before kernels are imported
    from takeup.edge.experiment import run_again

    report = run_again({"verb": "solve", "instance": str(path), "budget_ms": budget_ms}, "try", quiet=quiet)
    devices, certificate = rows_of(report), rows_of(report, 1)[0]
    alone = sum(float(row["local run"]) for row in devices if row["offloads"])
    saved = 1e3 * float(certificate["saving"])
    sentences = (
        f"{certificate['accepted']} of {len(devices)} devices offload their task.",
        f"That saves {saved:,.0f} mJ of the {alone:,.0f} mJ that those tasks cost on the devices.",
        f"No plan is worth more than {certificate['bound']:.3f} J, so at most {certificate['gap']:.2f} % is missing.",
    )
    return Answer(report, sentences, f"takeup edge run auto --instance {shlex.quote(str(path))} --dry-run")


def answer_channel(path: Path, *, quiet: bool) -> Answer:
    """Random cells of twelve devices on this channel: devices one after the other, and the best plan."""
    budget_ms = _budget_ms(200.0)
    from takeup.edge.experiment import run_again

    policies = ("greedy", "auto")
    scenario = {"verb": "compare", "channel": str(path), "policies": policies, "num_devices": 12, "num_instances": 3}
    report = run_again({**scenario, "budget_ms": budget_ms}, "try", quiet=quiet)
    first, ours = rows_of(report)
    bars = tuple({"policy": row["policy"], "saving": row["saving"]} for row in (first, ours))
    chart = Series("Energy saved per cell", "policy", "saving", bars, kind="bar", y_unit="J")
    sentences = (
        "Three random cells of twelve devices were planned on the channel of this log.",
        f"One device after the other saves {first['saving']:.3f} J per cell, the plan of all {ours['saving']:.3f} J.",
        f"The plans are at most {ours['gap']:.1f} % from the best possible.",
    )
    command = f"takeup edge compare greedy,auto --channel {shlex.quote(str(path))}"
    return Answer(replace(report, series=(chart, *report.series)), sentences, command)
