"""The adaptive schedule on one accelerator: the part `schedule` of `pipeline_gpu.py`.

Four processes share the card. Each holds a stage of a small transformer, in double precision; an operation is real, and
lasts as long as it is told to, because processes that share a card would else take turns on it. Messages over the last
link are late. NCCL refuses two ranks on one device, so messages go over Gloo: those of the stock schedules in line,
copied to the host and back; those of the adaptive schedule by delegates, from pinned memory, on streams of their own.
Operations and arrivals are timed by events of the card. Healthy runs first; from them and the fault every other run is
predicted, and then measured. Gradients are compared with those of one process without a pipeline.
"""

from __future__ import annotations

import benchmarks.support.without_numba  # noqa: F401  before takeup

# isort: split
import faulthandler
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.pipelining import Schedule1F1B
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from support.pipeline_lab.measured import calibrate_profile, with_faults
from support.pipeline_lab.program import PacedStage, delayed_sends, gradients_of, slow_wires
from takeup.training.pipelines.engine.adapter import actions_of
from takeup.training.pipelines.engine.adaptive import AdaptiveSchedule
from takeup.training.pipelines.planners import find_policy
from takeup.training.pipelines.planners.adaptra import Adaptra
from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.schedule import Schedule
from takeup.training.pipelines.timing.evaluation import timeline_of

ON_CARD = torch.cuda.is_available()
NUM_RANKS, NUM_MICROBATCHES, OP_S, DELAY_S, SLOW = 4, 12 if ON_CARD else 6, 0.020, 0.040, 2
NUM_HEALTHY, NUM_STOCK, NUM_ADAPTIVE = (8, 5, 11) if ON_CARD else (6, 3, 6)  # iterations
WIDTH, LENGTH, NUM_ROWS = (256, 64, 4) if ON_CARD else (16, 4, 1)  # an operation is to be shorter than it is told to be
NUM_HEADS, SEED = 4, 5
TIMEOUT_S, LONGEST_S = 60.0, 120.0
ERROR_BAR, OVER_1F1B_BAR, OVER_ZB_BAR, GRADIENT_BAR, SWAP_BAR_MS = 5.0, 1.2, 1.15, 1e-6, 5.0
DELAY_TOLERANCE, OP_TOLERANCE = 0.25, 0.1  # of what messages and operations should take
NUM_COLUMNS = 110
HEALTHY = Profile.uniform(NUM_RANKS, NUM_MICROBATCHES, OP_S)
FAULTY = HEALTHY.with_links({SLOW: Link(DELAY_S)})
STOCK = {"stock 1F1B": "one_f_one_b", "stock ZB-H1": "zb_h1"}


# Stages ---------------------------------------------------------------------------------------------------------------


def make_module(stage: int, device: torch.device) -> torch.nn.Module:
    """The layer of a stage, the same in every process."""
    torch.manual_seed(SEED + stage)
    made = torch.nn.TransformerEncoderLayer(
        WIDTH, NUM_HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, dtype=torch.float64
    )
    return made.to(device)


def make_batch(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of all iterations."""
    generator = torch.Generator().manual_seed(SEED)
    shape = (NUM_ROWS * NUM_MICROBATCHES, LENGTH, WIDTH)
    inputs, targets = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return inputs.to(device), targets.to(device)


def reference(rank: int, device: torch.device) -> list[torch.Tensor]:
    """Gradients of a stage, by one process without a pipeline."""
    modules = [make_module(stage, device) for stage in range(NUM_RANKS)]
    inputs, targets = make_batch(device)
    torch.nn.functional.mse_loss(torch.nn.Sequential(*modules)(inputs), targets).backward()  # type: ignore[no-untyped-call]
    return gradients_of(modules[rank])


# Gloo and tensors of the card -----------------------------------------------------------------------------------------


class _Sent:
    """A message under way; keeps what is sent."""

    def __init__(self, work: Any, tensors: list[torch.Tensor]) -> None:
        self._work, self._tensors = work, tensors

    def wait(self, *timeout: timedelta) -> None:
        """Return when it has left."""
        self._work.wait(*timeout)


class _Received:
    """A message that comes to the host and is copied to the card when somebody waits for it."""

    def __init__(self, work: Any, hosts: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
        self._work, self._hosts, self._tensors = work, hosts, tensors

    def wait(self, *timeout: timedelta) -> None:
        """Return when it is on the card."""
        self._work.wait(*timeout)
        with torch.no_grad():
            for host, tensor in zip(self._hosts, self._tensors, strict=True):
                tensor.copy_(host)


@contextmanager
def through_host() -> Iterator[None]:
    """Inside, Gloo carries tensors of the card too, in line, as whoever has no NCCL would do it."""
    kept = {name: vars(dist.ProcessGroup)[name] for name in ("send", "recv")}
    plain_send: Callable[..., Any] = dist.ProcessGroup.send
    plain_receive: Callable[..., Any] = dist.ProcessGroup.recv

    def send(group: Any, tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        if not tensors[0].is_cuda:
            return plain_send(group, tensors, peer, tag)
        hosts = [tensor.detach().cpu() for tensor in tensors]
        return _Sent(plain_send(group, hosts, peer, tag), hosts)

    def receive(group: Any, tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        if not tensors[0].is_cuda:
            return plain_receive(group, tensors, peer, tag)
        hosts = [torch.empty_like(tensor, device="cpu", requires_grad=False) for tensor in tensors]
        return _Received(plain_receive(group, hosts, peer, tag), hosts, tensors)

    for name, ours in (("send", send), ("recv", receive)):
        setattr(dist.ProcessGroup, name, ours)
    try:
        yield
    finally:
        for name, original in kept.items():
            setattr(dist.ProcessGroup, name, original)


# One rank -------------------------------------------------------------------------------------------------------------


@dataclass
class Found:
    """What one rank found in the iterations of one system; times by a clock that all ranks share."""

    starts_s: list[float] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    gradient_error: float = 0.0
    order: str = ""
    profile: list[list[float]] = field(default_factory=list)
    changed_after: list[int] = field(default_factory=list)
    swaps_s: list[float] = field(default_factory=list)
    ops: list[tuple[str, int, int]] = field(default_factory=list)


class Rank:
    """A rank of the pipeline, whose module all systems train."""

    def __init__(self, rank: int, device: torch.device) -> None:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        self._rank = rank
        self._device = device
        self._module = make_module(rank, device)
        self._batch = make_batch(device)
        self._wanted = reference(rank, device)

    def run_all(self) -> dict[str, Found]:
        """Healthy runs of every system, and runs with the fault."""
        found = {"healthy": self._train(self._adaptive(every=3, keeps=True), NUM_HEALTHY)}
        for name in STOCK:
            found[f"healthy, {name}"] = self._train(self._stock(name), NUM_STOCK)
        for name in STOCK:
            with self._slow_link():
                found[name] = self._train(self._stock(name), NUM_STOCK)
        with self._slow_link():
            found["adaptive"] = self._train(self._adaptive(every=2), NUM_ADAPTIVE)
        return found

    @contextmanager
    def _slow_link(self) -> Iterator[None]:
        with delayed_sends(slow_wires(FAULTY, self._rank)), through_host():
            yield

    def _stage(self) -> PacedStage:
        return PacedStage(HEALTHY.stages[self._rank], self._module, self._rank, NUM_RANKS, self._device)

    def _stock(self, name: str) -> Any:
        loss = torch.nn.functional.mse_loss
        if name == "stock 1F1B":
            return Schedule1F1B(self._stage(), NUM_MICROBATCHES, loss)
        made = _PipelineScheduleRuntime([self._stage()], NUM_MICROBATCHES, loss_fn=loss)  # type: ignore[no-untyped-call]
        made._prepare_schedule_with_comms(actions_of(find_policy(STOCK[name]).plan(HEALTHY).schedule))
        return made

    def _adaptive(self, *, every: int, keeps: bool = False) -> AdaptiveSchedule:
        """An adaptive schedule, which is told nothing; one that `keeps` its order has no better one to go to."""
        planner: Any = "one_f_one_b" if keeps else Adaptra(max_evaluations=60)
        loss = torch.nn.functional.mse_loss
        return AdaptiveSchedule(
            self._stage(), NUM_MICROBATCHES, loss, planner=planner, every=every, timeout_s=TIMEOUT_S
        )

    def _train(self, schedule: Any, num_iterations: int) -> Found:
        found = Found()
        for _ in range(num_iterations):
            self._module.zero_grad()
            step = self._step_of(schedule)
            dist.barrier()
            found.starts_s.append(time.monotonic())
            step()
            self._synchronize()
            found.ends_s.append(time.monotonic())
        found.gradient_error = self._error()
        if self._rank == 0:
            print(f"{type(schedule).__name__}: {num_iterations} iterations", file=sys.stderr, flush=True)
        if isinstance(schedule, AdaptiveSchedule):
            _tell(schedule, found)
        return found

    def _step_of(self, schedule: Any) -> Callable[[], object]:
        inputs, targets = self._batch
        if self._rank == 0:
            return partial(schedule.step, inputs)
        last = self._rank == NUM_RANKS - 1
        return partial(schedule.step, target=targets, losses=[]) if last else partial(schedule.step)

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def _error(self) -> float:
        """The largest difference of a gradient, relative to the largest gradient."""
        found = gradients_of(self._module)
        largest = max(float(gradient.abs().max()) for gradient in self._wanted)
        return max(float((a - b).abs().max()) for a, b in zip(found, self._wanted, strict=True)) / largest


def _tell(schedule: AdaptiveSchedule, found: Found) -> None:
    """What an adaptive schedule knows of itself."""
    profile = schedule.profile
    found.order = schedule.schedule.to_csv()
    found.profile = [
        [time_s for stage in profile.stages for time_s in (stage.forward_s, stage.backward_s, stage.weight_s)],
        [time_s for link in profile.links for time_s in (link.latency_s, link.service_s)],
    ]
    found.changed_after = [change.iteration for change in schedule.changes]
    found.swaps_s = list(schedule.swaps_s)
    if schedule._watch.lag:
        found.ops = [(op.kind.letter, op.start, op.end) for op in schedule._watch.timed_ops()]


def run_rank(rank: int, device: str, folder: Path) -> dict[str, Any]:
    """Join the others and run every system."""
    faulthandler.dump_traceback_later(LONGEST_S, exit=True)  # where it hangs, should it hang
    store, timeout = FileStore(str(folder / "store"), NUM_RANKS), timedelta(seconds=TIMEOUT_S)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NUM_RANKS, timeout=timeout)
    with through_host():
        found = Rank(rank, torch.device("cuda:0" if device == "cuda" else "cpu")).run_all()
    dist.barrier()
    return {name: vars(each) for name, each in found.items()}


# All ranks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class System:
    """What all ranks found in the runs of one system."""

    ranks: list[Found]

    @property
    def settled_s(self) -> float:
        """The median iteration once nothing changes any more; the first ones also connect and allocate."""
        starts, ends = (list(zip(*times, strict=True)) for times in ([r.starts_s for r in self.ranks], self._ends()))
        lasted_s: list[float] = [max(end) - min(start) for start, end in zip(starts, ends, strict=True)]
        return median(lasted_s[max((2, *self.ranks[0].changed_after)) :])

    @property
    def profile(self) -> Profile:
        """What was measured."""
        times, delays = (iter(numbers) for numbers in self.ranks[0].profile)
        stages = tuple(Stage(next(times), next(times), next(times)) for _ in range(NUM_RANKS))
        links = tuple(Link(next(delays), next(delays)) for _ in range(NUM_RANKS - 1))
        return replace(HEALTHY, stages=stages, links=links)

    def _ends(self) -> list[list[float]]:
        return [rank.ends_s for rank in self.ranks]


def report(device: str, answers: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    """Print what came of it, and return what had to hold."""
    found = {name: System([Found(**answer[name]) for answer in answers]) for name in answers[0]}
    rows = {name: (_predicted_s(name, found), found[name].settled_s) for name in (*STOCK, "adaptive")}
    place = "card" if device == "cuda" else "host"
    print(f"schedule: {NUM_RANKS} processes on one {place}, {NUM_MICROBATCHES} micro-batches, {1e3 * OP_S:g} ms each")
    print(f"    link {SLOW} is late by {1e3 * DELAY_S:g} ms; messages of {_message_bytes() / 2**20:.1f} MiB over Gloo")
    _print_rows(rows)
    _print_profile("measured, healthy", found["healthy"].profile)
    _print_profile("measured with the slow link", found["adaptive"].profile)
    _print_timelines(found["adaptive"])
    return _checks(device, found, rows)


def _message_bytes() -> int:
    return NUM_ROWS * LENGTH * WIDTH * 8


def _predicted_s(name: str, found: Mapping[str, System]) -> float:
    """What the simulator says, from the healthy run of the same system and the fault."""
    before = found["healthy"] if name == "adaptive" else found[f"healthy, {name}"]
    max_sends = 2 if name == "stock 1F1B" else None  # it computes behind one send, not two
    measured = replace(found["healthy"].profile, max_sends=max_sends)
    base = calibrate_profile(measured, _order(name, before), before.settled_s)
    return timeline_of(_order(name, found[name]), with_faults(base, HEALTHY, FAULTY)).iteration_s


def _order(name: str, system: System) -> Schedule:
    return (
        Schedule.from_csv(system.ranks[0].order)
        if name == "adaptive"
        else find_policy(STOCK[name]).plan(HEALTHY).schedule
    )


def _print_rows(rows: Mapping[str, tuple[float, float]]) -> None:
    print(f"    {'system':14} {'predicted':>10} {'measured':>10} {'error':>8} {'adaptive is faster by':>22}")
    for name, (predicted_s, measured_s) in rows.items():
        error, gain = 100 * (predicted_s / measured_s - 1), measured_s / rows["adaptive"][1]
        print(f"    {name:14} {1e3 * predicted_s:7.0f} ms {1e3 * measured_s:7.0f} ms {error:6.1f} % {gain:20.2f} x")


def _print_profile(title: str, profile: Profile) -> None:
    ops = "; ".join(
        "/".join(f"{1e3 * time_s:.1f}" for time_s in (stage.forward_s, stage.backward_s, stage.weight_s))
        for stage in profile.stages
    )
    delays = ", ".join(f"{1e3 * link.delay_s:.1f}" for link in profile.links)
    print(f"    {title}: F/I/W {ops} ms; links {delays} ms")


def _print_timelines(adaptive: System) -> None:
    """The order of the adaptive schedule as the simulator runs it, and as the card did."""
    timeline = timeline_of(_order("adaptive", adaptive), replace(adaptive.profile, host_s=0.0))
    expected: list[list[tuple[str, float, float]]] = [[] for _ in range(NUM_RANKS)]
    for span in timeline.spans():
        expected[span.rank].append((span.op.kind.letter, 1e9 * span.start_s, 1e9 * span.end_s))
    print("    the adaptive schedule, predicted:")
    _print_lanes(expected)
    if any(rank.ops for rank in adaptive.ranks):
        print("    and by the clock of the card:")
        _print_lanes([list(rank.ops) for rank in adaptive.ranks])


def _print_lanes(lanes: list[list[tuple[str, float, float]]]) -> None:
    whole = max(end for lane in lanes for _, _, end in lane)
    for number, lane in enumerate(lanes):
        cells = ["."] * NUM_COLUMNS
        for letter, start, end in lane:
            for column in range(int(start / whole * NUM_COLUMNS), max(1, int(end / whole * NUM_COLUMNS))):
                cells[column] = letter
        print(f"        {number} {''.join(cells)}")


def _checks(
    device: str, found: Mapping[str, System], rows: Mapping[str, tuple[float, float]]
) -> list[tuple[str, bool]]:
    gradient = max(rank.gradient_error for system in found.values() for rank in system.ranks)
    error = 100 * fmean(abs(predicted_s / measured_s - 1) for predicted_s, measured_s in rows.values())
    adaptive, healthy = found["adaptive"], found["healthy"].profile
    delay_s = adaptive.profile.links[SLOW].delay_s - healthy.links[SLOW].delay_s
    swap_ms = 1e3 * median([swap_s for rank in adaptive.ranks for swap_s in rank.swaps_s] or [float("inf")])
    longest = max(abs(stage.work_s / (3 * OP_S) - 1) for stage in healthy.stages)
    over_1f1b, over_zb = (rows[name][1] / rows["adaptive"][1] for name in STOCK)
    clock = "events of the card" if device == "cuda" else "the clock of the host"
    return [
        (f"gradients are those of one process: {gradient:.1e}, at most {GRADIENT_BAR:g}", gradient <= GRADIENT_BAR),
        (f"{over_1f1b:.2f} times as fast as stock 1F1B, at least {OVER_1F1B_BAR}", over_1f1b >= OVER_1F1B_BAR),
        (f"{over_zb:.2f} times as fast as stock ZB-H1, at least {OVER_ZB_BAR}", over_zb >= OVER_ZB_BAR),
        (f"error of predictions {error:.1f} %, at most {ERROR_BAR:g}", error <= ERROR_BAR),
        (
            f"the slow link was measured: {1e3 * delay_s:.1f} ms were added, {1e3 * DELAY_S:g} are true",
            abs(delay_s / DELAY_S - 1) <= DELAY_TOLERANCE,
        ),
        (f"operations by {clock} are {100 * longest:.1f} % off, at most", longest <= OP_TOLERANCE),
        (f"hot swap {swap_ms:.1f} ms, at most {SWAP_BAR_MS:g}", swap_ms <= SWAP_BAR_MS),
        ("all ranks follow the same order", len({rank.order for rank in adaptive.ranks}) == 1),
    ]
