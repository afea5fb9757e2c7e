"""The hook in real ranks: DDP, FSDP2 and messages are seen, alike on all ranks, and the job computes the same."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from support.watch_lab import JobRecord, SlowPeriod, WatchedJob, run_jobs
from takeup.training.stragglers.contract import CallLog, Operation
from takeup.training.stragglers.watch.ring import HeaderWord, RingBuffer

torch = pytest.importorskip("torch", reason="needs the package torch")

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("watch")]

NUM_ITERATIONS = 12
SLOW = (SlowPeriod((1,), 4, 8, factor=6.0), SlowPeriod((0, 1), 8, 12, delay_s=0.05))
JOBS = (
    WatchedJob("ddp", num_iterations=NUM_ITERATIONS, slow=SLOW[:1], is_sporadic=True),
    WatchedJob("ddp", num_iterations=NUM_ITERATIONS, slow=SLOW[:1], is_sporadic=True, is_watched=False),
    WatchedJob("fsdp", num_ranks=2, num_iterations=NUM_ITERATIONS),
    WatchedJob("pipeline", num_iterations=NUM_ITERATIONS, slow=SLOW[1:]),
    WatchedJob("grid", num_iterations=NUM_ITERATIONS),
)


@cache
def recorded() -> dict[str, JobRecord]:
    names = ("ddp", "ddp alone", "fsdp", "pipeline", "grid")
    return dict(zip(names, run_jobs(JOBS), strict=True))


def of_kind(log: CallLog, operation: Operation) -> npt.NDArray[np.void]:
    calls: npt.NDArray[np.void] = log.calls[log.calls["operation"] == operation]
    return calls


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "grid"])
def test_ranks_of_a_group_note_the_same_collectives_in_the_same_order(kind: str) -> None:
    logs = recorded()[kind].logs
    for group, ranks in ((group, ranks) for group, ranks in logs[0].groups.items() if ranks):
        of_ranks = [log.calls[(log.calls["group"] == group) & (log.calls["peer"] < 0)] for log in logs]
        first = of_ranks[ranks[0]]

        assert first["number"].tolist() == list(range(len(first)))
        for rank in ranks:
            assert (
                of_ranks[rank][["operation", "number", "size_bytes"]].tolist()
                == first[["operation", "number", "size_bytes"]].tolist()
            )


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "pipeline", "grid"])
def test_every_call_has_an_end(kind: str) -> None:
    for log in recorded()[kind].logs:
        assert (log.calls["ended_ns"] >= log.calls["began_ns"]).all()
        assert (np.diff(log.calls["began_ns"]) >= 0).all()
    assert recorded()[kind].num_bad == 0


def test_the_reducer_of_ddp_is_seen_although_it_is_not_python() -> None:
    reductions = of_kind(recorded()["ddp"].logs[0], Operation.ALL_REDUCE)
    sizes, counts = np.unique(reductions["size_bytes"], return_counts=True)

    assert dict(zip(sizes.tolist(), counts.tolist(), strict=True))[33_540] == NUM_ITERATIONS  # all its gradients


def test_fsdp_gathers_and_scatters() -> None:
    log = recorded()["fsdp"].logs[0]

    assert len(of_kind(log, Operation.ALL_GATHER)) >= 3 * NUM_ITERATIONS
    assert len(of_kind(log, Operation.REDUCE_SCATTER)) == 3 * NUM_ITERATIONS


def test_the_slow_rank_waits_least_and_the_others_for_it() -> None:
    waits_ns = []
    for log in recorded()["ddp"].logs:
        calls = of_kind(log, Operation.ALL_REDUCE)
        calls = calls[calls["size_bytes"] == 33_540]
        waits_ns.append((calls["ended_ns"] - calls["began_ns"])[4:8])

    assert np.median(waits_ns, axis=1).argmin() == 1


def test_what_one_rank_sends_another_receives_under_the_same_number() -> None:
    logs = recorded()["pipeline"].logs
    sent = of_kind(logs[1], Operation.SEND)
    received = of_kind(logs[2], Operation.RECEIVE)

    sent, received = sent[sent["peer"] == 2], received[received["peer"] == 1]
    assert sent["number"].tolist() == received["number"].tolist() == list(range(4 * NUM_ITERATIONS))
    assert sent["size_bytes"].tolist() == received["size_bytes"].tolist()


def test_a_slow_link_is_long_for_its_receiver() -> None:
    received = of_kind(recorded()["pipeline"].logs[1], Operation.RECEIVE)
    received = received[received["peer"] == 0]
    durations_s = (received["ended_ns"] - received["began_ns"]) * 1e-9

    assert (durations_s[4 * 8 :] >= 0.9 * 0.05).all()  # who begins to wait late waits for less
    assert np.median(durations_s[4 * 4 : 4 * 8]) < 0.9 * 0.05


def test_a_watched_job_computes_the_same_bit_for_bit() -> None:
    assert recorded()["ddp"].results == recorded()["ddp alone"].results
    assert recorded()["ddp alone"].logs == []


# In this process ------------------------------------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A job of one rank, in this process."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    store = FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_whatever_fails_in_noting_ends_the_noting_and_not_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import torch.distributed as dist

    from takeup.training.stragglers.watch import hook as hooks

    hook = hooks.install(tmp_path / "no such folder")
    tensor = torch.ones(3)
    with caplog.at_level(logging.WARNING, "takeup.training"):
        for _ in range(3):
            dist.all_reduce(tensor)

    assert hook.is_off
    assert tensor.tolist() == [1, 1, 1]
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "takeup no longer watches this rank, the job goes on"
    ]
    hooks.uninstall()


def test_a_script_can_log_what_the_watcher_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from takeup.training.stragglers.watch import hook, watched_values

    assert watched_values() == {}
    made = hook.CallHook(tmp_path)
    monkeypatch.setattr(hook, "_HOOKS", [made])
    assert watched_values() == {}
    made.ring = RingBuffer(tmp_path / "0-1.ring", 0, 4)
    assert watched_values() == {}
    made.ring.words[HeaderWord.COSTLY_RANK], made.ring.words[HeaderWord.COST_PPM] = 3, 250_000
    assert watched_values() == {"watch/costly_rank": 2, "watch/lost_share": 0.25, "watch/num_events": 0}
