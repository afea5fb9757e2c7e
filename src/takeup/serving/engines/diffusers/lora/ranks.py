"""Checks that the parts of one change fit each other and the layer; computes its rank and factor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Any

import torch

from takeup.errors import BadInput
from takeup.serving.engines.diffusers.lora.targets import LayerId

Parts = Mapping[str, torch.Tensor]
HADAMARD = {"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"}


def named_magnitude(parts: dict[str, torch.Tensor], shape: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Name a `dora_scale`: a magnitude per output, or per input if it is a row, as in early LyCORIS files."""
    if "dora_scale" not in parts:
        return parts
    scale = parts["dora_scale"]
    lies = scale.ndim > 1 and scale.shape[0] == 1 and scale.numel() == shape[1]
    rest = {part: tensor for part, tensor in parts.items() if part != "dora_scale"}
    return {**rest, "input_magnitude" if lies else "magnitude": scale}


def check_change(where: str, parts: Parts, shape: tuple[int, ...]) -> None:
    """Raise unless the parts are a complete change for weights of this shape."""
    problem = _problem(parts, shape)
    if problem:
        raise BadInput(f"{where}: {problem}; choose a LoRA that was made for this base model, or export it again")


def rank_of(parts: Parts) -> int:
    """The rank; 0 if no part is factorized."""
    for name in ("down", "hada_w1_b", "lokr_w2_b", "lokr_w1_b"):
        if name in parts:
            return int(parts[name].shape[0])
    return 0


def factor_of(parts: Parts, alpha: torch.Tensor | None, told: Mapping[str, Any], layer: LayerId) -> float:
    """alpha / r. The alpha is a tensor of the layer, or in the metadata, as in diffusers and PEFT; else it is r."""
    rank = rank_of(parts)
    if alpha is not None:
        return float(alpha) / rank if rank else 1.0
    component, path = layer
    own = {key.removeprefix(f"{component}."): value for key, value in told.items()}
    told_alpha = _metadata_alpha(own, path)
    rank = rank or int(own.get("r", 0))
    if told_alpha is None or not rank:
        return 1.0
    return told_alpha / (rank**0.5 if own.get("use_rslora") else rank)


def _metadata_alpha(own: Mapping[str, Any], path: str) -> float | None:
    for pattern, alpha in (own.get("alpha_pattern") or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", path):
            return float(alpha)
    alpha = own.get("lora_alpha", own.get("alpha"))
    return None if alpha is None else float(alpha)


def _problem(parts: Parts, shape: tuple[int, ...]) -> str | None:
    names = set(parts)
    if names - {"magnitude", "input_magnitude"} == {"down", "up"}:
        return _low_rank_problem(parts["down"], parts["up"], shape) or _magnitude_problem(parts, shape)
    if names == HADAMARD:
        return _hadamard_problem(parts, shape)
    if any(name.startswith("lokr_") for name in names):
        return _kronecker_problem(parts, shape)
    return f"has only {', '.join(sorted(names)) or 'an alpha'}, which is no whole change"


def _low_rank_problem(down: torch.Tensor, up: torch.Tensor, shape: tuple[int, ...]) -> str | None:
    if down.ndim not in {2, 4} or up.ndim not in {2, 4}:
        return f"its parts have {down.ndim} and {up.ndim} dimensions, and a layer has 2 or 4"
    if down.shape[0] != up.shape[1]:
        return f"one part has rank {down.shape[0]}, the other {up.shape[1]}"
    made = (up.shape[0], *down.shape[1:])
    if prod(made) != prod(shape) or made[:2] != shape[:2]:
        return f"changes weights of shape {_x(made)}, and the layer has {_x(shape)}"
    return None


def _magnitude_problem(parts: Parts, shape: tuple[int, ...]) -> str | None:
    if "magnitude" not in parts or parts["magnitude"].numel() == shape[0]:
        return None
    return f"has {parts['magnitude'].numel()} magnitudes for {shape[0]} outputs"


def _hadamard_problem(parts: Parts, shape: tuple[int, ...]) -> str | None:
    for one in (1, 2):
        left, right = parts[f"hada_w{one}_a"], parts[f"hada_w{one}_b"]
        if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
            return f"the factors of its matrix {one} are {_x(left.shape)} and {_x(right.shape)}"
        if (left.shape[0], right.shape[1]) != (shape[0], prod(shape[1:])):
            return f"changes weights of shape {left.shape[0]}x{right.shape[1]}, and the layer has {_x(shape)}"
    return None


def _kronecker_problem(parts: Parts, shape: tuple[int, ...]) -> str | None:
    made = []
    for name in ("lokr_w1", "lokr_w2"):
        halves = [parts[half] for half in (f"{name}_a", f"{name}_b") if half in parts]
        if (name in parts) == (len(halves) == 2) or len(halves) == 1:
            return f"has {', '.join(sorted(parts))}, which is no whole change"
        if halves and (halves[0].ndim, halves[1].ndim, halves[0].shape[1]) != (2, 2, halves[1].shape[0]):
            return f"the halves of {name} are {_x(halves[0].shape)} and {_x(halves[1].shape)}"
        made.append(tuple(parts[name].shape) if name in parts else (halves[0].shape[0], halves[1].shape[1]))
    product = (made[0][0] * made[1][0], prod(made[0][1:]) * prod(made[1][1:]))
    if product != (shape[0], prod(shape[1:])):
        return f"changes weights of shape {_x(product)}, and the layer has {_x(shape)}"
    return None


def _x(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
