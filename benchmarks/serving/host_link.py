"""A slower link from the host: whatever comes from there comes several times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from takeup.serving.editing.masked import kv_cache
from takeup.serving.editing.masked.tokens import copy_named
from takeup.serving.editing.templates import template as templates

Page = dict[str, torch.Tensor]


@contextmanager
def slower_link(times: int) -> Iterator[None]:
    """Inside, templates come from the host as if the link were so many times slower; reads of single rows do not."""
    with (
        patch.object(templates, "_sent", _sent_often(templates._sent, times)),
        patch.object(kv_cache, "copy_named", _copied_often(times)),
    ):
        yield


def _sent_often(send: Callable[..., torch.Tensor], times: int) -> Callable[..., torch.Tensor]:
    def sent(tensor: torch.Tensor, device: Any) -> torch.Tensor:
        is_up = tensor.device.type == "cpu" and torch.device(device).type != "cpu"
        for _ in range(times - 1 if is_up else 0):
            send(tensor, device)
        return send(tensor, device)

    return sent


def _copied_often(times: int) -> Callable[[Page, Page], None]:
    def copied(page: Page, into: Page) -> None:
        copy_named(page, into)
        far = {name: one for name, one in page.items() if name in into and one.device != into[name].device}
        for _ in range(times - 1 if far else 0):
            copy_named(far, into)

    return copied
