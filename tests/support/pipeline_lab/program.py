"""The program of the laboratory: `python -m support.pipeline_lab.program FOLDER`.

Importing PyTorch takes seconds, so it is imported once, and the ranks of each trial are forked. FOLDER contains
`trials`; the outcome of trial N is written to `N/outcome`.
"""

import gc
import multiprocessing
import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from support.pipeline_lab.network import PipelineNetwork
from support.pipeline_lab.trials import LabTrial, RuntimeName, TrialOutcome
from takeup.training.pipelines.engine.adapter import actions_of
from takeup.training.pipelines.engine.adaptive import AdaptiveSchedule
from takeup.training.pipelines.engine.messages import WorkerThread
from takeup.training.pipelines.planners import find_policy
from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.schedule import Schedule

# Stages of the laboratory: a small transformer with prescribed operation times, and artificially slow links -----------

# Artificially slow links: a message is sent after the service of earlier messages, its own service, and a latency -----
#
# All messages between two ranks pass through `send` of their process group, for every schedule and every group, so
# they are delayed here. The compute thread is not blocked, unless the link models a device with a single hardware
# queue: then compute blocks until the message has been sent. Delegates send from a separate thread and never block
# compute.


class DelayedSend:
    """A delayed message that has not been sent yet, with the interface of a sent one."""

    def __init__(self, begun: Future[Any]) -> None:
        self._begun = begun

    def wait(self, timeout: timedelta | None = None) -> Any:
        """Block until the message has been sent and has arrived."""
        limit_s = None if timeout is None else timeout.total_seconds()
        work = self._begun.result(limit_s)
        return work.wait() if timeout is None else work.wait(timeout)


class SlowWire:
    """One direction of a slow link; with `one_queue`, sends block the main (compute) thread."""

    def __init__(self, link: Link, *, one_queue: bool = False) -> None:
        self._link = link
        self._one_queue = one_queue
        self._free_s = 0.0
        self._worker = WorkerThread("takeup-slow-link")

    def send(self, begin: Callable[[], Any]) -> DelayedSend:
        """Send the message when it is due, in FIFO order."""
        served_s = max(time.monotonic(), self._free_s) + self._link.service_s
        self._free_s = served_s
        begun = self._worker.submit(lambda: _call_at(served_s + self._link.latency_s, begin))
        if self._one_queue and threading.current_thread() is threading.main_thread():
            begun.result()
        return DelayedSend(begun)


def _call_at(due_s: float, begin: Callable[[], Any]) -> Any:
    time.sleep(max(0.0, due_s - time.monotonic()))
    return begin()


def slow_wires(truth: Profile, rank: int) -> dict[int, SlowWire]:
    """The slow links of a rank, by peer rank."""
    ends = {rank + 1: rank, rank - 1: rank - 1}
    links = {peer: truth.links[link] for peer, link in ends.items() if 0 <= link < len(truth.links)}
    return {peer: SlowWire(link, one_queue=truth.max_sends == 1) for peer, link in links.items() if link.delay_s > 0}


@contextmanager
def delayed_sends(wires: Mapping[int, SlowWire]) -> Iterator[None]:
    """Context in which messages to these ranks are delayed by their wires."""
    kept, plain = vars(dist.ProcessGroup)["send"], dist.ProcessGroup.send  # only the raw attribute binds as a method

    def send(group: dist.ProcessGroup, tensors: Any, peer: int, tag: int) -> Any:
        wire = wires.get(dist.get_global_rank(group, peer))
        if wire is None:
            return plain(group, tensors, peer, tag)
        return wire.send(lambda: plain(group, tensors, peer, tag))

    dist.ProcessGroup.send = send  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        dist.ProcessGroup.send = kept  # type: ignore[method-assign]


# A small transformer in stages, whose operations have prescribed durations --------------------------------------------
#
# The computation is real but tiny, so that gradients can be compared; for the rest of its duration an operation sleeps.
# Four ranks then need only one core, and their wall-clock times are still real.

WIDTH, NUM_HEADS, LENGTH = 16, 2, 4
BULK_LENGTH = 512  # for bandwidth-limited links
BULK_BYTES = BULK_LENGTH * WIDTH * 8
SEED = 5


class _Layer(torch.nn.Module):
    """A transformer layer on the first tokens; the others pass through unchanged and only enlarge messages."""

    def __init__(self) -> None:
        super().__init__()
        self._layer = torch.nn.TransformerEncoderLayer(
            WIDTH, NUM_HEADS, 2 * WIDTH, dropout=0.0, batch_first=True, dtype=torch.float64
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Apply the layer to the first `LENGTH` tokens and pass the others through."""
        if tokens.shape[1] == LENGTH:
            return self._layer(tokens)  # type: ignore[no-any-return]
        return torch.cat([self._layer(tokens[:, :LENGTH]), tokens[:, LENGTH:]], dim=1)


def make_module(stage: int) -> torch.nn.Module:
    """The layer of a stage, the same in every process; in double precision, so that rounding does not hide errors."""
    torch.manual_seed(SEED + stage)
    return _Layer()


def make_batch(iteration: int, num_microbatches: int, length: int = LENGTH) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of an iteration, one row for each micro-batch."""
    generator = torch.Generator().manual_seed(SEED + 1000 * iteration)
    shape = (num_microbatches, length, WIDTH)
    inputs, targets = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return inputs, targets


def gradients_of(module: torch.nn.Module) -> list[torch.Tensor]:
    """Gradients of the module's parameters, where present."""
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def reference_gradients(stage: int, iteration: int, truth: Profile, length: int = LENGTH) -> list[torch.Tensor]:
    """Gradients of one stage, computed in a single process without a pipeline."""
    modules = [make_module(number) for number in range(truth.num_stages)]
    inputs, targets = make_batch(iteration, truth.num_microbatches, length)
    loss = torch.nn.functional.mse_loss(torch.nn.Sequential(*modules)(inputs), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    return gradients_of(modules[stage])


class PacedStage(PipelineStage):  # type: ignore[misc, unused-ignore]
    """A stage whose operations take the given times, or their compute time if that is longer."""

    def __init__(self, pace: Stage, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pace = pace

    def forward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """Run F with its prescribed duration."""
        return _paced(self._pace.forward_s, partial(super().forward_one_chunk, *arguments, **named))

    def backward_one_chunk(self, *arguments: Any, full_backward: bool = True, **named: Any) -> Any:
        """Run I with its prescribed duration, or B with that of I plus W."""
        pace_s = self._pace.backward_s + (self._pace.weight_s if full_backward else 0.0)
        named["full_backward"] = full_backward
        return _paced(pace_s, partial(super().backward_one_chunk, *arguments, **named))

    def backward_weight_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """Run W with its prescribed duration."""
        return _paced(self._pace.weight_s, partial(super().backward_weight_one_chunk, *arguments, **named))


def _paced(pace_s: float, compute: Callable[[], Any]) -> Any:
    start_s = time.perf_counter()
    result = compute()
    time.sleep(max(0.0, pace_s - (time.perf_counter() - start_s)))
    return result


# One rank of a trial: build its stage, run the iterations, and return its observations --------------------------------


class IterationTimes(NamedTuple):
    """Start, end (on a clock shared by all ranks) and CPU time of one iteration of one rank."""

    start_s: float
    end_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class RankObservations:
    """Observations of one rank: its iterations, those of the stock runtime for comparison, and the final state."""

    times: tuple[IterationTimes, ...] = ()
    stock_times: tuple[IterationTimes, ...] = ()
    gradient_error: float = 0.0
    order: str = ""
    changed_after: tuple[int, ...] = ()
    delegated: tuple[int, ...] = ()
    measured: Profile | None = None
    pauses_s: tuple[float, ...] = ()
    swaps_s: tuple[float, ...] = ()


def run_rank(trial: LabTrial, rank: int, store: Path) -> RankObservations:
    """Join the process group and train."""
    torch.set_num_threads(1)
    num_ranks, timeout = trial.truth.num_stages, timedelta(seconds=trial.timeout_s)
    joined = FileStore(str(store), num_ranks)
    dist.init_process_group("gloo", store=joined, rank=rank, world_size=num_ranks, timeout=timeout)
    module = make_module(rank)
    schedules = [_schedule_of(trial, runtime, module, rank) for runtime in _runtimes(trial)]
    with delayed_sends(slow_wires(_profile_without_delays(trial), rank)):
        seen = _train(trial, rank, module, schedules)
    dist.destroy_process_group()
    return seen


def _profile_without_delays(trial: LabTrial) -> Profile:
    """The profile that messages are delayed by here; without service times if veth links already impose them."""
    if not trial.cables:
        return trial.truth
    return replace(trial.truth, links=tuple(replace(link, service_s=0.0) for link in trial.truth.links))


def _runtimes(trial: LabTrial) -> list[RuntimeName]:
    return [trial.runtime, "stock"] if trial.beside_stock else [trial.runtime]


def _schedule_of(trial: LabTrial, runtime: RuntimeName, module: torch.nn.Module, rank: int) -> Any:
    count, loss = trial.truth.num_microbatches, torch.nn.functional.mse_loss
    stage = PacedStage(trial.truth.stages[rank], module, rank, trial.truth.num_stages, torch.device("cpu"))
    if runtime == "stock_1f1b":
        return Schedule1F1B(stage, count, loss)
    if runtime == "stock":
        stock = _PipelineScheduleRuntime([stage], count, loss_fn=loss)  # type: ignore[no-untyped-call]
        stock._prepare_schedule_with_comms(actions_of(Schedule.from_csv(trial.order)))
        return stock
    options: dict[str, Any] = {"planner": trial.planner, "every": trial.every, "timeout_s": trial.timeout_s}
    adaptive = AdaptiveSchedule(stage, count, loss, **options)
    if trial.order:
        adaptive.use(Schedule.from_csv(trial.order))
    return adaptive


def _train(trial: LabTrial, rank: int, module: torch.nn.Module, schedules: list[Any]) -> RankObservations:
    """Run every iteration with every schedule, in an order that alternates so that each is first equally often."""
    times: list[list[IterationTimes]] = [[] for _ in schedules]
    length = BULK_LENGTH if trial.cables else LENGTH
    for iteration in range(trial.num_iterations):
        inputs, targets = make_batch(iteration, trial.truth.num_microbatches, length)
        for turn in range(len(schedules)):
            number = (turn + (iteration + 1) // 2) % len(schedules)
            module.zero_grad()
            step = _step_of(rank, trial.truth.num_stages, schedules[number], inputs, targets)
            dist.barrier()
            times[number].append(_timed(step))
    error = _error(gradients_of(module), reference_gradients(rank, trial.num_iterations - 1, trial.truth, length))
    found = _observations_of(schedules[0])
    return replace(found, times=tuple(times[0]), stock_times=tuple(*times[1:]), gradient_error=error)


def _timed(step: Callable[[], object]) -> IterationTimes:
    start_s, cpu_s = time.monotonic(), time.process_time()
    step()
    return IterationTimes(start_s, time.monotonic(), time.process_time() - cpu_s)


def _observations_of(schedule: Any) -> RankObservations:
    """Final state of an adaptive schedule; empty for other schedules."""
    if not isinstance(schedule, AdaptiveSchedule):
        return RankObservations()
    return RankObservations(
        order=schedule.schedule.to_csv(),
        changed_after=tuple(change.iteration for change in schedule.changes),
        delegated=tuple(sorted(schedule.delegated)),
        measured=schedule.profile,
        pauses_s=tuple(schedule.pauses_s),
        swaps_s=tuple(schedule.swaps_s),
    )


def _step_of(
    rank: int, num_ranks: int, schedule: Any, inputs: torch.Tensor, targets: torch.Tensor
) -> Callable[[], object]:
    if rank == 0:
        return partial(schedule.step, inputs)
    return partial(schedule.step, target=targets, losses=[]) if rank == num_ranks - 1 else partial(schedule.step)


def _error(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """The largest difference, relative to the largest gradient."""
    largest = max(float(gradient.abs().max()) for gradient in wanted)
    return max(float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True)) / largest


GRACE_S = 5.0  # for the other ranks, after one has failed
PARENT = os.getppid()


def main(folder: Path) -> None:
    """Run all trials and write their outcomes."""
    trials: list[LabTrial] = pickle.loads((folder / "trials").read_bytes())  # our own bytes
    for trial in {trial.truth.num_stages: trial for trial in trials}.values():
        find_policy("adaptra").plan(trial.truth)  # compiled once for all ranks
    gc.freeze()  # else every rank would scan all imported objects in the middle of an iteration
    for number, trial in enumerate(trials):
        place = folder / str(number)
        place.mkdir()
        outcome = _run(trial, place)
        (place / "outcome").write_bytes(pickle.dumps(outcome))
        print(number, flush=True)


def _run(trial: LabTrial, place: Path) -> TrialOutcome | str:
    """Run one trial; return its outcome or an error text."""
    fork = multiprocessing.get_context("fork")
    cables = PipelineNetwork(trial.truth, BULK_BYTES) if trial.cables else None
    ranks = [
        fork.Process(target=_rank_process, args=(trial, rank, place, cables)) for rank in range(trial.truth.num_stages)
    ]
    for rank in ranks:
        rank.start()
    _join(ranks)
    if cables is not None:
        cables.close()
    written = [place / str(rank) for rank in range(len(ranks))]
    if not all(path.exists() for path in written):
        errors = [(place / f"{rank}.error") for rank in range(len(ranks))]
        return next((path.read_text("utf-8") for path in errors if path.exists()), "a rank ended without a word")
    return _merge_observations(trial, [pickle.loads(path.read_bytes()) for path in written])


def _rank_process(trial: LabTrial, rank: int, place: Path, cables: PipelineNetwork | None) -> None:
    """Run one rank in this process."""
    try:
        if cables is not None:
            cables.join(rank)
        (place / str(rank)).write_bytes(pickle.dumps(run_rank(trial, rank, place / "store")))
    except BaseException:
        (place / f"{rank}.error").write_text(traceback.format_exc(), "utf-8")
        raise


def _join(ranks: list[ForkProcess]) -> None:
    """Wait for all ranks; at most `GRACE_S` after one has failed, and not at all once the parent process is gone."""
    until_s = float("inf")
    while any(rank.is_alive() for rank in ranks) and time.monotonic() < until_s and os.getppid() == PARENT:
        time.sleep(0.02)
        if until_s == float("inf") and any(rank.exitcode for rank in ranks):
            until_s = time.monotonic() + GRACE_S
    for rank in ranks:
        rank.kill()
        rank.join()
    if os.getppid() != PARENT:
        raise SystemExit("the process that started the laboratory has ended")


def _merge_observations(trial: LabTrial, seen: list[RankObservations]) -> TrialOutcome:
    """Merge the observations of all ranks into an outcome."""
    iterations_s, cpus_s = _job_times([each.times for each in seen])
    stock_s, stock_cpus_s = _job_times([each.stock_times for each in seen])
    return TrialOutcome(
        trial.name,
        iterations_s,
        max(each.gradient_error for each in seen),
        seen[0].order,
        seen[0].changed_after,
        seen[0].delegated,
        seen[0].measured,
        tuple(map(max, zip(*(each.pauses_s for each in seen), strict=True))),
        tuple(map(max, zip(*(each.swaps_s for each in seen), strict=True))),
        cpus_s,
        stock_s,
        stock_cpus_s,
    )


def _job_times(ranks: list[tuple[IterationTimes, ...]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Duration of every iteration, from the first start to the last end over all ranks, and its mean CPU time."""
    iterations = list(zip(*ranks, strict=True))
    lasted_s = tuple(max(each.end_s for each in ranks) - min(each.start_s for each in ranks) for ranks in iterations)
    return lasted_s, tuple(sum(each.cpu_s for each in ranks) / len(ranks) for ranks in iterations)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
