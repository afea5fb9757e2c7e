"""On a real cluster of processes: the same sums as stock, whatever happens to workers, and nothing left afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed", reason="needs the package 'distributed': pip install 'takeup[dask]'")

from caching.engines.dask.dask_cluster import (
    NUM_BLOCKS,
    blocks,
    cluster,
    expected,
    scan,
    slow_total,
    spill_classes,
    total,
    wait,
)
from takeup.caching.engines.dask import DaskCounts, counters, install, uninstall
from takeup.caching.engines.dask.plugins import FROM_WORKER, NAME
from takeup.errors import UnknownName

pytestmark = pytest.mark.engine

GUIDED = ("GuidedMemory", "GuidedSlow", True)
STOCK = ("LRU", "Slow", False)


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    with cluster() as client:
        yield client


@pytest.fixture
def client(shared: Any) -> Iterator[Any]:
    yield shared
    uninstall(shared)
    shared.cancel(list(shared.futures))


def eventually(condition: Callable[[], bool], within_s: float = 60.0) -> bool:
    """A worker that is just going does not answer: that is not yet, not never."""
    give_up_s = time.monotonic() + within_s
    while time.monotonic() < give_up_s:
        with contextlib.suppress(OSError):
            if condition():
                return True
        time.sleep(0.05)
    return condition()


def all_are(client: Any, classes: tuple[str, str, bool], num_workers: int) -> bool:
    """So many workers, and no other, have these classes in their buffer."""
    answers = client.run(spill_classes, on_error="return")
    return len(answers) == num_workers and set(answers.values()) == {classes}


def num_told(dask_scheduler: Any) -> int:
    return len(dask_scheduler.plugins[NAME].notified)


def is_idle(client: Any) -> bool:
    """No consumer is open any more, neither at the workers nor at the scheduler, and nothing is pinned."""
    counts: DaskCounts = counters(client)
    return counts.num_open_consumers == counts.num_pinned == int(client.run_on_scheduler(num_told)) == 0


@pytest.mark.parametrize("policy", ["lru", "lrc", "lerc", "mrd", "furthest_next_use", "dag"])
def test_every_policy_gives_the_sums_of_stock_and_forgets_its_counts(client: Any, policy: str) -> None:
    install(client, policy)
    sums = scan(client, blocks(client), num_passes=2)

    assert sums == expected(num_passes=2)
    assert eventually(lambda: is_idle(client))
    counts = counters(client)
    assert counts.num_workers == 2
    assert counts.num_evictions > 0
    assert counts.num_hits + counts.num_misses > 0


def test_dag_reads_and_writes_less_than_stock(client: Any) -> None:
    def disk_bytes(dask_worker: Any) -> tuple[float, float]:
        metrics = dask_worker.data.cumulative_metrics
        return metrics["disk-read", "bytes"], metrics["disk-write", "bytes"]

    def moved() -> tuple[float, float]:
        before = client.run(disk_bytes)
        futures = blocks(client)
        for _ in range(6):
            client.gather(client.map(total, futures, pure=False))
        client.cancel(futures)
        read, written = (sum(now[i] - before[at][i] for at, now in client.run(disk_bytes).items()) for i in (0, 1))
        return read, written

    stock = moved()
    install(client, "dag")
    dag, counts = moved(), counters(client)

    assert dag[0] < 0.85 * stock[0]
    assert dag[1] < 0.5 * stock[1]
    assert (counts.stock_read_bytes, counts.stock_written_bytes) == pytest.approx(stock, rel=0.1)


def test_uninstall_gives_back_the_stock_classes_and_handlers(client: Any) -> None:
    install(client)
    futures = blocks(client)
    during = set(client.run(spill_classes).values())
    uninstall(client)

    assert during == {GUIDED}
    assert eventually(lambda: set(client.run(spill_classes).values()) == {STOCK})
    assert eventually(
        lambda: (
            not client.run_on_scheduler(
                lambda dask_scheduler: FROM_WORKER in dask_scheduler.stream_handlers or NAME in dask_scheduler.plugins
            )
        )
    )
    assert scan(client, futures) == expected()


def test_installing_again_changes_the_policy(client: Any) -> None:
    def policy(dask_worker: Any) -> str:
        return str(dask_worker.plugins[NAME].spec.base)

    install(client, "lrc")
    futures = blocks(client)
    install(client, "furthest_next_use")

    assert set(client.run(policy).values()) == {"furthest_next_use"}
    assert scan(client, futures) == expected()


def test_a_job_in_flight_is_known_after_installation(client: Any) -> None:
    futures = blocks(client)
    event_loop_is_free = client.submit(time.sleep, 0.5, pure=False)
    sums = client.map(lambda array, _: int(array.sum()), futures, [event_loop_is_free] * NUM_BLOCKS, pure=False)
    install(client, "lrc")

    assert eventually(lambda: counters(client).num_open_consumers > 0, within_s=5) or wait(sums).not_done == set()
    assert sum(client.gather(sums)) * 2 > 0
    assert eventually(lambda: is_idle(client))


def test_values_on_disk_reach_other_workers(client: Any) -> None:
    install(client)
    futures = blocks(client)
    address = sorted(client.scheduler_info()["workers"])[0]
    sums = [client.submit(lambda array: int(array.sum()), future, workers=[address], pure=False) for future in futures]

    assert sum(client.gather(sums)) == sum(range(NUM_BLOCKS)) * (200_000 // 8 - 16)
    assert eventually(lambda: is_idle(client))


def test_failed_and_cancelled_tasks_leave_no_counts(client: Any) -> None:
    install(client, "lrc")
    futures = blocks(client)
    failing = client.map(lambda array: 1 // 0, futures, pure=False)
    waiting = client.map(lambda array, _: array, futures, failing, pure=False)
    wait(failing)
    cancelled = client.map(lambda array: time.sleep(0.2), futures, pure=False)
    client.cancel(cancelled)

    assert all(future.status == "error" for future in failing)
    assert eventually(lambda: all(future.status == "error" for future in waiting))
    assert eventually(lambda: is_idle(client))


def test_replicas_and_the_active_memory_manager_do_no_harm(client: Any) -> None:
    install(client)
    client.amm.start()
    futures = blocks(client)
    client.replicate(futures[:4], n=2)
    sums = scan(client, futures)
    client.amm.stop()

    assert sums == expected()
    assert eventually(lambda: is_idle(client))


def test_a_guide_that_fails_leaves_stock_behaviour_and_right_sums(client: Any) -> None:
    def break_it(dask_worker: Any) -> None:
        dask_worker.plugins[NAME].hooks.guide.order._order = None

    install(client)
    futures = blocks(client)
    client.run(break_it)

    assert scan(client, futures) == expected()
    assert eventually(lambda: set(client.run(spill_classes).values()) == {STOCK})
    assert counters(client).num_workers == 0


def test_a_scheduler_half_that_fails_sends_all_workers_back_to_stock(client: Any) -> None:
    def break_it(dask_scheduler: Any) -> None:
        dask_scheduler.plugins[NAME]._announce = None

    install(client)
    futures = blocks(client)
    client.run_on_scheduler(break_it)

    assert scan(client, futures) == expected()
    assert eventually(lambda: set(client.run(spill_classes).values()) == {STOCK})


def test_an_unknown_policy_or_option_is_named(client: Any) -> None:
    with pytest.raises(UnknownName, match="did you mean 'lrc'"):
        install(client, "lrcc")
    with pytest.raises(UnknownName, match="policy for Dask 'belady'"):
        install(client, "belady")
    with pytest.raises(UnknownName, match="did you mean 'clean_copies'"):
        install(client, clean_copy=True)


# Workers that come and go ---------------------------------------------------------------------------------------------


def test_workers_that_are_restarted_are_guided_again() -> None:
    with cluster() as client:
        install(client)
        before = set(client.run(os.getpid).values())
        client.restart(timeout=300)

        assert eventually(lambda: all_are(client, GUIDED, 2))
        assert before.isdisjoint(client.run(os.getpid).values())
        assert scan(client, blocks(client)) == expected()
        assert eventually(lambda: is_idle(client))


def test_workers_that_are_added_are_guided_and_those_retired_hand_over_their_values() -> None:
    with cluster() as client:
        install(client)
        futures = blocks(client)
        client.cluster.scale(3)
        client.wait_for_workers(3, timeout=300)
        assert eventually(lambda: all_are(client, GUIDED, 3))
        assert scan(client, futures) == expected()

        client.retire_workers(sorted(client.scheduler_info()["workers"])[:1])
        assert scan(client, futures) == expected()
        assert eventually(lambda: is_idle(client))


def test_a_killed_worker_costs_time_but_neither_sums_nor_counts() -> None:
    with cluster() as client:
        install(client)
        futures = blocks(client)
        running = client.map(slow_total, futures, pure=False)
        victim = client.run(os.getpid)[sorted(client.scheduler_info()["workers"])[0]]
        os.kill(victim, signal.SIGKILL)

        assert sum(client.gather(running)) == sum(range(NUM_BLOCKS)) * (200_000 // 8 - 16)
        assert scan(client, futures) == expected()
        assert eventually(lambda: all_are(client, GUIDED, 2))
        assert eventually(lambda: is_idle(client))


def test_max_spill_is_kept_and_loses_nothing() -> None:
    with cluster(processes=False, settings={"distributed.worker.memory.max-spill": "500kB"}) as client:
        install(client)
        futures = blocks(client)

        assert scan(client, futures) == expected()
        spilled = client.run(lambda dask_worker: dask_worker.data.spilled_total.disk)
        copies = counters(client).copies_bytes
        assert sum(spilled.values()) + copies <= 2 * 500_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if not hasattr(os, "geteuid") or os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_a_full_spill_disk_loses_nothing(small_disk: Path) -> None:
    with cluster(local_directory=str(small_disk)) as client:
        install(client)
        futures = blocks(client)

        assert scan(client, futures) == expected()
        assert counters(client).num_workers == 2
        assert eventually(lambda: is_idle(client))


def test_threads_in_one_process_work_too() -> None:
    with cluster(processes=False) as client:
        install(client)

        assert scan(client, blocks(client)) == expected()
        uninstall(client)
        assert eventually(lambda: set(client.run(spill_classes).values()) == {STOCK})


def test_a_worker_that_does_not_spill_keeps_its_dictionary() -> None:
    with cluster(1, processes=False, settings={"distributed.worker.memory.target": False}) as client:
        install(client)

        assert scan(client, blocks(client)) == expected()
        assert counters(client) == DaskCounts()
        uninstall(client)
