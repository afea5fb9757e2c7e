"""Files of training that `takeup try` answers: recorded operations of a pipeline, and profiles."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

from takeup.core.file_kinds import Answer, FileKind, rows_of
from takeup.core.report import Series

KINDS = (
    FileKind(
        "a trace of training operations",
        lambda sample: sample.has("dp_rank", "stage", "step", "optype", "duration"),
        "takeup.training.file_kinds:answer_operations",
    ),
    FileKind(
        "a profile of a pipeline",
        lambda sample: re.search(r"^forward_s\s*=\s*\[", sample.text, re.MULTILINE) is not None,
        "takeup.training.file_kinds:answer_profile",
    ),
)


def answer_operations(path: Path, *, quiet: bool) -> Answer:
    """What each cause of delay costs."""
    from takeup.training.experiment import run_again

    report = run_again({"verb": "whatif", "trace": str(path)}, "try", quiet=quiet)
    causes = sorted(rows_of(report), key=lambda row: -float(row["saved"]))
    first, rest = causes[0], causes[1:]
    bars = tuple({"without": row["without"], "saved": row["saved"]} for row in causes)
    chart = Series("Saved without each cause", "without", "saved", bars, kind="bar", y_unit="% of the step time")
    sentences = (
        f"{report.tables[0].note.partition(';')[0].capitalize()}.",
        f"The largest cause of delay is {first['without']}: without it a step would take {first['step']:.3f} s, "
        f"{first['saved']:.1f} % less ({first['found']}).",
        "Removing the others would save " + ", ".join(f"{row['saved']:.1f} % ({row['without']})" for row in rest) + ".",
    )
    return Answer(
        replace(report, series=(chart, *report.series)), sentences, f"takeup training whatif {shlex.quote(str(path))}"
    )


def answer_profile(path: Path, *, quiet: bool) -> Answer:
    """The adaptive schedule compared with stock ones on the measured pipeline."""
    from takeup.training.experiment import run_again

    policies = ("one_f_one_b", "zb_h1", "adaptra")
    report = run_again({"verb": "compare", "policies": policies, "profile": str(path)}, "try", quiet=quiet)
    stock, zero_bubble, ours = rows_of(report)
    sentences = (
        f"An iteration of this pipeline takes {stock['iteration']:.1f} ms with 1F1B and "
        f"{zero_bubble['iteration']:.1f} ms with ZB-H1.",
        f"adaptra takes {ours['iteration']:.1f} ms; no order takes less than {ours['lower bound']:.1f} ms.",
        f"It holds up to {ours['peak in-flight micro-batches']} micro-batches on a rank, 1F1B "
        f"{stock['peak in-flight micro-batches']}.",
    )
    return Answer(
        report, sentences, f"takeup training plan adaptra --profile {shlex.quote(str(path))} --csv schedule.csv"
    )
