"""What two ranks exchange in every step: a tensor of the size of the latents, a small message, and a vote."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist

from takeup.errors import TakeupError

GIVES_UP = -1


class Exchange(Protocol):
    """Communication between two ranks. Both call the same methods in the same order."""

    @property
    def rank(self) -> int:
        """0 computes negative branches and is the leader; 1 computes positive branches."""

    def both(self, mine: torch.Tensor) -> torch.Tensor:
        """All-gather: the tensors of both ranks, rank 0 first."""

    def agree(self, mine: bool | None) -> bool:
        """Whether both ranks vote yes; raises on both ranks if one of them votes None."""

    def told(self, words: Any) -> Any:
        """Broadcast from rank 0; the argument of rank 1 is ignored."""


class GroupExchange:
    """Over a process group of two: Gloo on CPUs, NCCL on devices. Messages use the `words` group (Gloo), if given."""

    def __init__(self, group: Any = None, words: Any = None) -> None:
        self._group, self._words = group, words or group

    @property
    def rank(self) -> int:
        return dist.get_rank(self._group)

    def both(self, mine: torch.Tensor) -> torch.Tensor:
        mine = mine.contiguous()
        gathered = [torch.empty_like(mine) for _ in range(2)]
        dist.all_gather(gathered, mine, group=self._group)
        return torch.cat(gathered)

    def agree(self, mine: bool | None) -> bool:
        answer = torch.tensor([GIVES_UP if mine is None else int(mine)])
        dist.all_reduce(answer, op=dist.ReduceOp.MIN, group=self._words)
        if answer.item() == GIVES_UP:
            raise TakeupError("a LoRA could not be loaded on one of the ranks; see its log, and ask for it again")
        return bool(answer.item())

    def told(self, words: Any) -> Any:
        box = [words]
        dist.broadcast_object_list(box, group=self._words, group_src=0)
        return box[0]
