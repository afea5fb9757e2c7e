"""Traces of the profiler and dumps of the Flight Recorder: the slow rank, or the call that one never made, is named."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import Run
from takeup.errors import BadTrace
from takeup.training.stragglers.contract import CallLog
from takeup.training.stragglers.locate.standing import standing_suspects, standings
from takeup.training.stragglers.watch.reports import chrome_trace
from takeup.training.traces.flight_recorder import load_stuck_groups
from takeup.training.traces.profiler import load_calls
from training.stragglers.plain_job import Faults, data_parallel, logs_of, two_by_two

Trace = dict[str, Any]
NUM_RANKS, LOSS_BYTES = 4, 4
GROUP = [{"pg_name": "0", "ranks": list(range(NUM_RANKS))}]


def span(name: str, row: Any, **more: Any) -> Trace:
    lasts_us = max(0, int(row["ended_ns"]) - int(row["began_ns"])) / 1e3
    return {"ph": "X", "name": name, "ts": int(row["began_ns"]) / 1e3, "dur": lasts_us, **more}


def steps(log: CallLog, kind: str) -> list[Trace]:
    """One after each reduction of the loss."""
    losses = [row for row in log.calls if row["size_bytes"] == LOSS_BYTES]
    return [span("ProfilerStep#1", row, cat=kind) for row in losses]


def with_nccl(log: CallLog) -> list[Trace]:
    """Kernels with the arguments that name their group, and steps on the device."""
    named = {"Collective name": "allreduce", "Process Group Name": "0"}
    kernels = [
        span("ncclDevKernel", row, cat="kernel", args={**named, "In msg nelems": int(row["size_bytes"])})
        for row in log.calls
    ]
    return [*kernels, *steps(log, "gpu_user_annotation")]


def with_gloo(log: CallLog) -> list[Trace]:
    calls = [span("gloo:all_reduce", row, cat="user_annotation") for row in log.calls]
    return [*calls, *steps(log, "user_annotation")]


def written(folder: Path, events_of: Callable[[CallLog], list[Trace]], faults: Faults, config: Any = GROUP) -> Path:
    """A trace for every rank of a job of twenty iterations, whose clocks differ."""
    for log in logs_of(data_parallel(NUM_RANKS), 20, faults, 1):
        about = {"distributedInfo": {"rank": log.rank, "pg_config": config}}
        (folder / f"{log.rank}.json").write_text(json.dumps({**about, "traceEvents": events_of(log)}), "utf-8")
    return folder


@pytest.mark.parametrize("events_of", [with_nccl, with_gloo])
def test_the_slow_rank_in_traces_of_all_ranks_is_named_with_its_cost(
    events_of: Callable[[CallLog], list[Trace]], tmp_path: Path, run: Run
) -> None:
    folder = written(tmp_path, events_of, Faults(ranks={2: 1.5}))

    outcome = run("training", "whatif", folder)

    assert outcome.code == 0, outcome.err
    assert "rank 2 computes 1.5" in outcome.out
    assert " and rank" not in outcome.out


def test_in_traces_of_ranks_that_are_alike_none_is_named(tmp_path: Path, run: Run) -> None:
    outcome = run("training", "whatif", written(tmp_path, with_nccl, Faults()))

    assert "no rank is clearly slower than others" in outcome.out


@pytest.mark.parametrize("job", [data_parallel(NUM_RANKS), two_by_two()])
def test_a_trace_that_watch_has_written_has_the_calls_again(job: Any, tmp_path: Path) -> None:
    logs = logs_of(job, 40, Faults(ranks={2: 1.5}), 1)
    path = tmp_path / "event-001.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(chrome_trace(logs)).encode()))

    found = load_calls(path)

    for one, other in zip(logs, found, strict=True):
        assert [one.calls[name].tolist() for name in ("operation", "peer", "number", "size_bytes")] == [
            other.calls[name].tolist() for name in ("operation", "peer", "number", "size_bytes")
        ]
    assert [each.ranks for each in standing_suspects(standings(found))] == [
        each.ranks for each in standing_suspects(standings(logs))
    ]


def without_a_call(log: CallLog) -> list[Trace]:
    return with_nccl(log)[log.rank == 1 :]


def with_messages(log: CallLog) -> list[Trace]:
    return [*with_gloo(log), span("gloo:send", log.calls[0])]


@pytest.mark.parametrize(
    ("events_of", "config", "words"),
    [
        (without_a_call, GROUP, "profile the same steps on all ranks"),
        (with_messages, GROUP, "messages without their peers"),
        (with_gloo, [*GROUP, {"pg_name": "1", "ranks": [0]}], "calls of Gloo in 2 groups"),
        (with_nccl, [], "a group whose ranks it does not list"),
        (lambda log: steps(log, "user_annotation"), GROUP, "no collective calls"),
        (lambda log: [*with_nccl(log)[:3], *steps(log, "user_annotation")[:1]], GROUP, "too few steps"),
        (lambda log: with_nccl(log)[:9], GROUP, "no steps"),
        (lambda _: [{"ph": "X"}], GROUP, "no trace of a rank"),
    ],
)
def test_traces_that_cannot_be_compared_are_refused(
    events_of: Callable[[CallLog], list[Trace]], config: Any, words: str, tmp_path: Path, run: Run
) -> None:
    outcome = run("training", "whatif", written(tmp_path, events_of, Faults(), config))

    assert (outcome.code, words in outcome.err) == (2, True), outcome.err


# Flight Recorder ------------------------------------------------------------------------------------------------------


def entry(number: int, name: str = "nccl:all_reduce", size: int = 8) -> Trace:
    at = {"process_group": ("0", "default_pg"), "collective_seq_id": number, "is_p2p": False}
    return {**at, "profiling_name": name, "input_sizes": [[size]]}


def dumped(folder: Path, ranks: dict[int, list[Trace]], *, as_json: bool = False) -> Path:
    """A dump for each of these ranks, of a job of three."""
    for rank, entries in ranks.items():
        dump = {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}}
        data = {**dump, "entries": entries}
        name = folder / f"nccl_trace_rank_{rank}{'.json' if as_json else ''}"
        name.write_bytes(json.dumps(data).encode() if as_json else pickle.dumps(data))
    return folder


@pytest.mark.parametrize("as_json", [False, True])
def test_the_rank_that_never_made_a_call_is_named(tmp_path: Path, run: Run, *, as_json: bool) -> None:
    calls = [entry(number) for number in range(5, 9)]

    outcome = run("training", "whatif", dumped(tmp_path, {0: calls, 1: calls[:-2], 2: calls}, as_json=as_json))

    assert outcome.code == 0, outcome.err
    told = outcome.out.replace("\n", " ")
    assert "call 7 of group default_pg (nccl:all_reduce by ranks 0, 2) was never made by rank 1" in told
    assert "the last calls there are 6 of rank 1" in told


def test_a_rank_without_a_dump_has_made_no_call(tmp_path: Path) -> None:
    (found,) = load_stuck_groups(dumped(tmp_path, {0: [entry(1)], 2: [entry(1)]}))

    assert found.missing == {1: 0}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (entry(6, "nccl:broadcast"), "nccl:all_reduce by ranks 0, 2 and nccl:broadcast by rank 1"),
        (entry(6, size=9), "nccl:all_reduce of [[8]] by ranks 0, 2 and nccl:all_reduce of [[9]] by rank 1"),
    ],
)
def test_calls_that_do_not_match_are_told(other: Trace, words: str, tmp_path: Path) -> None:
    calls = [entry(5), entry(6), entry(7)]

    (found,) = load_stuck_groups(dumped(tmp_path, {0: calls, 1: [calls[0], other, calls[2]], 2: calls}))

    assert found.sentence() == f"call 6 of group default_pg differs: {words}"


def test_ranks_that_have_made_the_same_calls_hang_nowhere(tmp_path: Path, run: Run) -> None:
    outcome = run("training", "whatif", dumped(tmp_path, {rank: [entry(1), entry(2)] for rank in range(3)}))

    assert "all ranks have made the same calls" in outcome.out


def test_a_pickle_that_would_execute_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(pickle.dumps(os.getcwd))

    with pytest.raises(BadTrace, match="would execute it"):
        load_stuck_groups(tmp_path / "rank_0")


# Real ones ------------------------------------------------------------------------------------------------------------

JOB = """
import os, sys, time, torch, torch.distributed as dist
from torch._C import _distributed_c10d
from torch.profiler import ProfilerActivity, profile, schedule

def be_rank(rank, folder):
    dist.init_process_group("gloo", store=dist.FileStore(folder + "/store", 3), rank=rank, world_size=3)
    ready = lambda profiler: profiler.export_chrome_trace(f"{folder}/profiles/{rank}.json")
    steps = schedule(wait=1, warmup=1, active=10)
    with profile(activities=[ProfilerActivity.CPU], schedule=steps, on_trace_ready=ready) as profiler:
        for _ in range(12):
            time.sleep(0.15 if rank == 1 else 0.05)
            dist.all_reduce(torch.ones(8))
            profiler.step()
    if rank != 2:
        dist.barrier(async_op=True)
    with open(f"{folder}/dumps/rank_{rank}", "wb") as file:
        file.write(_distributed_c10d._dump_fr_trace(True, False, False))
    os._exit(0)

torch.set_num_threads(1)
ranks = [torch.multiprocessing.get_context("fork").Process(target=be_rank, args=(n, sys.argv[1])) for n in range(3)]
[rank.start() for rank in ranks]
[rank.join() for rank in ranks]
"""


@pytest.mark.engine
@pytest.mark.xdist_group("pytorch")
def test_what_pytorch_writes_is_read(tmp_path: Path, run: Run) -> None:
    pytest.importorskip("torch", reason="needs the package torch")
    for name in ("profiles", "dumps"):
        (tmp_path / name).mkdir()
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "100"}
    subprocess.run([sys.executable, "-W", "ignore", "-c", JOB, str(tmp_path)], check=True, env=environment)

    slow, stuck = (run("training", "whatif", tmp_path / name) for name in ("profiles", "dumps"))

    assert "rank 1 computes" in slow.out, slow.err
    assert "(gloo:barrier by ranks 0, 1) was never made by rank 2" in stuck.out.replace("\n", " "), stuck.err


def test_a_number_of_a_call_that_is_far_off_takes_no_time_and_an_infinite_one_is_refused(tmp_path: Path) -> None:
    far, endless = (tmp_path / name for name in ("far", "endless"))
    far.mkdir()
    endless.mkdir()
    dumped(far, {rank: [entry(1), entry(10**12)] for rank in range(3)})
    dumped(endless, {0: [{**entry(1), "collective_seq_id": 1e999}]})

    assert load_stuck_groups(far) == []
    with pytest.raises(BadTrace, match="is no dump"):
        load_stuck_groups(endless)
