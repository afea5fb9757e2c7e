"""`takeup example`: write a sample file that a command reads, so that the lines of the guides can be pasted."""

from importlib.resources import files
from pathlib import Path

import click

from takeup.core.files import write_atomically
from takeup.errors import BadInput, UnknownName
from takeup.output import say

SAMPLES = {
    "window.eventlog.gz": "a Spark event log: takeup caching whatif",
    "tasks.csv": "a job graph, one row per task: takeup caching compare --trace",
    "zips.csv": "a job graph of ten tenants that zip two files each: takeup caching compare --trace",
    "scenario.toml": "a run described in a file: takeup rerun",
    "gpu-jobs.csv": "GPU jobs of ten days: takeup cluster compare --trace",
    "hourly.csv": "hourly demand for GPUs: takeup cluster forecast --demand",
    "cell.json": "a cell with eight devices: takeup edge solve",
    "channel.csv": "signal quality second by second: takeup edge compare --channel",
    "drive.csv": "throughput of a drive, half an hour: takeup streaming advise",
    "cmcd.log": "CMCD reports of a player in an access log: takeup streaming advise",
    "operations.parquet": "operations of a training job: takeup training whatif",
    "pipeline.toml": "operation times of a pipeline: takeup training plan --profile",
    "train_ddp.py": "a training script for torchrun: takeup training watch",
    "image-requests.csv": "requests to an image service: takeup try",
    "photo.png": "a picture to edit: takeup serving edit",
    "mask.png": "the part of that picture to edit: takeup serving edit",
}
"""By the name of a file: what it is, and the command that reads it."""
FOLDER = "samples"
PROGRAMS = ".txt"  # appended to programs, which are data here


@click.command()
@click.argument("names", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Write all samples.")
def example(names: tuple[str, ...], every: bool) -> None:
    """Write the sample files NAMES into this folder; without a name, list them. A file that is there is kept."""
    if not names and not every:
        width = max(map(len, SAMPLES))
        click.echo("\n".join(f"{name:{width}}  {text}" for name, text in SAMPLES.items()))
    for name in SAMPLES if every else names:
        write_sample(name, Path())


def write_sample(name: str, folder: Path) -> Path:
    """Write the sample of this name; one that is there already and differs is an error."""
    if name not in SAMPLES:
        raise UnknownName("sample", name, SAMPLES)
    path, content = folder / name, _content(name)
    if path.exists() and path.read_bytes() != content:
        raise BadInput(f"{path} is there and is another file; move it away, or go to another folder")
    write_atomically(path, content)
    say(f"wrote {path}")
    return path


def _content(name: str) -> bytes:
    suffix = PROGRAMS if name.endswith(".py") else ""
    return (files("takeup") / FOLDER / (name + suffix)).read_bytes()
