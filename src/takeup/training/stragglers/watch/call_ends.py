"""When asynchronous calls end: threads that wait for them on the host, stream events on CUDA."""

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

# End times of asynchronous calls: one thread per process group waits for them in order --------------------------------
#
# Callbacks of their futures are no alternative, as they run in Gloo's own threads. Destroying a process group holds the
# GIL until these threads have ended, and a callback needs the GIL to finish: a deadlock.
#
# The waiting thread is late when it must also wait for the GIL or for a core. Meanwhile a rank that has waited for the
# same call starts its next one. So at the start of every call, completed calls are recorded first.

PLAIN_WAIT = dist.Work.wait
PATIENCE_S = 1.0
MOMENT_S = 0.5


@dataclass(slots=True)
class _GroupQueue:
    """FIFO queue of a group's calls, and the thread that waits for them."""

    queue: SimpleQueue[tuple[int, Any] | None] = field(default_factory=SimpleQueue)
    is_given_up: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread = field(default_factory=threading.Thread)


class CallEndThreads:
    """Calls `ended` with every row whose call has ended."""

    def __init__(self, ended: Callable[[int], None]) -> None:
        self._ended = ended
        self._groups: dict[int, _GroupQueue] = {}
        self.under_way: dict[int, Any] = {}  # by row

    def add(self, group: int, row: int, work: Any) -> None:
        """Enqueue a call to wait for; calls of one group end in the order in which they began."""
        calls = self._groups.get(group) or self._begin(group)
        self.under_way[row] = work
        calls.queue.put((row, work))

    def settle(self) -> None:
        """Report all calls that have completed by now."""
        for row, work in list(self.under_way.items()):
            if work.is_completed():
                self._end(row)

    def _end(self, row: int) -> None:
        """Report a row exactly once, from whichever thread is first."""
        if self.under_way.pop(row, None) is not None:
            self._ended(row)

    def close(self) -> None:
        """Wait for pending calls, with a timeout, and join all threads, as the job is about to exit."""
        closing, self._groups = list(self._groups.values()), {}
        for calls in closing:
            calls.queue.put(None)
        for calls in closing:
            calls.thread.join(PATIENCE_S)
            calls.is_given_up.set()
        for calls in closing:
            calls.thread.join()

    def _begin(self, group: int) -> _GroupQueue:
        calls = self._groups[group] = _GroupQueue()
        calls.thread = threading.Thread(target=self._follow, args=(calls,), name="takeup-ends", daemon=True)
        calls.thread.start()
        return calls

    def _follow(self, calls: _GroupQueue) -> None:
        while (item := calls.queue.get()) is not None:
            row, work = item
            while not _is_over(work):
                if calls.is_given_up.is_set():
                    return
            self._end(row)
            del item, work  # do not keep its tensors alive


def _is_over(work: Any) -> bool:
    """Wait at most `MOMENT_S`. Some calls never report completion, but can be waited for."""
    if work.is_completed():
        return True
    began_s = time.monotonic()
    try:
        PLAIN_WAIT(work, timedelta(seconds=MOMENT_S))
    except RuntimeError:  # timeout; or the call failed, which its caller sees
        return work.is_completed() or time.monotonic() < began_s + MOMENT_S
    return True


# Durations of calls on a CUDA device, by stream events that are read later, without synchronization -------------------
#
# While any thread captures a CUDA graph, a query of an event from another thread would invalidate the capture, unless
# that thread has switched itself to the relaxed mode of captures, as the one that polls does. Calls that are themselves
# captured get no events; what a replay communicates is not seen.
#
# How it works. An event before the call records when the device reached it, one after it when it was done. Messages and
# asynchronous calls run on a separate stream, so their second event is recorded on a side stream that waits for them;
# for calls in a batch, once the batch is started. A thread polls for completed events and recycles them. A call starts
# when the host made it, and its duration is the device time from when the device reached it: waiting plus transfer.
#
# This holds for NCCL. Other backends wait on the host, also for tensors on a device; so do we.

LOOK_EVERY_S = 0.05
MOST_PENDING = 4_096
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
CUDA: Any = torch.cuda  # its classes have no types
Pair = tuple[Any, Any]


def relax_captures() -> None:
    """Allow this thread to query events while others capture graphs; without the driver there are no captures."""
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(RELAXED)))


class CudaCallEnds:
    """Records events around calls, and stores their durations in the rows of `hook`."""

    def __init__(self, hook: Any) -> None:
        self._hook = hook
        self._pending: deque[tuple[int, Pair]] = deque()
        self._free: list[Pair] = []
        self._sides: dict[int, Any] = {}
        self._on_streams: dict[Any, bool] = {}
        self._batches: dict[Any, list[tuple[int, Pair]]] = {}
        self._thread: threading.Thread | None = None

    def are_on_streams(self, group: Any) -> bool:
        """Whether calls of a process group run on streams of the device, as those of NCCL do."""
        found = self._on_streams.get(group)
        if found is None:
            found = self._on_streams[group] = _backend(group) == "nccl"
        return found

    def watch_batches(self, groups: Any) -> Callable[[], None]:
        """Time calls that are started together by their batch; the returned function restores this class of groups."""
        begin, end = (vars(groups)[name] for name in ("_start_coalescing", "_end_coalescing"))

        def begin_batch(group: Any, *arguments: Any) -> Any:
            self._batches[group] = []
            return begin(group, *arguments)

        def end_batch(group: Any, *arguments: Any) -> Any:
            work, calls = end(group, *arguments), self._batches.pop(group, [])
            for row, pair in calls:
                self._end(row, pair, work)
            return work

        groups._start_coalescing, groups._end_coalescing = begin_batch, end_batch

        def put_back() -> None:
            groups._start_coalescing, groups._end_coalescing = begin, end

        return put_back

    @staticmethod
    def is_capturing() -> bool:
        """Whether calls of this thread go into a CUDA graph instead of being executed."""
        return bool(CUDA.is_current_stream_capturing())

    def start(self) -> Pair | None:
        """Event pair for a call that starts now, with the first one recorded; None if that is not possible."""
        if len(self._pending) >= MOST_PENDING:
            return None
        try:
            pair = self._free.pop() if self._free else (_event(), _event())
            pair[0].record()
        except Exception as error:
            self._hook.give_up(error)
            return None
        return pair

    def under_way(self, row: int, pair: Pair, group: Any, result: Any, is_waited_for: bool) -> None:
        """Record the second event after the call, or leave it to the end of its batch."""
        if group in self._batches:
            self._batches[group].append((row, pair))
        else:
            work = result[-1] if type(result) is tuple else result
            self._end(row, pair, None if is_waited_for else work)

    def _end(self, row: int, pair: Pair, work: Any) -> None:
        """Record the second event: on a side stream that waits for `work`, if there is any."""
        try:
            pair[1].record(None if work is None else self._after(work))
            self._pending.append((row, pair))
            self._thread = self._thread or self._begin_to_look()
        except Exception as error:
            self._hook.give_up(error)

    def _after(self, work: Any) -> Any:
        """A side stream that waits for the call."""
        device = torch.cuda.current_device()
        side = self._sides.get(device) or self._sides.setdefault(device, CUDA.Stream(device))
        work = work if isinstance(work, dist.Work) else dist.Work.unbox(work)
        with torch.cuda.stream(side):
            getattr(work, "block_current_stream", work.wait)()  # the former never blocks the host
        return side

    # Reading ----------------------------------------------------------------------------------------------------------

    def _begin_to_look(self) -> threading.Thread:
        thread = threading.Thread(target=self._look, name="takeup-watch-cuda", daemon=True)
        thread.start()
        return thread

    def _look(self) -> None:
        try:
            relax_captures()
            while not self._hook.is_off:
                self.collect()
                time.sleep(LOOK_EVERY_S)
        except Exception as error:
            self._hook.give_up(error)

    def collect(self) -> None:
        """Store the durations of completed calls, in order."""
        while self._pending and self._take():
            pass

    def _take(self) -> bool:
        """Store the duration of the earliest call, if it has completed."""
        row, pair = self._pending[0]
        if not pair[1].query():
            return False
        self._pending.popleft()
        self._hook.lasted(row, round(1e6 * pair[0].elapsed_time(pair[1])))
        self._free.append(pair)
        return True


def _event() -> Any:
    return CUDA.Event(enable_timing=True)


def _backend(group: Any) -> str:
    """Name of the backend for tensors on CUDA devices, empty if there is none."""
    try:
        return str(group._get_backend(torch.device("cuda")).name())
    except RuntimeError:
        return ""
