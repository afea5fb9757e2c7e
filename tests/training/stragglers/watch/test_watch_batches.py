"""Shares of a batch on one rank: what is cut, what is refused, and what a controller may ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from takeup.errors import BadInput
from takeup.training.stragglers.watch.ring import HeaderWord

torch = pytest.importorskip("torch", reason="needs the package torch")

import torch.distributed as dist  # noqa: E402
from torch._C._distributed_c10d import FileStore  # noqa: E402

from takeup.training.stragglers.watch import hook as hooks  # noqa: E402
from takeup.training.stragglers.watch.batches import RESTART_CODE, Batches  # noqa: E402

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("watch")]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A job of one rank, in this process."""
    dist.init_process_group("gloo", store=FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def hook(alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[hooks.CallHook]:
    """The same, watched."""
    monkeypatch.setenv(hooks.FOLDER, str(tmp_path))
    yield hooks.install(tmp_path)
    hooks.uninstall()


def ask(hook: hooks.CallHook, **words: int) -> None:
    """As a controller would: the version last."""
    assert hook.ring is not None
    for name, value in words.items():
        hook.ring.words[getattr(HeaderWord, name)] = value


def pieces(share: Batches, batch: Any) -> list[list[float]]:
    return [piece.flatten().tolist() for piece in share.of(batch)]


@pytest.mark.usefixtures("alone")
def test_a_batch_is_cut_into_pieces_of_one_size() -> None:
    share = Batches(torch.nn.Linear(1, 1), 4)

    assert pieces(share, torch.arange(8.0)) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [(a.tolist(), b.tolist()) for a, b in share.of((torch.arange(4.0), torch.arange(4.0, 8.0)))] == [
        ([0], [4]),
        ([1], [5]),
        ([2], [6]),
        ([3], [7]),
    ]
    assert share.weight == 1 / 4


@pytest.mark.usefixtures("alone")
def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(BadInput, match="0 micro-batches for 1 ranks do not divide; give a multiple of 1"):
        Batches(torch.nn.Linear(1, 1), 0)
    with pytest.raises(BadInput, match="a batch of 7 rows does not divide into 4 micro-batches"):
        list(Batches(torch.nn.Linear(1, 1), 4).of(torch.zeros(7)))


def test_a_rank_follows_the_plan_and_says_so(hook: hooks.CallHook) -> None:
    share = Batches(torch.nn.Linear(1, 1), 4)
    pieces(share, torch.zeros(4))
    ask(hook, PLAN_FIRST=1, PLAN_COUNT=2, PLAN=1)

    found = pieces(share, torch.arange(4.0))

    assert found == [[1], [2]]
    assert (share.first, share.count) == (1, 2)
    assert hook.ring is not None
    assert hook.ring.words[HeaderWord.PLAN_IN_USE] == 1
    assert hook.ring.words[HeaderWord.NUM_MICROBATCHES] == 4
    assert hook.ring.words[HeaderWord.MICROBATCH_NS] > 0


@pytest.mark.parametrize(("first", "count"), [(-1, 2), (3, 2), (0, 0), (0, 2**40)])
def test_a_plan_that_makes_no_sense_is_not_followed(hook: hooks.CallHook, first: int, count: int) -> None:
    share = Batches(torch.nn.Linear(1, 1), 4)
    pieces(share, torch.zeros(4))
    ask(hook, PLAN_FIRST=first, PLAN_COUNT=count, PLAN=1)

    assert len(pieces(share, torch.zeros(4))) == 4


def test_a_job_that_is_to_restart_saves_first(hook: hooks.CallHook) -> None:
    saved = []
    share = Batches(torch.nn.Linear(1, 1), 4, save=lambda: saved.append(True))
    pieces(share, torch.zeros(4))
    ask(hook, PLAN_FIRST=0, PLAN_COUNT=4, PLAN_RESTART=1, PLAN=1)

    with pytest.raises(SystemExit) as ended:
        pieces(share, torch.zeros(4))

    assert ended.value.code == RESTART_CODE
    assert saved == [True]


@pytest.mark.parametrize(("num_restarts", "save"), [("1", print), ("0", None)])
def test_a_job_that_would_not_come_back_says_so_and_goes_on_whoever_asks(
    hook: hooks.CallHook, monkeypatch: pytest.MonkeyPatch, num_restarts: str, save: Any
) -> None:
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", num_restarts)
    share = Batches(torch.nn.Linear(1, 1), 4, save=save)
    pieces(share, torch.zeros(4))
    ask(hook, PLAN_FIRST=0, PLAN_COUNT=4, PLAN_RESTART=1, PLAN=1)

    assert len(pieces(share, torch.zeros(4))) == 4
    assert hook.ring is not None
    assert not hook.ring.words[HeaderWord.CAN_RESTART]


@pytest.mark.usefixtures("alone")
def test_without_a_watcher_nothing_is_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(hooks.FOLDER, raising=False)
    monkeypatch.setattr(dist, "all_reduce", None)

    assert len(pieces(Batches(torch.nn.Linear(1, 1), 4), torch.zeros(4))) == 4


def test_a_rank_whose_hook_is_off_still_trains(hook: hooks.CallHook) -> None:
    hook.give_up(RuntimeError("something"))

    assert len(pieces(Batches(torch.nn.Linear(1, 1), 4), torch.zeros(4))) == 4


# What hooks do in this process ----------------------------------------------------------------------------------------


def test_messages_that_nobody_waits_for_are_not_kept_for_ever(
    hook: hooks.CallHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "MOST_UNWAITED", 3)
    for row in range(10):
        hook._expect_wait(object(), row, False)

    assert [row for row, _ in hook._unwaited.values()] == [7, 8, 9]


def test_groups_of_ranks_that_begin_again_are_others(hook: hooks.CallHook) -> None:
    dist.all_reduce(torch.ones(1))
    hook.new_epoch()
    dist.all_reduce(torch.ones(1))

    assert hook.ring is not None
    assert hook.ring.words[HeaderWord.NUM_GROUPS] == 2


def test_a_fork_of_a_rank_notes_nothing_in_its_name(hook: hooks.CallHook) -> None:
    dist.all_reduce(torch.ones(1))
    hook.forget()
    dist.all_reduce(torch.ones(1))

    assert hook.ring is not None
    assert hook.ring.words[HeaderWord.HEAD] == 1
