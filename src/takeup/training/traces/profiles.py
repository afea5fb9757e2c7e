"""Profiles and schedules: random ones, pipelines as TOML files, and schedules as PyTorch's CSV."""

from pathlib import Path
from typing import Literal, TypeVar

from numpy.random import Generator

from takeup.core.files import write_atomically
from takeup.core.scenario import Scenario, load_scenario, to_toml, validate
from takeup.errors import BadInput, BadScenario
from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.schedule import Schedule

# Random profiles: uneven stages, and some slow links ------------------------------------------------------------------


def random_profile(
    random: Generator,
    num_stages: int,
    num_microbatches: int,
    *,
    op_ms: tuple[float, float] = (10.0, 20.0),
    spread_share: float = 0.15,
    slow_share: float = 1 / 3,
    slow_ms: tuple[float, float] = (5.0, 60.0),
) -> Profile:
    """A pipeline whose operations differ by stage and kind, and in which some links have a latency.

    Operation times are drawn from `op_ms` and varied by up to `spread_share`; a link is slow with probability
    `slow_share`, by a time from `slow_ms`.
    """
    means_s = random.uniform(*op_ms, (num_stages, 3)) / 1e3
    times_s = means_s * random.uniform(1 - spread_share, 1 + spread_share, (num_stages, 3))
    stages = tuple(Stage(forward_s, backward_s, weight_s) for forward_s, backward_s, weight_s in times_s.tolist())
    is_slow = random.random(num_stages - 1) < slow_share
    delays_s = random.uniform(*slow_ms, num_stages - 1) / 1e3
    links = tuple(Link(float(delay_s) if slow else 0.0) for slow, delay_s in zip(is_slow, delays_s, strict=True))
    return Profile(stages, links, num_microbatches)


# Pipelines as TOML files, a list with one number per stage or link; and schedules as PyTorch's CSV --------------------

Times = tuple[float, ...]
Counts = tuple[int, ...]
Value = TypeVar("Value")


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


def load_profile(path: Path) -> Profile:
    """Load the pipeline described by a file."""
    held = validate(_ProfileFile, load_scenario(path), str(path))
    num_stages = len(held.forward_s)
    try:
        return Profile(
            _stages(held, num_stages),
            _links(held, num_stages - 1),
            held.num_microbatches,
            held.placement,
            held.sizes,
            held.hop_s,
            held.host_s,
            held.max_sends,
            held.can_split,
        )
    except BadScenario:
        raise
    except BadInput as error:
        raise BadScenario(f"{path}: {error}") from error


def _stages(held: _ProfileFile, num: int) -> tuple[Stage, ...]:
    memories = _list("memory_bytes", held.memory_bytes, num, None)
    return tuple(
        Stage(forward_s, backward_s, weight_s, activation_bytes, memory_bytes, tail_s)
        for forward_s, backward_s, weight_s, activation_bytes, memory_bytes, tail_s in zip(
            held.forward_s,
            _list("backward_s", held.backward_s, num, 0.0),
            _list("weight_s", held.weight_s, num, 0.0),
            _list("activation_bytes", held.activation_bytes, num, 0),
            memories,
            _list("tail_s", held.tail_s, num, 0.0),
            strict=True,
        )
    )


def _links(held: _ProfileFile, num: int) -> tuple[Link, ...]:
    latencies_s = _list("latency_s", held.latency_s, num, 0.0)
    services_s = _list("service_s", held.service_s, num, 0.0)
    channels = _list("num_channels", held.num_channels, num, 1)
    return tuple(map(Link, latencies_s, services_s, channels, _list("half_duplex", held.half_duplex, num, False)))


def _list(name: str, values: tuple[Value, ...], num: int, missing: Value) -> tuple[Value, ...]:
    if len(values) not in {0, num}:
        raise BadInput(f"{name} has {len(values)} numbers, expected {num}; give one for each stage or link")
    return values or (missing,) * num


def save_profile(profile: Profile, path: Path) -> None:
    """Write a pipeline that `load_profile` reads back unchanged."""
    stages, links = profile.stages, profile.links
    memories = tuple(stage.memory_bytes for stage in stages if stage.memory_bytes is not None)
    if len(memories) not in {0, len(stages)}:
        raise BadInput("some stages have a limit of memory and some have none; give all of them one")
    held = _ProfileFile(
        num_microbatches=profile.num_microbatches,
        forward_s=tuple(stage.forward_s for stage in stages),
        backward_s=tuple(stage.backward_s for stage in stages),
        weight_s=tuple(stage.weight_s for stage in stages),
        tail_s=tuple(stage.tail_s for stage in stages),
        activation_bytes=tuple(stage.activation_bytes for stage in stages),
        memory_bytes=memories,
        latency_s=tuple(link.latency_s for link in links),
        service_s=tuple(link.service_s for link in links),
        num_channels=tuple(link.num_channels for link in links),
        half_duplex=tuple(link.half_duplex for link in links),
        placement=profile.placement,
        sizes=profile.sizes,
        hop_s=profile.hop_s,
        host_s=profile.host_s,
        max_sends=profile.max_sends,
        can_split=profile.can_split,
    )
    write_atomically(path, to_toml(held))


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
