"""Operators of collective calls: each call is noted once, whichever way it takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the package torch")
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402

from takeup.training.stragglers.watch import hook as hooks  # noqa: E402
from takeup.training.stragglers.watch.ring_reader import RingReader  # noqa: E402

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("pytorch")]
C10D: Any = torch._C._distributed_c10d  # which has no types for this
ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER = 1, 2, 3, 4


@pytest.fixture
def alone() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    hooks.uninstall()
    dist.destroy_process_group()


@pytest.fixture
def folder(alone: None, tmp_path: Path) -> Path:
    hooks.install(tmp_path)
    return tmp_path


def rows(folder: Path) -> list[tuple[int, int]]:
    """Operations and bytes of the calls that were noted and have ended."""
    hook = hooks.current()
    assert hook is not None
    assert isinstance(hook, hooks.CallHook)
    hook.waits.close()
    calls = RingReader(next(folder.glob("*.ring"))).read()
    assert (calls["ended_ns"] >= calls["began_ns"]).all()
    return [(int(call["operation"]), int(call["size_bytes"])) for call in calls]


def test_a_call_is_noted_once_whichever_way_it_takes(folder: Path) -> None:
    group, options = dist.group.WORLD, dist.AllreduceOptions()
    assert group is not None

    dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(2), async_op=True).wait()
    group.allreduce([torch.ones(3)], opts=options).wait()
    group.allreduce([torch.ones(4)]).wait()
    dist.broadcast(torch.ones(5), 0)

    assert rows(folder) == [(ALL_REDUCE, 4), (ALL_REDUCE, 8), (ALL_REDUCE, 12), (ALL_REDUCE, 16), (BROADCAST, 20)]


def test_gathering_counts_what_comes_out_and_scattering_what_goes_in(folder: Path) -> None:
    output, group = torch.zeros(2, 3), dist.group.WORLD
    assert group is not None

    group._allgather_base(output, torch.ones(2, 3), C10D.AllgatherOptions()).wait()
    group._reduce_scatter_base(torch.zeros(4), torch.ones(4), C10D.ReduceScatterOptions()).wait()

    assert output.tolist() == [[1.0] * 3] * 2
    assert rows(folder) == [(ALL_GATHER, 24), (REDUCE_SCATTER, 16)]


def test_functional_collectives_are_noted_although_autograd_has_been_passed(folder: Path) -> None:
    data, group = torch.ones(6, requires_grad=True), dist.group.WORLD
    assert group is not None

    reduced = functional.all_reduce(data, "sum", group) + 1
    with torch.inference_mode():
        functional.all_reduce(torch.ones(7), "sum", group) + 1

    assert reduced.tolist() == [2.0] * 6
    assert rows(folder) == [(ALL_REDUCE, 24), (ALL_REDUCE, 28)]


def test_no_call_is_noted_once_recording_has_ended(folder: Path) -> None:
    dist.all_reduce(torch.ones(1))
    noted = rows(folder)
    hooks.uninstall()
    dist.all_reduce(torch.ones(1))

    assert noted == [(ALL_REDUCE, 4)]
    assert len(RingReader(next(folder.glob("*.ring"))).read()) == 1
