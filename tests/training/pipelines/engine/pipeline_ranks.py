"""The ranks of a tiny pipeline over Gloo, as a program: `pipeline_ranks.py FOLDER SCENARIO,... ...`.

Scenarios that are joined by a comma are one job; its ranks write what they found to FOLDER/SCENARIO,.../RANK.json. A
name that ends with .py is a program that all ranks run, as with torchrun.

Importing PyTorch takes seconds, so it is imported once, and the ranks are forks.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from support.pipeline_lab.program import delayed_sends, slow_wires
from takeup.errors import TakeupError
from takeup.training.pipelines.engine.adaptive import AdaptiveSchedule
from takeup.training.pipelines.planners import find_policy
from takeup.training.pipelines.planners.adaptation import SwitchRule
from takeup.training.pipelines.profile import Link, Profile
from takeup.training.pipelines.schedule import PipelinePlan, Schedule
from training.pipelines.engine.pipeline_model import (
    NUM_MICROBATCHES,
    NUM_RANKS,
    OP_S,
    SleepingStage,
    gradients_of,
    largest_difference,
    make_batch,
    make_modules,
    reference,
)
from training.pipelines.engine.pretended_card import pretend

SLOW_LINK, DELAY_S = 2, 0.15  # much longer than a message waits for a core where cores are short
PATIENCE_S = 60.0
FAULTS = ExitStack()
EAGER = SwitchRule(least_gain_share=-1.0)  # takes any plan
ORDERS = ("one_f_one_b", "gpipe", "zb_h1", "zb_h2", "adaptra", "adaptra_as_published")


def slow_down(rank: int, delay_s: float = DELAY_S) -> Callable[[], object]:
    """From now on messages over the slow link take longer, in both directions; what is returned ends it."""
    truth = Profile.uniform(NUM_RANKS, NUM_MICROBATCHES, OP_S, {SLOW_LINK: Link(delay_s)})
    FAULTS.enter_context(delayed_sends(slow_wires(truth, rank)))
    return FAULTS.close


def error_of(rank: int, step: int, module: torch.nn.Module, pipeline: AdaptiveSchedule) -> float:
    """Run one iteration; the largest difference of a gradient from the reference."""
    module.zero_grad()
    inputs, targets = make_batch(step)
    losses: list[torch.Tensor] = []
    if rank == 0:
        pipeline.step(inputs)
    elif rank == NUM_RANKS - 1:
        pipeline.step(target=targets, losses=losses)
    else:
        pipeline.step()
    return largest_difference(gradients_of(module), reference(rank, step))


def make_pipeline(rank: int, module: torch.nn.Module, stage: type = PipelineStage, **options: Any) -> AdaptiveSchedule:
    made = stage(module, rank, NUM_RANKS, torch.device("cpu"))
    return AdaptiveSchedule(made, NUM_MICROBATCHES, torch.nn.functional.mse_loss, **options)


def swaps(rank: int) -> dict[str, Any]:
    """Every order after the other, on the same pipeline."""
    module = make_modules()[rank]
    pipeline = make_pipeline(rank, module, every=1000)
    profile = Profile.uniform(NUM_RANKS, NUM_MICROBATCHES, 0.01, {1: Link(0.03)})
    errors = {"start": error_of(rank, 0, module, pipeline)}
    for step, name in enumerate(ORDERS, 1):
        pipeline.use(find_policy(name).plan(profile).schedule)
        errors[name] = error_of(rank, step, module, pipeline)
    smallest = min(float(gradient.abs().max()) for gradient in reference(rank, 0))
    return {"errors": errors, "smallest": smallest, "version": pipeline.version, "changes": len(pipeline.changes)}


def unsplit(rank: int) -> dict[str, Any]:
    """Modules whose backward is one operation; the pipeline looks for a better order after every iteration."""
    module = make_modules()[rank]
    pipeline = make_pipeline(rank, module, every=1, split=False, max_live=5)
    errors = [error_of(rank, step, module, pipeline) for step in range(3)]
    return {"errors": errors, "version": pipeline.version, "order": pipeline.schedule.to_csv()}


def adapts(rank: int) -> dict[str, Any]:
    """A link is slow, and nobody says so."""
    slow_down(rank)
    module = make_modules()[rank]
    pipeline = make_pipeline(rank, module, SleepingStage, every=2)
    before = pipeline.schedule.to_csv()
    errors = [error_of(rank, step, module, pipeline) for step in range(8)]
    return {
        "errors": errors,
        "version": pipeline.version,
        "changes": [change.iteration for change in pipeline.changes],
        "before": before,
        "order": pipeline.schedule.to_csv(),
        "delays_s": [link.delay_s for link in pipeline.profile.links],
        "forwards_s": [stage.forward_s for stage in pipeline.profile.stages],
    }


def pretends(rank: int) -> dict[str, Any]:
    """As `adapts`, with stages that pretend to be on a card: copies, marks, and delegates on every link."""
    FAULTS.enter_context(pretend())
    return adapts(rank)


def chunks(rank: int) -> dict[str, Any]:
    """Two stages on every rank, in the orders of our planners, by PyTorch's own runtime and from a file."""
    given = Profile.uniform(NUM_RANKS, NUM_MICROBATCHES, 0.01, {1: Link(0.03)})
    plans = {name: find_policy(name).plan(given) for name in ("interleaved_1f1b", "zbv")}
    for name in tuple(plans):
        plans[f"adaptra as {name}"] = find_policy("adaptra").plan(plans[name].profile)
    return {name: error_in_chunks(rank, plan.schedule) for name, plan in plans.items()}


def error_in_chunks(rank: int, schedule: Schedule) -> float:
    """Run one iteration of stock PyTorch with several stages on a rank; the largest difference of a gradient."""
    modules = make_modules(schedule.num_stages)
    mine = [stage for stage, place in enumerate(schedule.placement) if place == rank]
    stages = [PipelineStage(modules[stage], stage, len(modules), torch.device("cpu")) for stage in mine]
    runtime = _PipelineScheduleRuntime(stages, NUM_MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)  # type: ignore[no-untyped-call]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "schedule.csv"
        path.write_text(schedule.to_csv())
        runtime._load_csv(str(path))
    inputs, targets = make_batch(0)
    last: dict[str, Any] = {"target": targets, "losses": []} if len(modules) - 1 in mine else {}
    runtime.step(*([inputs] if 0 in mine else []), **last)
    return max(largest_difference(gradients_of(modules[stage]), reference(stage, 0, len(modules))) for stage in mine)


def confuses(rank: int) -> dict[str, Any]:
    """One rank measures what cannot be: hand-overs that are not in the order of time."""
    module = make_modules()[rank]
    pipeline = make_pipeline(rank, module, every=1, rule=EAGER)
    if rank == 1:
        pipeline._watch.measured = lambda: 10**9 - np.arange(3 + 4 * NUM_MICROBATCHES)  # type: ignore[method-assign]
    errors = [error_of(rank, step, module, pipeline) for step in range(3)]
    return {"errors": errors, "version": pipeline.version}


def disagrees(rank: int) -> dict[str, Any]:
    """One rank claims to have changed its schedule, to the one that all follow."""
    module = make_modules()[rank]
    pipeline = make_pipeline(rank, module, every=2)
    error_of(rank, 0, module, pipeline)
    if rank == 2:
        pipeline.use(pipeline.schedule)
    try:
        error_of(rank, 1, module, pipeline)
    except TakeupError as error:
        return {"refused": str(error)}
    return {"refused": ""}


def fails(rank: int) -> dict[str, Any]:
    """One rank breaks in the middle of an iteration."""
    module = make_modules()[rank]
    pipeline = make_pipeline(rank, module, every=2)
    error_of(rank, 0, module, pipeline)
    if rank == 2:
        module.register_forward_pre_hook(lambda *_: 1 / 0)
    return {"error": error_of(rank, 1, module, pipeline)}


def delegates(rank: int) -> dict[str, Any]:
    """Delegates on all links, on none, and on some, one iteration after the other."""
    slow_down(rank, 5 * OP_S)  # enough for messages to be under way while others compute; nobody measures it here
    module = make_modules()[rank]
    pipeline = make_pipeline(rank, module, every=1000)
    errors = []
    for step, links in enumerate(({0, 1, 2}, set(), {0, 2}, {1}, {0, 1, 2})):
        pipeline._runtime.delegate(links)
        errors.append(error_of(rank, step, module, pipeline))
    return {"errors": errors}


def recovers(rank: int) -> dict[str, Any]:
    """A link is slow for some iterations and then is not."""
    restore = slow_down(rank)
    module = make_modules()[rank]
    pipeline = make_pipeline(rank, module, SleepingStage, every=1, rule=SwitchRule(patience=2, slow_share=12.0))
    errors, delegated = [], []
    for step in range(12):
        if step == 4:
            restore()
        errors.append(error_of(rank, step, module, pipeline))
        delegated.append(sorted(pipeline.delegated))
    return {"errors": errors, "delegated": delegated, "changes": [change.iteration for change in pipeline.changes]}


def few(rank: int) -> dict[str, Any]:
    """Fewer micro-batches than stages."""
    module = make_modules()[rank]
    made = PipelineStage(module, rank, NUM_RANKS, torch.device("cpu"))
    pipeline = AdaptiveSchedule(made, 2, torch.nn.functional.mse_loss, every=1)
    return {"errors": [error_of(rank, step, module, pipeline) for step in range(3)]}


def connection_to(peer: int) -> socket.socket:
    """The connection of the default group to another rank, found by its ports; call it on all ranks."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            each = socket.socket(fileno=os.dup(int(path.name)))
            found[each.getsockname()[1], each.getpeername()[1]] = each
    everyone: list[Any] = [None] * NUM_RANKS
    dist.all_gather_object(everyone, list(found))
    (ports,) = [ports for ports in found if ports[::-1] in everyone[peer]]
    return found[ports]


def breaks(rank: int) -> dict[str, Any]:
    """The connection between ranks 1 and 2 breaks in the middle of an iteration."""
    connection = connection_to({1: 2, 2: 1}.get(rank, 3 - rank))
    module = make_modules()[rank]
    pipeline = make_pipeline(rank, module, every=2)
    errors = [error_of(rank, 0, module, pipeline)]
    calls: list[int] = []

    def cut(*_: Any) -> None:
        calls.append(1)
        if rank == 1 and len(calls) == 4:
            connection.shutdown(socket.SHUT_RDWR)

    module.register_forward_pre_hook(cut)
    errors += [error_of(rank, step, module, pipeline) for step in range(1, 6)]
    return {"errors": errors, "failed": sorted(pipeline.failed)}


class Planning:
    """Plans as adaptra does, until it is told to do something else instead."""

    name = "planning"

    def __init__(self, instead: Callable[[Profile], PipelinePlan] | None = None) -> None:
        self._instead = instead
        self._num_plans = 0

    def plan(self, profile: Profile) -> PipelinePlan:
        self._num_plans += 1
        if self._instead is not None and self._num_plans > 1:  # the first is for what was not measured
            return self._instead(profile)
        return find_policy("adaptra").plan(profile)


def quarrels(rank: int) -> dict[str, Any]:
    """One rank plans another order than the others, and later fails to plan."""
    instead = {1: find_policy("gpipe").plan, 2: lambda profile: 1 / 0}
    found = {}
    for odd, plan in instead.items():
        module = make_modules()[rank]
        pipeline = make_pipeline(rank, module, every=1, planner=Planning(plan if rank == odd else None), rule=EAGER)  # type: ignore[arg-type]
        before = pipeline.schedule
        errors = [error_of(rank, step, module, pipeline) for step in range(3)]
        found[str(odd)] = {"errors": errors, "version": pipeline.version, "same": pipeline.schedule == before}
    return found


def stop_itself(number: int, *_: Any) -> Any:
    """What happens to a rank whose host fails."""
    os.kill(os.getpid(), number)


def struck(rank: int, strike: Callable[..., Any], when: str) -> dict[str, Any]:
    """Rank 2 is struck in the middle of an iteration, or while ranks plan what to switch to."""
    module = make_modules()[rank]
    planner = Planning(strike if rank == 2 and when == "planning" else None)
    pipeline = make_pipeline(rank, module, every=2, planner=planner, timeout_s=6.0)
    error_of(rank, 0, module, pipeline)
    if rank == 2 and when == "computing":
        module.register_forward_pre_hook(strike)
    try:
        error_of(rank, 1, module, pipeline)
    except TakeupError as error:
        return {"error": str(error)}
    return {"error": ""}


HEALTHY = (swaps, unsplit, adapts, pretends, chunks, delegates, recovers, few, quarrels, confuses, disagrees)
SCENARIOS: dict[str, Callable[[int], dict[str, Any]]] = {
    **{each.__name__: each for each in (*HEALTHY, fails, breaks)},
    **{
        f"{word}_while_{when}": partial(struck, strike=partial(stop_itself, number), when=when)
        for word, number in (("killed", signal.SIGKILL), ("stopped", signal.SIGSTOP))
        for when in ("computing", "planning")
    },
}


def run_rank(rank: int, folder: Path, scenarios: list[str]) -> None:
    """Join the others, run the scenarios one after the other, and write what came of them."""
    torch.set_num_threads(1)
    store = FileStore(str(folder / "store"), NUM_RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NUM_RANKS, timeout=timedelta(seconds=20))
    results = {}
    for name in scenarios:
        results[name] = SCENARIOS[name](rank)
        FAULTS.close()
    (folder / f"{rank}.json").write_text(json.dumps(results))
    os._exit(0)  # a rank that waited in vain must not wait again for those who are gone


def run_program(rank: int, program: Path) -> None:
    """What a rank does that torchrun starts; the store is a file, since a port might be taken."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(NUM_RANKS)}
    join = partial(dist.init_process_group, store=FileStore(str(program.with_suffix(".store")), NUM_RANKS))
    setattr(dist, "init_process_group", partial(join, rank=rank, world_size=NUM_RANKS))  # noqa: B010
    with program.with_suffix(f".{rank}.out").open("w") as out, redirect_stdout(out):
        runpy.run_path(str(program))


def end_all(ranks: list[Any], patience_s: float) -> None:
    """Wait for the ranks; once most have ended, the last is done soon as well or never will be."""
    while sum(rank.is_alive() for rank in ranks) > 1:
        time.sleep(0.02)
    for rank in ranks:
        rank.join(patience_s)
        rank.kill()
        rank.join()


def start_job(folder: Path, job: str) -> list[Any]:
    """Start the ranks of some scenarios or of a program."""
    fork = multiprocessing.get_context("fork")
    if job.endswith(".py"):
        ranks = [fork.Process(target=run_program, args=(rank, Path(job))) for rank in range(NUM_RANKS)]
    else:
        ranks = [fork.Process(target=run_rank, args=(rank, folder, job.split(","))) for rank in range(NUM_RANKS)]
    folder.mkdir(exist_ok=True)
    for rank in ranks:
        rank.start()
    return ranks


def end_job(folder: Path, job: str, ranks: list[Any]) -> None:
    """Wait for the ranks, and write down how they ended."""
    end_all(ranks, 0.0 if is_silent(job) else PATIENCE_S)
    (folder / "codes.json").write_text(json.dumps([rank.exitcode for rank in ranks]))


def is_silent(job: str) -> bool:
    """Whether a rank says nothing, so that the others wait until their time is over."""
    return job.startswith("stopped")


def main(folder: Path, jobs: list[str]) -> None:
    """Run one job after the other, each in a folder of its name; those that only wait do so side by side."""
    find_policy("adaptra").plan(Profile.uniform(NUM_RANKS, NUM_MICROBATCHES, 0.01))  # compiled once for all
    places = {job: folder / Path(job).stem for job in jobs}
    for job in jobs:
        if not is_silent(job):
            end_job(places[job], job, start_job(places[job], job))
    waiting = {job: start_job(places[job], job) for job in jobs if is_silent(job)}
    for job, ranks in waiting.items():
        end_job(places[job], job, ranks)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
