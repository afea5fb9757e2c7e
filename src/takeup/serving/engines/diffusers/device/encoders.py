"""Text encoders that are recorded: hundreds of small operations for a few tokens, sent to the device as one."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from types import MethodType
from typing import Any

import torch
from torch.utils import _pytree as trees

from takeup.serving.engines.diffusers.device.passes import Pass, Tensors, record

__all__ = ["record_encoders"]

PARTS = ("text_encoder", "text_encoder_2")


def record_encoders(pipeline: Any) -> int:
    """Have the text encoders of the pipeline recorded when they are first called; how many there are."""
    found = [getattr(pipeline, part, None) for part in PARTS]
    encoders = [one for one in found if one is not None and not isinstance(one.__dict__.get("forward"), _Recorded)]
    for encoder in encoders:
        encoder.forward = _Recorded(encoder)
    if encoders:
        pipeline.encode_prompt = _without_parts(pipeline).encode_prompt
    return len(encoders)


def _without_parts(pipeline: Any) -> Any:
    """The pipeline with encoders that show none of their parts.

    Before each call diffusers looks through all parts of an encoder, twice, for hooks that would move it. There are
    hundreds of parts and no hooks, and it takes milliseconds.
    """
    light = copy.copy(pipeline)
    for name in PARTS:
        if getattr(pipeline, name, None) is not None:
            light.__dict__[name] = _Whole(getattr(pipeline, name))
    return light


class _Whole(torch.nn.Module):
    """A module as one piece."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self._only = (module,)  # what is in a tuple is no part

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_only"][0], name)

    def forward(self, *arguments: Any, **options: Any) -> Any:
        return self._only[0](*arguments, **options)


class _Recorded:
    """The forward of an encoder. Calls with other tensors than the tokens are made as usual."""

    def __init__(self, encoder: Any) -> None:
        self._usual = MethodType(type(encoder).forward, encoder)
        self._calls: dict[Hashable, _Call] = {}

    def __call__(self, input_ids: torch.Tensor, **options: Any) -> Any:
        if any(isinstance(option, torch.Tensor) for option in options.values()):
            return self._usual(input_ids, **options)
        kind = input_ids.shape, tuple(sorted(options.items()))
        if kind not in self._calls:
            self._calls[kind] = _Call(self._usual, input_ids, options)
        return self._calls[kind](input_ids)


class _Call:
    """One kind of call: where its tokens lie, and the pass over them."""

    def __init__(self, usual: Any, input_ids: torch.Tensor, options: dict[str, Any]) -> None:
        self._usual, self._options = usual, options
        self._input_ids = input_ids.clone()
        self._shape: Any = None
        self._pass: Pass = record(self._compute, input_ids.device)

    @torch.no_grad()
    def __call__(self, input_ids: torch.Tensor) -> Any:
        """What the encoder answers, in tensors that nobody overwrites."""
        self._input_ids.copy_(input_ids)
        tensors = [tensor.clone() for tensor in self._pass.play(lambda: None)]
        return trees.tree_unflatten(tensors, self._shape)

    @torch.no_grad()
    def _compute(self, _at_seam: Any) -> Tensors:
        leaves, self._shape = trees.tree_flatten(self._usual(self._input_ids, **self._options))
        return leaves
