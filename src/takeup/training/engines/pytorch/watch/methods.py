"""Calls that Python makes, seen in the methods of process groups: it costs half as much as in the dispatcher.

On its way to the dispatcher a call goes round the kernels that would note it there (hook.py). Calls on a device, with
named arguments, or of methods that are not listed here take the usual way, and are noted there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["Method", "watch_methods"]

AUTOGRAD = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)
ROUND_IT = torch._C._ExcludeDispatchKeyGuard


@dataclass(frozen=True, slots=True)
class Method:
    """What a method does, and where among its arguments the data and the peer stand."""

    operation: int
    num_arguments: int = 2
    data: int = 0
    peer: int | None = None

    def is_waited_for(self, arguments: Any) -> bool:
        """Whether the end will be seen by a `wait` in Python: of messages, and if whoever calls waits at once."""
        return self.peer is not None or getattr(arguments[-1], "asyncOp", True) is False


METHODS = {
    "allreduce": Method(1),
    "broadcast": Method(2),
    "_allgather_base": Method(3, 3),
    "all_gather_single": Method(3, 3),
    "_reduce_scatter_base": Method(4, 3, data=1),
    "reduce_scatter_single": Method(4, 3, data=1),
    "send": Method(10, 3, peer=1),
    "recv": Method(11, 3, peer=1),
}
Begin = Callable[[Method, Any, Any], int]
UnderWay = Callable[[int, Method, Any, Any, Any], None]


def watch_methods(begin: Begin, under_way: UnderWay) -> Callable[[], None]:
    """Note calls from now on; what is returned puts the methods back.

    `begin` is told the method, the group and the arguments and gives the number of a row, or -1; `under_way` is told
    all these and what came of it.
    """
    # As they are kept in the class, so that they bind again.
    kept = {name: vars(dist.ProcessGroup)[name] for name in METHODS if name in vars(dist.ProcessGroup)}
    for name in kept:
        plain = getattr(dist.ProcessGroup, name)
        setattr(dist.ProcessGroup, name, _noting(plain, METHODS[name], begin, under_way))

    def put_back() -> None:
        for name, method in kept.items():
            setattr(dist.ProcessGroup, name, method)

    return put_back


def _noting(plain: Any, method: Method, begin: Begin, under_way: UnderWay) -> Callable[..., Any]:
    def call(group: Any, *arguments: Any, **named: Any) -> Any:
        if named or len(arguments) != method.num_arguments:
            return plain(group, *arguments, **named)
        row = begin(method, group, arguments)
        if row < 0:
            return plain(group, *arguments)
        with ROUND_IT(AUTOGRAD):
            work = plain(group, *arguments)
        under_way(row, method, group, arguments, work)
        return work

    return call
