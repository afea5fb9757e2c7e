"""Reads a LoRA file for a pipeline: every key is used, or the file is rejected with the list of unused keys.

Supported are the key styles of diffusers (old and new), PEFT, and kohya with its alphas; LoRA, DoRA, LoHa and LoKr;
denoisers and text encoders. Only safetensors are read, because other formats can run code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from takeup.errors import BadInput
from takeup.serving.engines.diffusers.lora.changes import BufferSlice, LayerChange, Lora
from takeup.serving.engines.diffusers.lora.keys import KeyCategories, sort_keys
from takeup.serving.engines.diffusers.lora.ranks import check_change, factor_of, named_magnitude, rank_of
from takeup.serving.engines.diffusers.lora.targets import LayerId, LoraTargets

SHOWN_KEYS = 4
Tensors = Mapping[str, torch.Tensor]


def read_lora(path: Path, targets: LoraTargets, name: str | None = None) -> Lora:
    """The LoRA in this file, with all numbers in one buffer."""
    tensors, told = _open(path)
    found = sort_keys(tensors, targets)
    _check_keys(path, found, targets)
    _check_numbers(path, tensors)
    changes, parts = {}, []
    offset = 0
    for layer, keys in found.layers.items():
        change, used = _change(path, layer, {part: tensors[key] for part, key in keys.items()}, targets, told, offset)
        changes[layer] = change
        parts += used
        offset += sum(tensor.numel() for tensor in used)
    return Lora(name or path.stem, torch.cat([part.flatten() for part in parts]), changes)


def _open(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """All tensors, and the metadata on alphas from the file and from PEFT's adapter_config.json next to it."""
    if not path.is_file():
        raise BadInput(f"{path} is not a file; give the path of a LoRA in the safetensors format")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  not a mapping
            told = file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as problem:
        raise BadInput(f"{path} is damaged or no safetensors file ({problem}); fetch or export it again") from problem
    if not tensors:
        raise BadInput(f"{path} holds no tensors; export the LoRA again")
    return tensors, _alpha_metadata(path, told)


def _alpha_metadata(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    beside = path.parent / "adapter_config.json"
    texts = [metadata.get("lora_adapter_metadata"), beside.read_text("utf-8") if beside.is_file() else None]
    told: dict[str, Any] = {}
    for text in filter(None, texts):
        try:
            told.update(json.loads(text))
        except ValueError as problem:
            raise BadInput(f"what {path} tells about itself is not JSON ({problem}); export it again") from problem
    return told


def _check_keys(path: Path, found: KeyCategories, targets: LoraTargets) -> None:
    if not found.layers and found.no_layer:
        raise BadInput(
            f"{path} was made for another base model: none of its {len(found.no_layer)} keys names a layer of this "
            f"{targets.base} ({_some(found.no_layer)}); choose a LoRA for this base model"
        )
    leftovers = (*found.no_part, *found.no_layer, *found.twice)
    if leftovers:
        raise BadInput(
            f"{path} has {len(leftovers)} keys that cannot be used with this {targets.base} ({_some(leftovers)}); "
            "nothing of it was applied: export it in one key style, for this base model"
        )


def _check_numbers(path: Path, tensors: Tensors) -> None:
    broken = [key for key, tensor in tensors.items() if not torch.isfinite(tensor.float()).all()]
    if broken:
        raise BadInput(f"{path} has numbers that are not finite in {_some(broken)}; export or train the LoRA again")


def _change(
    path: Path,
    layer: LayerId,
    parts: dict[str, torch.Tensor],
    targets: LoraTargets,
    told: Mapping[str, Any],
    offset: int,
) -> tuple[LayerChange, list[torch.Tensor]]:
    alpha = parts.pop("alpha", None)
    where = f"{path}, layer {'.'.join(layer)}"
    shape = targets.shapes[layer]
    parts = named_magnitude(parts, shape)
    check_change(where, parts, shape)
    factor = factor_of(parts, alpha, told, layer)
    pieces = {}
    for part, tensor in parts.items():
        pieces[part] = BufferSlice(offset, tuple(tensor.shape))
        offset += tensor.numel()
    return LayerChange(pieces, factor, shape, rank_of(parts)), list(parts.values())


def _some(keys: Iterable[str]) -> str:
    names = sorted(keys)
    more = f" and {len(names) - SHOWN_KEYS} more" if len(names) > SHOWN_KEYS else ""
    return ", ".join(names[:SHOWN_KEYS]) + more
