"""Profiles and schedules: random ones, pipelines as TOML files, and schedules as PyTorch's CSV."""

from dataclasses import MISSING, fields
from pathlib import Path
from typing import Literal, TypeVar

from numpy.random import Generator

from takeup.core.files import write_atomically
from takeup.core.scenario import Scenario, load_scenario, to_toml, validate
from takeup.errors import BadInput, BadScenario
from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.schedule import Schedule

# Random profiles: uneven stages, and some slow links ------------------------------------------------------------------

SLOW_MS = 5.0, 60.0  # latency of a slow link


def random_profile(
    random: Generator,
    num_stages: int,
    num_microbatches: int,
    *,
    op_ms: tuple[float, float] = (10.0, 20.0),
    slow_share: float = 1 / 3,
) -> Profile:
    """A pipeline whose operations differ by stage and kind, and in which some links have a latency.

    Operation times are drawn from `op_ms` and varied by up to 15 %; a link is slow with probability `slow_share`.
    """
    means_s = random.uniform(*op_ms, (num_stages, 3)) / 1e3
    times_s = means_s * random.uniform(0.85, 1.15, (num_stages, 3))
    stages = tuple(Stage(forward_s, backward_s, weight_s) for forward_s, backward_s, weight_s in times_s.tolist())
    is_slow = random.random(num_stages - 1) < slow_share
    delays_s = random.uniform(*SLOW_MS, num_stages - 1) / 1e3
    links = tuple(Link(float(delay_s) if slow else 0.0) for slow, delay_s in zip(is_slow, delays_s, strict=True))
    return Profile(stages, links, num_microbatches)


# Pipelines as TOML files, a list with one number per stage or link; and schedules as PyTorch's CSV --------------------

Times = tuple[float, ...]
Counts = tuple[int, ...]
Row = TypeVar("Row", Stage, Link)


class _ProfileFile(Scenario):
    """Schema of the file. Missing lists default to zeros, one channel per direction, and no memory limit."""

    domain: Literal["training"] = "training"
    verb: Literal["profile"] = "profile"
    num_microbatches: int
    forward_s: Times
    backward_s: Times
    weight_s: Times
    tail_s: Times = ()
    activation_bytes: Counts = ()
    memory_bytes: Counts = ()
    latency_s: Times = ()
    service_s: Times = ()
    num_channels: Counts = ()
    half_duplex: tuple[bool, ...] = ()
    placement: Counts = ()
    sizes: Times = ()
    hop_s: float = 0.0
    host_s: float = 0.0
    max_sends: int | None = None
    can_split: bool = True


OF_PIPELINE = ("num_microbatches", "placement", "sizes", "hop_s", "host_s", "max_sends", "can_split")


def load_profile(path: Path) -> Profile:
    """Load the pipeline described by a file."""
    held = validate(_ProfileFile, load_scenario(path), str(path))
    num_stages = len(held.forward_s)
    try:
        stages, links = _rows(held, Stage, num_stages), _rows(held, Link, num_stages - 1)
        return Profile(stages, links, **{name: getattr(held, name) for name in OF_PIPELINE})
    except BadScenario:
        raise
    except BadInput as error:
        raise BadScenario(f"{path}: {error}") from error


def _rows(held: _ProfileFile, kind: type[Row], num: int) -> tuple[Row, ...]:
    """Stages or links from the lists of the file that have the names of their fields, or else from defaults."""
    columns = {}
    for field in fields(kind):
        values = getattr(held, field.name)
        if len(values) != num and (values or field.default is MISSING):
            raise BadInput(f"{field.name} has {len(values)} numbers, expected {num}; give one for each stage or link")
        columns[field.name] = values or (field.default,) * num
    return tuple(kind(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True))


def save_profile(profile: Profile, path: Path) -> None:
    """Write a pipeline that `load_profile` reads back unchanged."""
    columns = {field.name: tuple(getattr(each, field.name) for each in profile.stages) for field in fields(Stage)}
    columns |= {field.name: tuple(getattr(each, field.name) for each in profile.links) for field in fields(Link)}
    columns["memory_bytes"] = tuple(each for each in columns["memory_bytes"] if each is not None)
    if len(columns["memory_bytes"]) not in {0, profile.num_stages}:
        raise BadInput("some stages have a limit of memory and some have none; give all of them one")
    whole = {name: getattr(profile, name) for name in OF_PIPELINE}
    write_atomically(path, to_toml(_ProfileFile.model_validate(columns | whole)))


def load_schedule(path: Path) -> Schedule:
    """The schedule in a CSV file, as PyTorch's runtime loads it."""
    try:
        return Schedule.from_csv(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read schedule {path}: {error}; give the path of a .csv file") from error
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error


def save_schedule(schedule: Schedule, path: Path) -> None:
    """Write a schedule for PyTorch's runtime, format `compute_only`."""
    write_atomically(path, schedule.to_csv())
