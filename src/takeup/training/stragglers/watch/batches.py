"""Shares of a batch that can change during training, so that a slow rank gets less work; gradients stay exact.

    share = Batches(model, num_microbatches=16)           # of the whole job, not of each rank
    for inputs, targets in loader:                        # the batch of the whole job, the same on all ranks
        for piece, wanted in share.of((inputs, targets)):
            (loss_of(model(piece), wanted) * share.weight).backward()
        optimizer.step()

How it works. A batch is split into equal micro-batches, and every rank computes a contiguous range. Each counts the
same, so what DDP averages over ranks is scaled by ranks / micro-batches: the sum over all of them, divided by their
number, however they are shared out. DDP reduces with the last micro-batch of a rank only. Ranks change their shares
together: in every iteration they agree on the newest plan that all have seen. Without a watcher nothing is exchanged.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from takeup.errors import BadInput
from takeup.training.stragglers.watch.hook import FOLDER, CallHook, ShimHook, current
from takeup.training.stragglers.watch.launch import will_be_restarted
from takeup.training.stragglers.watch.ring import HeaderWord

RESTART_CODE = 75  # as in sysexits.h: try again later
SMOOTHING = 0.3


@dataclass(frozen=True, slots=True)
class _BatchShare:
    first: int
    count: int
    restart: bool = False


class Batches:
    """The part of every batch that this rank computes.

    `save`, if given, writes a checkpoint; only then may a watcher request a restart on other machines, and not if
    torchrun has no restart left (`--max-restarts`).
    """

    def __init__(
        self, model: Any, num_microbatches: int, *, group: Any = None, save: Callable[[], object] | None = None
    ) -> None:
        num_ranks, place = dist.get_world_size(group), dist.get_rank(group)
        if num_microbatches < 1 or num_microbatches % num_ranks:
            raise BadInput(
                f"{num_microbatches} micro-batches for {num_ranks} ranks do not divide; give a multiple of {num_ranks}"
            )
        each = num_microbatches // num_ranks
        self.num_microbatches = num_microbatches
        self.weight = num_ranks / num_microbatches
        """By which the mean loss of a micro-batch is multiplied, for gradients that DDP averages over ranks."""
        self._model, self._group, self._save = model, group, save
        self._can_restart = save is not None and will_be_restarted()
        self._plans = {0: _BatchShare(place * each, each)}
        self._version = 0
        self._is_watched = bool(os.environ.get(FOLDER))
        self._microbatch_ns = 0.0

    @property
    def first(self) -> int:
        return self._plans[self._version].first

    @property
    def count(self) -> int:
        return self._plans[self._version].count

    def of(self, batch: Any) -> Iterator[Any]:
        """Yield the micro-batches of this rank: slices of a tensor, or of every tensor of a tuple or list."""
        pieces = _split_batch(batch, self.num_microbatches)
        if self._is_watched:
            self._agree()
        times_ns, unreduced = [], getattr(self._model, "no_sync", nullcontext)
        for number in range(self.first, self.first + self.count):
            is_last = number == self.first + self.count - 1
            start_ns = time.monotonic_ns()
            with nullcontext() if is_last else unreduced():
                yield pieces[number]
            times_ns.append(self._computed_until_ns(start_ns, is_last) - start_ns)
        self._tell(median(times_ns))

    def _computed_until_ns(self, start_ns: int, is_last: bool) -> int:
        """End of the micro-batch's computation; for the last one, the start of its last call, which blocks."""
        hook = current()
        if is_last and hook is not None and hook.last_began_ns > start_ns:
            return hook.last_began_ns
        return time.monotonic_ns()

    # Requests of a controller, and reports to it ----------------------------------------------------------------------

    def _agree(self) -> None:
        """Switch to the newest plan that all ranks have seen."""
        hook = current()
        newest = self._newest(hook)
        seen = torch.tensor([newest])
        dist.all_reduce(seen, dist.ReduceOp.MIN, group=self._group)
        self._version = int(seen.item())
        if hook is not None and hook.ring is not None:
            hook.ring.words[HeaderWord.PLAN_IN_USE] = self._version
        if self._plans[self._version].restart:
            self._restart()

    def _newest(self, hook: CallHook | ShimHook | None) -> int:
        if hook is None or hook.ring is None:
            return max(self._plans)
        words = hook.ring.words
        version = words[HeaderWord.PLAN]
        is_restart = bool(words[HeaderWord.PLAN_RESTART]) and self._can_restart
        plan = _BatchShare(words[HeaderWord.PLAN_FIRST], words[HeaderWord.PLAN_COUNT], is_restart)
        is_sound = plan.first >= 0 and plan.count >= 1 and plan.first + plan.count <= self.num_microbatches
        if version > max(self._plans) and version == words[HeaderWord.PLAN] and is_sound:
            self._plans[version] = plan
        return max(self._plans)

    def _tell(self, microbatch_ns: float) -> None:
        before = self._microbatch_ns or microbatch_ns
        self._microbatch_ns = before + SMOOTHING * (microbatch_ns - before)
        hook = current()
        if hook is not None and hook.ring is not None:
            words = hook.ring.words
            words[HeaderWord.MICROBATCH_NS] = round(self._microbatch_ns)
            words[HeaderWord.NUM_MICROBATCHES] = self.num_microbatches
            words[HeaderWord.CAN_RESTART] = self._can_restart

    def _restart(self) -> None:
        assert self._save is not None
        self._save()
        dist.barrier(group=self._group)
        raise SystemExit(RESTART_CODE)


def _split_batch(batch: Any, count: int) -> list[Any]:
    """Split the batch into `count` pieces of equal size."""
    if isinstance(batch, torch.Tensor):
        if len(batch) % count:
            raise BadInput(f"a batch of {len(batch)} rows does not divide into {count} micro-batches of one size")
        return list(torch.split(batch, len(batch) // count))
    return list(zip(*(_split_batch(part, count) for part in batch), strict=True))
