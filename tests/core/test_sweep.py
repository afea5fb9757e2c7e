"""Sweeps: the same list from one process, several processes and a Dask cluster; errors arrive as they were raised."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from sweep_functions import die, divide_by, fail_at_two, finish_in_reverse, square, unknown, worker_of
from takeup.core.sweep import sweep
from takeup.errors import BadInput, BadTrace, MissingEngine, TakeupError, UnknownName


def test_one_process_works_in_the_process_of_the_caller() -> None:
    assert sweep(worker_of, [1, 2, 3], num_processes=1) == [os.getpid()] * 3


def test_one_point_needs_no_other_process() -> None:
    assert sweep(worker_of, [1]) == [os.getpid()]


def test_no_points_give_no_results() -> None:
    assert sweep(square, []) == []


def test_several_processes_give_the_results_of_one() -> None:
    workers = set(sweep(worker_of, range(6), num_processes=2))

    assert os.getpid() not in workers
    assert sweep(square, range(20), num_processes=2) == [square(point) for point in range(20)]


def test_results_come_in_the_order_of_the_points_whatever_finishes_first() -> None:
    assert sweep(finish_in_reverse, [0, 1, 2, 3], num_processes=2) == [0, 1, 2, 3]


@pytest.mark.parametrize("num_processes", [1, 2])
def test_progress_counts_up_to_the_number_of_points(num_processes: int) -> None:
    seen: list[tuple[int, int]] = []
    sweep(square, [1, 2, 3], num_processes=num_processes, progress=lambda done, total: seen.append((done, total)))

    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize("num_processes", [1, 2])
def test_an_error_of_ours_arrives_as_it_was_raised(num_processes: int) -> None:
    with pytest.raises(BadTrace) as caught:
        sweep(fail_at_two, [1, 2, 3], num_processes=num_processes)

    assert str(caught.value) == "trace.csv, line 7, column 'time_s': 'x' is not a number"


def test_an_unknown_name_keeps_its_suggestion_on_the_way() -> None:
    with pytest.raises(UnknownName, match="did you mean 'lrc'"):
        sweep(unknown, [1, 2], num_processes=2)


def test_any_other_error_arrives_too() -> None:
    with pytest.raises(ZeroDivisionError):
        sweep(divide_by, [1, 0], num_processes=2)


def test_a_process_that_dies_is_an_error_and_not_a_hang() -> None:
    with pytest.raises(TakeupError, match="a worker process ended before its work was done"):
        sweep(die, [1, 1], num_processes=2)


@pytest.mark.parametrize("num_processes", [0, -1])
def test_there_is_at_least_one_process(num_processes: int) -> None:
    with pytest.raises(BadInput, match=f"cannot work with {num_processes} processes"):
        sweep(square, [1, 2], num_processes=num_processes)


def test_an_interrupt_cancels_what_has_not_started(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        textwrap.dedent("""
        import pathlib, signal, time
        from takeup.core.sweep import sweep

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores interrupts

        def work(point):
            pathlib.Path(f"started {point}").touch()
            time.sleep(1)

        if __name__ == "__main__":
            sweep(work, range(100), num_processes=2)
        """)
    )
    process = subprocess.Popen(
        [sys.executable, "slow.py"], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not list(tmp_path.glob("started *")):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers as well
    _, errors = process.communicate()

    assert process.returncode != 0
    assert errors.count("Traceback") == 1
    assert len(list(tmp_path.glob("started *"))) < 20


def test_a_sweep_on_dask_without_the_package_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)

    with pytest.raises(MissingEngine, match=r"needs the package 'distributed'; run pip install 'takeup\[dask\]'"):
        sweep(square, [1, 2], on="tcp://127.0.0.1:8786")


@contextmanager
def server(says: bytes | None) -> Iterator[str]:
    """The address of something that is not Dask: it says this at once, or (None) takes no connection at all."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if says is not None:
            listener.listen()
        if says:
            Thread(target=answer_once, args=(listener, says), daemon=True).start()
        yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"


def answer_once(listener: socket.socket, says: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.sendall(says)


@pytest.fixture
def long_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a scheduler that is there, on a machine that is busy."""
    monkeypatch.setattr("takeup.core.sweep.CONNECT_TIMEOUT_S", 60)


@pytest.fixture
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("takeup.core.sweep.CONNECT_TIMEOUT_S", 0.5)


@pytest.mark.engine
@pytest.mark.usefixtures("short_timeout")
@pytest.mark.parametrize("says", [None, b"", b"HTTP/1.1 400 Bad Request"], ids=["closed", "silent", "another protocol"])
def test_an_address_where_no_scheduler_answers_is_refused_in_time(says: bytes | None) -> None:
    pytest.importorskip("distributed", reason="needs the package 'distributed'")

    with server(says) as address, pytest.raises(BadInput, match=f"no Dask scheduler answers at '{address}'"):
        sweep(square, [1, 2], on=address)


@pytest.mark.engine
@pytest.mark.parametrize("address", ["", "nonsense", "tcp://", "ftp://host:21"])
def test_what_is_not_an_address_is_refused(address: str) -> None:
    pytest.importorskip("distributed", reason="needs the package 'distributed'")

    with pytest.raises(BadInput, match="give the address that `dask scheduler` prints"):
        sweep(square, [1, 2], on=address)


@pytest.mark.engine
@pytest.mark.usefixtures("long_timeout")
def test_a_cluster_gives_the_results_of_one_process() -> None:
    distributed = pytest.importorskip("distributed", reason="needs the package 'distributed'")
    seen: list[tuple[int, int]] = []
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address
        results = sweep(square, range(10), on=address, progress=lambda *counts: seen.append(counts))
        workers = set(sweep(worker_of, range(10), on=address))
        with pytest.raises(BadTrace, match="line 7, column 'time_s'"):
            sweep(fail_at_two, [1, 2, 3], on=address)

        async def inside_an_event_loop() -> list[int]:
            return sweep(square, [3, 4], on=address)

        inside = asyncio.run(inside_an_event_loop())

    assert results == [square(point) for point in range(10)]
    assert seen[-1] == (10, 10)
    assert os.getpid() not in workers
    assert inside == [9, 16]


@pytest.mark.engine
@pytest.mark.usefixtures("long_timeout")
def test_a_cluster_without_workers_is_refused() -> None:
    distributed = pytest.importorskip("distributed", reason="needs the package 'distributed'")

    with (
        distributed.LocalCluster(n_workers=0, processes=True, host="127.0.0.1", dashboard_address=None) as cluster,
        pytest.raises(BadInput, match="has no workers; start one with `dask worker tcp://"),
    ):
        sweep(square, [1, 2], on=cluster.scheduler_address)
