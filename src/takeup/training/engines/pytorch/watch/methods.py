"""Record calls made from Python in the methods of process groups, at half the cost of the dispatcher.

A recorded call then bypasses the dispatcher kernels that would record it again (hook.py). Calls on a device, with
named arguments, or of methods that are not listed here are recorded in the dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

AUTOGRAD = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)
BYPASS_DISPATCH = torch._C._ExcludeDispatchKeyGuard


@dataclass(frozen=True, slots=True)
class RecordedMethod:
    """A method: its operation code, and the argument positions of the data and the peer."""

    operation: int
    num_arguments: int = 2
    data: int = 0
    peer: int | None = None

    def is_waited_for(self, arguments: Any) -> bool:
        """Whether its end will be observed by a `wait` in Python: for messages and synchronous calls."""
        return self.peer is not None or getattr(arguments[-1], "asyncOp", True) is False


METHODS = {
    "allreduce": RecordedMethod(1),
    "broadcast": RecordedMethod(2),
    "_allgather_base": RecordedMethod(3, 3),
    "all_gather_single": RecordedMethod(3, 3),
    "_reduce_scatter_base": RecordedMethod(4, 3, data=1),
    "reduce_scatter_single": RecordedMethod(4, 3, data=1),
    "send": RecordedMethod(10, 3, peer=1),
    "recv": RecordedMethod(11, 3, peer=1),
}
Begin = Callable[[RecordedMethod, Any, Any], int]
UnderWay = Callable[[int, RecordedMethod, Any, Any, Any], None]


def watch_methods(begin: Begin, under_way: UnderWay) -> Callable[[], None]:
    """Start recording calls; the returned function restores the methods.

    `begin` receives the method, the group and the arguments and returns a row number, or -1; `under_way` receives the
    row number, all these and the resulting work.
    """
    # The raw class attributes, so that they bind as methods when restored.
    kept = {name: vars(dist.ProcessGroup)[name] for name in METHODS if name in vars(dist.ProcessGroup)}
    for name in kept:
        plain = getattr(dist.ProcessGroup, name)
        setattr(dist.ProcessGroup, name, _recording(plain, METHODS[name], begin, under_way))

    def put_back() -> None:
        for name, method in kept.items():
            setattr(dist.ProcessGroup, name, method)

    return put_back


def _recording(plain: Any, method: RecordedMethod, begin: Begin, under_way: UnderWay) -> Callable[..., Any]:
    def call(group: Any, *arguments: Any, **named: Any) -> Any:
        if named or len(arguments) != method.num_arguments:
            return plain(group, *arguments, **named)
        row = begin(method, group, arguments)
        if row < 0:
            return plain(group, *arguments)
        with BYPASS_DISPATCH(AUTOGRAD):
            work = plain(group, *arguments)
        under_way(row, method, group, arguments, work)
        return work

    return call
