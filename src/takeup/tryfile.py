"""`takeup try`: recognise a file by its content and answer what the system of its domain would have changed."""

from collections.abc import Iterator
from pathlib import Path

import click

from takeup.core.file_kinds import Answer, FileKind, Sample, sample_of
from takeup.core.lazy import load
from takeup.errors import BadTrace
from takeup.output import output_options, say, show, with_provenance

KINDS = (
    "takeup.caching.file_kinds:KINDS",
    "takeup.serving.file_kinds:KINDS",
    "takeup.training.file_kinds:KINDS",
    "takeup.cluster.file_kinds:KINDS",
    "takeup.edge.file_kinds:KINDS",
    "takeup.streaming.file_kinds:KINDS",
)
CHARTS = Path("takeup-out")


def kinds() -> Iterator[FileKind]:
    """All kinds of files, the more specific ones first."""
    for name in KINDS:
        yield from load(name)


def recognise(sample: Sample) -> FileKind:
    """The kind of a file; one that is not known is an error that lists those that are."""
    found = next((kind for kind in kinds() if kind.matches(sample)), None)
    if found is None:
        known = ", ".join(kind.name for kind in kinds())
        raise BadTrace(sample.path, f"is no file that takeup knows; expected {known} (see docs/guides/file-formats.md)")
    return found


@click.command("try")
@click.argument("file", type=click.Path(path_type=Path))
@output_options
def try_file(file: Path, as_json: bool, out: Path | None, quiet: bool) -> None:
    """Recognise FILE, your log, trace or model, and say in three sentences what takeup would change.

    Event logs, job tables, throughput logs, LoRAs, models, traces of training and of requests; a folder may be given.
    """
    kind = recognise(sample_of(file))
    if not quiet:
        say(f"{file} is {kind.name}")
    answer = load(kind.answer)(file, quiet=True)
    assert isinstance(answer, Answer)
    if as_json or out:
        show(answer.report, as_json=as_json, out=out)
        return
    click.echo("\n".join(answer.sentences))
    for path in _chart(answer):
        click.echo(f"chart: {path}")
    click.echo(f"next:  {answer.next_command}")


def _chart(answer: Answer) -> list[Path]:
    from dataclasses import replace

    from takeup.core.render import write

    report = with_provenance(replace(answer.report, series=answer.report.series[:1]))
    return write(report, CHARTS, ("png",)) if report.series else []
