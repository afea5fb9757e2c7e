"""Text encoders as CUDA graphs: hundreds of small operations for a few tokens, launched as one."""

from __future__ import annotations

import copy
from collections.abc import Hashable
from types import MethodType
from typing import Any

import torch
from torch.utils import _pytree as trees

from takeup.serving.engines.diffusers.device.passes import CapturedPass, Tensors, capture

TEXT_ENCODERS = ("text_encoder", "text_encoder_2")


def capture_encoders(pipeline: Any) -> int:
    """Capture the text encoders of the pipeline on their first call. Returns the number of encoders."""
    found = [getattr(pipeline, part, None) for part in TEXT_ENCODERS]
    encoders = [
        one for one in found if one is not None and not isinstance(one.__dict__.get("forward"), _CapturedEncoder)
    ]
    for encoder in encoders:
        encoder.forward = _CapturedEncoder(encoder)
    if encoders:
        pipeline.encode_prompt = _without_parts(pipeline).encode_prompt
    return len(encoders)


def _without_parts(pipeline: Any) -> Any:
    """A copy of the pipeline whose encoders hide their submodules.

    Before each call diffusers walks all submodules of an encoder, twice, to find offloading hooks. There are hundreds
    of submodules and no hooks, and it takes milliseconds.
    """
    light = copy.copy(pipeline)
    for name in TEXT_ENCODERS:
        if getattr(pipeline, name, None) is not None:
            light.__dict__[name] = _OpaqueModule(getattr(pipeline, name))
    return light


class _OpaqueModule(torch.nn.Module):
    """A module that hides its submodules."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self._only = (module,)  # a tuple hides it from submodules

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_only"][0], name)

    def forward(self, *arguments: Any, **options: Any) -> Any:
        return self._only[0](*arguments, **options)


class _CapturedEncoder:
    """The forward of an encoder. Calls with tensors other than the tokens run eagerly."""

    def __init__(self, encoder: Any) -> None:
        self._usual = MethodType(type(encoder).forward, encoder)
        self._calls: dict[Hashable, _EncoderCall] = {}

    def __call__(self, input_ids: torch.Tensor, **options: Any) -> Any:
        if any(isinstance(option, torch.Tensor) for option in options.values()):
            return self._usual(input_ids, **options)
        kind = input_ids.shape, tuple(sorted(options.items()))
        if kind not in self._calls:
            self._calls[kind] = _EncoderCall(self._usual, input_ids, options)
        return self._calls[kind](input_ids)


class _EncoderCall:
    """One kind of call: the static token buffer, and the captured pass over it."""

    def __init__(self, usual: Any, input_ids: torch.Tensor, options: dict[str, Any]) -> None:
        self._usual, self._options = usual, options
        self._input_ids = input_ids.clone()
        self._shape: Any = None
        self._pass: CapturedPass = capture(self._compute, input_ids.device)

    @torch.no_grad()
    def __call__(self, input_ids: torch.Tensor) -> Any:
        """The encoder output, in tensors that later calls do not overwrite."""
        self._input_ids.copy_(input_ids)
        tensors = [tensor.clone() for tensor in self._pass.replay(lambda: None)]
        return trees.tree_unflatten(tensors, self._shape)

    @torch.no_grad()
    def _compute(self, _at_seam: Any) -> Tensors:
        leaves, self._shape = trees.tree_flatten(self._usual(self._input_ids, **self._options))
        return leaves
