"""One function over many points, on local processes or on a Dask cluster: the same results in the same order."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, TypeVar

from takeup.core.extras import need
from takeup.errors import BadInput, TakeupError

P = TypeVar("P")
R = TypeVar("R")
ProgressCallback = Callable[[int, int], None]

CONNECT_TIMEOUT_S = 3


def sweep(
    function: Callable[[P], R],
    points: Sequence[P],
    *,
    on: str | None = None,
    num_processes: int | None = None,
    progress: ProgressCallback | None = None,
) -> list[R]:
    """`function` of every point, in the order of the points; `progress` receives the numbers done and in total.

    The first error ends the sweep and is raised here. `on` is the address of a Dask scheduler, such as
    `tcp://127.0.0.1:8786`; otherwise `num_processes` local processes share the work, as many as there are cores.
    """
    if num_processes is not None and num_processes < 1:
        raise BadInput(f"cannot work with {num_processes} processes; choose one or more")
    report = progress or (lambda num_done, num_points: None)
    if on is not None:
        return _sweep_on_dask(function, points, on, report)
    num_workers = min(num_processes or _num_cores(), len(points))
    if num_workers <= 1:
        return _sweep_here(function, points, report)
    return _sweep_on_processes(function, points, num_workers, report)


def _sweep_here(function: Callable[[P], R], points: Sequence[P], report: ProgressCallback) -> list[R]:
    results = []
    for num_done, point in enumerate(points, start=1):
        results.append(function(point))
        report(num_done, len(points))
    return results


def _sweep_on_processes(
    function: Callable[[P], R], points: Sequence[P], num_workers: int, report: ProgressCallback
) -> list[R]:
    # Fresh processes, because a fork of one that runs threads (numba, pyarrow) may hang.
    pool = ProcessPoolExecutor(num_workers, get_context("spawn"))
    try:
        with _block_interrupts():
            futures = [pool.submit(function, point) for point in points]
        _await_all(as_completed(futures), len(points), report)
        return [future.result() for future in futures]
    except BrokenProcessPool as error:
        raise TakeupError(
            "a worker process ended before its work was done: killed, out of memory, or started by a script without "
            "`if __name__ == '__main__':`\n\nhint: try fewer processes"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _block_interrupts() -> Iterator[None]:
    """Block SIGINT while child processes start, which inherit the mask: only the parent handles Ctrl-C."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _sweep_on_dask(function: Callable[[P], R], points: Sequence[P], address: str, report: ProgressCallback) -> list[R]:
    with _dask_client(address) as client:
        import distributed

        futures = client.map(function, points, pure=False)
        finished: Any = distributed.as_completed(futures, loop=client.loop)  # type: ignore[no-untyped-call]
        try:
            _await_all(finished, len(points), report)
            return list(client.gather(futures))
        except distributed.KilledWorker as error:
            raise TakeupError(f"workers of {address} died again and again on the same point: {error}") from error
        except distributed.CancelledError as error:
            raise TakeupError(f"the cluster at {address} dropped the sweep: {error}") from error
        finally:
            client.cancel(futures)


def _dask_client(address: str) -> Any:
    need("a sweep on Dask", "dask")
    from distributed import Client

    _require_scheduler(address)
    client: Any = Client(address, timeout=CONNECT_TIMEOUT_S, set_as_default=False)  # type: ignore[no-untyped-call]
    if not client.scheduler_info()["workers"]:
        client.close()
        raise BadInput(f"the Dask cluster at {address} has no workers; start one with `dask worker {address}`")
    return client


def _require_scheduler(address: str) -> None:
    """Do one handshake first: a Client waits forever on a server that accepts the connection and never answers."""
    try:
        with ThreadPoolExecutor(1) as thread:  # a separate one, as the caller may be inside an event loop
            thread.submit(asyncio.run, _handshake(address)).result()
    except Exception as error:  # what arrives depends on what answers there instead of Dask
        problem = f"no Dask scheduler answers at {address!r} ({error or 'it stays silent'})"
        raise BadInput(
            f"{problem}; give the address that `dask scheduler` prints, such as tcp://127.0.0.1:8786"
        ) from error


async def _handshake(address: str) -> None:
    from distributed.comm import connect  # type: ignore[attr-defined]

    attempt: Any = connect(address, timeout=CONNECT_TIMEOUT_S)  # type: ignore[no-untyped-call]
    connection = await asyncio.wait_for(attempt, CONNECT_TIMEOUT_S + 1)
    await connection.close()


def _await_all(finished: Iterable[Any], num_points: int, report: ProgressCallback) -> None:
    for num_done, future in enumerate(finished, start=1):
        future.result()
        report(num_done, num_points)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
