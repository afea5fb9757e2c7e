"""Records every collective operation and message of this process, in PyTorch's dispatcher."""

import atexit
import ctypes
import hashlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic_ns
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from takeup.training.stragglers.contract import STEP_GROUP
from takeup.training.stragglers.watch.call_ends import PLAIN_WAIT, CallEndThreads, CudaCallEnds
from takeup.training.stragglers.watch.causes import RankTimes
from takeup.training.stragglers.watch.gloo_shutdown import keep_group_alive
from takeup.training.stragglers.watch.ring import HEADER_WORDS, UNSEEN, HeaderWord, RingBuffer

# How it works. All calls, also of DDP's C++ reducer, DTensor and functional collectives, are operators `c10d::...`
# that pass the dispatcher. Each gets a wrapper kernel below autograd that records the call and redispatches it. Any
# error while recording disables the hook with one line in the log; the job continues unaffected.
#
# The end of a synchronous call or a message is recorded when its `wait` returns; that of other calls by a thread that
# also waits, and on CUDA stream events give the duration (call_ends.py).

FOLDER = "TAKEUP_WATCH_FOLDER"
LOG = logging.getLogger("takeup.training")
MOST_UNWAITED = 1_024
NOT_EXPECTED = -1, False
BARRIER, SEND, RECEIVE, STEP = 9, 10, 11, 12
BELOW_AUTOGRAD = torch._C.DispatchKey.BackendSelect
ONWARD = torch._C._dispatch_keyset_full_after(BELOW_AUTOGRAD)
GROUP_OF, WORK_OF = dist.ProcessGroup.unbox, dist.Work.unbox


@dataclass(frozen=True, slots=True)
class _RecordedOperator:
    """An operator: its operation code, and the argument positions of the data, the group and the peer."""

    operation: int
    data: int = 0
    group: int = 1
    peer: int | None = None
    is_async: int | None = None

    def is_waited_for(self, arguments: Any) -> bool:
        """Whether its end will be observed by a `wait` in Python."""
        at = self.is_async
        return self.operation >= SEND or (at is not None and len(arguments) > at and arguments[at] is False)


RECORDED_OPERATORS = {
    "allreduce_": _RecordedOperator(1),
    "allreduce_coalesced_": _RecordedOperator(1),
    "broadcast_": _RecordedOperator(2),
    "allgather_": _RecordedOperator(3, group=2),
    "_allgather_base_": _RecordedOperator(3, group=2),
    "allgather_coalesced_": _RecordedOperator(3, group=2),
    "allgather_into_tensor_coalesced_": _RecordedOperator(3, group=2),
    "reduce_scatter_": _RecordedOperator(4, group=2),
    "_reduce_scatter_base_": _RecordedOperator(4, data=1, group=2),
    "reduce_scatter_tensor_coalesced_": _RecordedOperator(4, data=1, group=2),
    "alltoall_": _RecordedOperator(5, data=1, group=2),
    "alltoall_base_": _RecordedOperator(5, data=1, group=2),
    "reduce_": _RecordedOperator(6),
    "gather_": _RecordedOperator(7, data=1, group=2),
    "scatter_": _RecordedOperator(8, group=2),
    "barrier": _RecordedOperator(BARRIER),
    "send": _RecordedOperator(SEND, peer=2),
    "recv_": _RecordedOperator(RECEIVE, peer=2),
    "recv_any_source_": _RecordedOperator(RECEIVE),
}


class CallHook:
    """Records the calls of this process in its ring buffer, which is created at the first call."""

    def __init__(self, folder: Path) -> None:
        self.ring: RingBuffer | None = None
        self.is_off = False
        self.last_began_ns = 0
        self.waits = CallEndThreads(self.end)
        self._folder = folder
        self._lock = threading.Lock()
        self._groups: dict[dist.ProcessGroup, int] = {}
        self._numbers: dict[tuple[int, int, int], int] = {}
        self._kinds: dict[tuple[int, int, int], int] = {}
        self._unwaited: dict[Any, tuple[int, bool]] = {}
        self._epoch = 0
        self._optimizer: Callable[[], Any] = lambda: None
        self._num_steps = 0
        self._has_called = False  # since the last step

    # A call begins ----------------------------------------------------------------------------------------------------

    def begin(self, watched: _RecordedOperator, arguments: Any) -> int:
        """Record the start of a call; return its row number, or -1 if nothing is recorded."""
        if self.is_off:
            return -1
        try:
            peer = -1 if watched.peer is None else arguments[watched.peer]
            return self._begin(GROUP_OF(arguments[watched.group]), watched.operation, peer, arguments[watched.data])
        except Exception as error:
            self.give_up(error)
            return -1

    def _begin(self, group: dist.ProcessGroup, operation: int, peer: int, data: Any) -> int:
        size_bytes = 0 if operation == BARRIER else _size_bytes(data)
        with self._lock:
            ring = self.ring or self._open()
            number_of_group = self._groups.get(group) or self._add(ring, group)
            stream = (number_of_group, peer, operation if peer >= 0 else 0)
            number = self._numbers.get(stream, 0)
            self._numbers[stream] = number + 1
            kind = (operation, number_of_group, size_bytes)
            count = self._kinds[kind] = self._kinds.get(kind, 0) + 1
            self._has_called = True
            if peer < 0 and ring.words[HeaderWord.STOP]:
                self._stop(ring, kind, count)
            if self.waits.under_way:
                self.waits.settle()
            self.last_began_ns = began_ns = monotonic_ns()
            return ring.begin(operation, peer, number_of_group, number, size_bytes, began_ns)

    def _open(self) -> RingBuffer:
        rank, num_ranks = dist.get_rank(), dist.get_world_size()
        self.ring = RingBuffer(self._folder / f"{rank}-{os.getpid()}.ring", rank, num_ranks)
        return self.ring

    def _add(self, ring: RingBuffer, group: dist.ProcessGroup) -> int:
        """Register a group; return its ID, the same on all its ranks and unique per group."""
        name = f"{self._epoch} {group.group_name} {dist.get_process_group_ranks(group)}"
        number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "little") + 1
        self._groups[group] = number
        keep_group_alive(group)
        ring.add_group(number, group.rank(), group.size())
        ring.words[HeaderWord.IS_ADAPTIVE] = RingBuffer.is_adaptive
        return number

    def _stop(self, ring: RingBuffer, kind: tuple[int, int, int], count: int) -> None:
        from takeup.training.stragglers.watch.pause import pause_if_requested

        pause_if_requested(ring, self._folder, kind, count)

    def stepped(self, optimizer: Any, *_: Any) -> None:
        """Record a step of the job's first optimizer, unless nothing was communicated since the last one."""
        if self.is_off or torch.compiler.is_compiling():
            return
        if self._optimizer() is None:
            self._optimizer = weakref.ref(optimizer)
        with self._lock:
            if self.ring is not None and self._has_called and self._optimizer() is optimizer:
                now_ns = monotonic_ns()
                self.ring.end(self.ring.begin(STEP, -1, STEP_GROUP, self._num_steps, 0, now_ns), now_ns)
                self._num_steps, self._has_called = self._num_steps + 1, False

    # A call ends ------------------------------------------------------------------------------------------------------

    def under_way(self, row: int, watched: _RecordedOperator, arguments: Any, result: Any) -> None:
        """Arrange for the end of the call to be recorded."""
        try:
            work = WORK_OF(result[-1] if type(result) is tuple else result)
            if watched.is_waited_for(arguments):
                self._expect_wait(work, row, watched.operation == RECEIVE)
            else:
                self.waits.add(self._groups[GROUP_OF(arguments[watched.group])], row, work)
        except Exception as error:
            self.give_up(error)

    def _expect_wait(self, work: Any, row: int, is_receive: bool) -> None:
        self._unwaited[work] = row, is_receive
        if len(self._unwaited) > MOST_UNWAITED:  # never waited for; bound the memory
            self._unwaited.pop(next(iter(self._unwaited)), None)

    def waited(self, work: Any, asked_ns: int) -> None:
        """Record the end of a call whose `wait`, begun at `asked_ns`, has returned.

        A receive is counted from the start of the `wait`: what the rank did after posting it is not waiting.
        """
        row, is_receive = self._unwaited.pop(work, NOT_EXPECTED)
        if is_receive:
            self.note(row, asked_ns, monotonic_ns())
        elif row >= 0:
            self.end(row)

    def end(self, row: int) -> None:
        """Record that a call has ended now."""
        ring = self.ring
        if ring is not None and not self.is_off:
            ring.end(row, monotonic_ns())

    def note(self, row: int, began_ns: int, ended_ns: int) -> None:
        """Record both start and end of a call afterwards."""
        if self.ring is not None and not self.is_off:
            self.ring.note(row, began_ns, ended_ns)

    def lasted(self, row: int, duration_ns: int) -> None:
        """Record the duration of a call afterwards."""
        if self.ring is not None and not self.is_off:
            self.ring.lasted(row, duration_ns)

    def unseen(self, row: int) -> None:
        """Record that the end of a call will not be known."""
        if self.ring is not None:
            self.ring.end(row, UNSEEN)

    def captured(self) -> None:
        """Count a call that goes into a CUDA graph instead of being executed."""
        if not self.is_off:
            with self._lock:
                (self.ring or self._open()).words[HeaderWord.NUM_CAPTURED] += 1

    # Lifecycle --------------------------------------------------------------------------------------------------------

    def give_up(self, error: Exception) -> None:
        """Stop recording after an error; the job continues."""
        if not self.is_off:
            self.is_off = True
            self._unwaited.clear()
            LOG.warning("takeup no longer watches this rank, the job goes on: %s: %s", type(error).__name__, error)

    def new_epoch(self) -> None:
        """Start a new epoch after ranks restarted: new groups may reuse the names of earlier, different groups."""
        self.waits.close()
        with self._lock:
            self._epoch += 1
            self._groups.clear()
            self._num_steps, self._has_called = 0, False

    def forget(self) -> None:
        """Disable the hook in a forked child, whose calls are not those of the rank."""
        self.is_off = True


def _size_bytes(data: Any) -> int:
    """Total bytes of nested lists of tensors."""
    while type(data) is list and len(data) == 1:
        data = data[0]
    return sum(map(_size_bytes, data)) if type(data) is list else data.nbytes


# Into the dispatcher --------------------------------------------------------------------------------------------------


def install(folder: Path) -> CallHook:
    """Start recording in this process; call it once."""
    hook = CallHook(folder)
    _HOOKS.append(hook)
    ends = CudaCallEnds(hook) if torch.cuda.is_available() else None
    _hide_from_compiler(CallHook, CallEndThreads, CudaCallEnds)
    if ends is not None:
        _UNDO.append(ends.watch_batches(dist.ProcessGroup))
    _record_operators(hook, ends)
    dist.Work.wait = _waiting(hook, PLAIN_WAIT)  # type: ignore[method-assign]
    _UNDO.append(RankTimes(lambda: hook.ring).install())
    _UNDO.append(register_optimizer_step_post_hook(hook.stepped).remove)
    os.register_at_fork(after_in_child=hook.forget)
    atexit.register(hook.waits.close)
    return hook


class ShimHook:
    """The part in Python where a shim before NCCL records the calls (native/shim.c): it reports optimizer steps."""

    last_began_ns = 0  # unknown

    def __init__(self) -> None:
        self._shim = ctypes.CDLL(None)  # it was loaded before all else
        self._shim.takeup_words.restype = ctypes.c_void_p
        self._optimizer: Callable[[], Any] = lambda: None

    @property
    def ring(self) -> SimpleNamespace | None:
        """The header of the ring, once the shim has opened it."""
        address = self._shim.takeup_words()
        if not address:
            return None
        words = (ctypes.c_int64 * HEADER_WORDS).from_address(address)
        words[HeaderWord.IS_ADAPTIVE] = RingBuffer.is_adaptive
        return SimpleNamespace(words=words)

    def stepped(self, optimizer: Any, *_: Any) -> None:
        """Report a step of the job's first optimizer."""
        if not torch.compiler.is_compiling():
            if self._optimizer() is None:
                self._optimizer = weakref.ref(optimizer)
            if self._optimizer() is optimizer:
                self._shim.takeup_step()

    def new_epoch(self) -> None:
        """Do nothing: groups have numbers of their own."""


def install_beside_shim() -> ShimHook:
    """Report the steps of this process to the shim that records its calls."""
    hook = ShimHook()
    _HOOKS.append(hook)
    _UNDO.append(RankTimes(lambda: hook.ring).install())
    _UNDO.append(register_optimizer_step_post_hook(hook.stepped).remove)
    return hook


def uninstall() -> None:
    """Stop recording and restore PyTorch's kernels and methods."""
    for hook in _HOOKS:
        if isinstance(hook, CallHook):
            hook.waits.close()
    while _UNDO:
        _UNDO.pop()()
    _LIBRARIES.clear()
    _HOOKS.clear()
    dist.Work.wait = PLAIN_WAIT  # type: ignore[method-assign]


def current() -> CallHook | ShimHook | None:
    """The hook of this process, if it is watched."""
    return _HOOKS[-1] if _HOOKS else None


def watched_values() -> dict[str, float]:
    """What the watcher says of this job, for its own metrics; empty if it is not watched, or too early to say."""
    ring = getattr(current(), "ring", None)
    if ring is None or not ring.words[HeaderWord.COSTLY_RANK]:
        return {}
    return {
        "watch/costly_rank": ring.words[HeaderWord.COSTLY_RANK] - 1,
        "watch/lost_share": ring.words[HeaderWord.COST_PPM] / 1e6,
        "watch/num_events": ring.words[HeaderWord.NUM_EVENTS],
    }


_HOOKS: list[CallHook | ShimHook] = []
_UNDO: list[Callable[[], object]] = []
_LIBRARIES: list[torch.library.Library] = []


def _record_operators(hook: CallHook, ends: CudaCallEnds | None) -> None:
    library: Any = torch.library.Library("c10d", "IMPL", BELOW_AUTOGRAD.name)  # type: ignore[no-untyped-call]
    _LIBRARIES.append(library)  # its registrations end when it is freed
    for name, watched in RECORDED_OPERATORS.items():
        if hasattr(torch.ops.c10d, name):
            at = replace(watched, is_async=_place(name, "async_op"))
            kernel = _kernel(hook, name, at) if ends is None else _cuda_kernel(hook, ends, name, at)
            library.impl(name, kernel, with_keyset=True)


def _hide_from_compiler(*classes: type) -> None:
    """Keep torch.compile from tracing what records calls: it would, where these are made under a compiled function."""
    codes = [each.__code__ for kind in classes for each in vars(kind).values() if isinstance(each, FunctionType)]
    makers = _kernel, _cuda_kernel, _waiting
    codes += [each for maker in makers for each in maker.__code__.co_consts if isinstance(each, CodeType)]
    frames: Any = torch._C._dynamo.eval_frame
    with suppress(AttributeError):  # another version of PyTorch
        skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
        for code in codes:
            frames.set_code_exec_strategy(code, skip)


def _operator(name: str) -> Any:
    return getattr(torch.ops.c10d, name).default


def _place(name: str, argument: str) -> int | None:
    names = [each.name for each in _operator(name)._schema.arguments]
    return names.index(argument) if argument in names else None


def _kernel(hook: CallHook, name: str, watched: _RecordedOperator) -> Callable[..., Any]:
    onward = _operator(name)._handle.redispatch_boxed

    def call(keys: Any, *arguments: Any) -> Any:
        row = hook.begin(watched, arguments)
        result = onward(keys & ONWARD, *arguments)
        if row >= 0:
            hook.under_way(row, watched, arguments, result)
        return result

    return call


def _cuda_kernel(hook: CallHook, ends: Any, name: str, watched: _RecordedOperator) -> Callable[..., Any]:
    """Times calls on streams of a device there, except while they are captured, and all others on the host."""
    onward, on_host = _operator(name)._handle.redispatch_boxed, _kernel(hook, name, watched)

    def call(keys: Any, *arguments: Any) -> Any:
        if ends.is_capturing():
            hook.captured()
            return onward(keys & ONWARD, *arguments)
        group = GROUP_OF(arguments[watched.group])
        if not (keys.has(torch._C.DispatchKey.CUDA) and ends.are_on_streams(group)):
            return on_host(keys, *arguments)
        row = hook.begin(watched, arguments)
        start = ends.start() if row >= 0 else None
        result = onward(keys & ONWARD, *arguments)
        if start is not None:
            ends.under_way(row, start, group, result, watched.operation < SEND and watched.is_waited_for(arguments))
        elif row >= 0:
            hook.unseen(row)
        return result

    return call


def _waiting(hook: CallHook, wait: Callable[..., Any]) -> Callable[..., Any]:
    unwaited = hook._unwaited

    def timed(work: Any, *arguments: Any, **named: Any) -> Any:
        asked_ns = monotonic_ns()
        result = wait(work, *arguments, **named)
        if unwaited:
            hook.waited(work, asked_ns)
        return result

    return timed
