"""Reads a LoRA file for a pipeline: every key is used, or the file is rejected with the list of unused keys."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from takeup.errors import BadInput
from takeup.serving.diffusion.addons.lora.targets import LayerId, LoraTargets
from takeup.serving.diffusion.addons.lora.weights import BufferSlice, LayerChange, Lora

# Parses one key of a LoRA file: which layer, and which part of its change. Unknown keys are reported, not dropped -----
#
# Kinds of change, by their parts, for a layer with weights W of rank r:
#
#     LoRA   down (r, in), up (out, r)                W + alpha / r * up down
#     DoRA   the same, a magnitude m for each output  m (W + alpha / r * up down) / |W + alpha / r * up down|
#     LoHa   w1_a, w1_b, w2_a, w2_b                   W + alpha / r * (w1_a w1_b) o (w2_a w2_b)
#     LoKr   w1 and w2, each whole or as a product    W + alpha / r * w1 (x) w2

ADAPTER = r"(?:\.[^.]+)??"  # PEFT may write the adapter's name before `.weight`
SUFFIXES: tuple[tuple[str, str], ...] = (
    (rf"\.lora_A{ADAPTER}(?:\.weight)?", "down"),
    (rf"\.lora_B{ADAPTER}(?:\.weight)?", "up"),
    (r"[._]lora(?:_linear_layer)?[._]down(?:\.weight)?", "down"),
    (r"[._]lora(?:_linear_layer)?[._]up(?:\.weight)?", "up"),
    (r"(?<=_lora[12])\.down(?:\.weight)?", "down"),  # XLabs
    (r"(?<=_lora[12])\.up(?:\.weight)?", "up"),
    (r"(?:\.lora)?\.alpha", "alpha"),
    (rf"\.lora_magnitude_vector{ADAPTER}(?:\.weight)?", "magnitude"),
    (r"\.dora_scale", "dora_scale"),
    (rf"\.hada_(w[12]_[ab]){ADAPTER}", "hada_"),
    (rf"\.lokr_(w[12](?:_[ab])?){ADAPTER}", "lokr_"),
)
PATTERNS = tuple((re.compile(f"(.+?){suffix}"), part) for suffix, part in SUFFIXES)
NOISE = (("base_model.model.", ""), (".processor.", "."))


@dataclass(frozen=True, slots=True)
class KeyCategories:
    """The keys of a file: parts by layer; keys that are no part of a change; parts of unknown layers; duplicates."""

    layers: dict[LayerId, dict[str, str]]
    no_part: tuple[str, ...]
    no_layer: tuple[str, ...]
    twice: tuple[str, ...]


def sort_keys(keys: Iterable[str], targets: LoraTargets) -> KeyCategories:
    """Assign every key to exactly one category."""
    layers: dict[LayerId, dict[str, str]] = {}
    no_part, no_layer, twice = [], [], []
    for text in sorted(keys):
        name, part = _split(text)
        layer = _layer(name, targets)
        if part is None:
            no_part.append(text)
        elif layer is None:
            no_layer.append(text)
        elif part in layers.setdefault(layer, {}):
            twice.append(text)
        else:
            layers[layer][part] = text
    return KeyCategories(layers, tuple(no_part), tuple(no_layer), tuple(twice))


def _split(text: str) -> tuple[str, str | None]:
    for pattern, part in PATTERNS:
        if match := pattern.fullmatch(text):
            return match[1], part + match[2] if part.endswith("_") else part
    return text, None


def _layer(name: str, targets: LoraTargets) -> LayerId | None:
    name = _plain(name)
    return targets.names.get(name) or targets.names.get(f"{name}.0")  # `to_out` was `to_out.0` once


def _plain(name: str) -> str:
    for noise, instead in NOISE:
        name = name.replace(noise, instead)
    return name


# Checks that the parts of one change fit each other and the layer; computes its rank and factor -----------------------

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
        if _names_layer(pattern, path):
            return float(alpha)
    alpha = own.get("lora_alpha", own.get("alpha"))
    return None if alpha is None else float(alpha)


def _names_layer(pattern: str, path: str) -> bool:
    """Whether a pattern of PEFT means this layer: its name, or the end of it. Other expressions are not run."""
    name = pattern.removeprefix("^").removesuffix("$").replace("\\.", ".")
    if not PLAIN_NAME.fullmatch(name):
        raise ValueError(f"alpha_pattern has the expression {pattern[:40]!r}")
    return path == name or (path.endswith(f".{name}") and not pattern.startswith("^"))


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


# Reads a LoRA file for a pipeline: every key is used, or the file is rejected with the list of unused keys ------------
#
# Supported are the key styles of diffusers (old and new), PEFT, and kohya with its alphas; LoRA, DoRA, LoHa and LoKr;
# denoisers and text encoders. Only safetensors are read, because other formats can run code.

SHOWN_KEYS = 4
PLAIN_NAME = re.compile(r"[\w.-]+")
FUSED_PARTS = {"down": ".lora_A.weight", "up": ".lora_B.weight", "alpha": ".alpha"}
Tensors = Mapping[str, torch.Tensor]


def read_lora(path: Path, targets: LoraTargets, name: str | None = None) -> Lora:
    """The LoRA in this file, with all numbers in one buffer."""
    opened, told = _open(path)
    tensors = unfused(opened, targets)
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


def unfused(tensors: Tensors, targets: LoraTargets) -> Tensors:
    """The same with each LoRA of a fused layer as one LoRA of each of its parts: equal `down`, rows of `up`."""
    made: dict[str, torch.Tensor] = {}
    for key, tensor in tensors.items():
        name, part = _split(key)
        layers = targets.fused.get(_plain(name), ())
        sizes = [targets.shapes[layer][0] for layer in layers]
        names = [f"{'.'.join(layer)}{FUSED_PARTS.get(part or '')}" for layer in layers]
        fits = part in FUSED_PARTS and (part != "up" or len(tensor) == sum(sizes))
        if not layers or not fits or any(one in tensors or one in made for one in names):
            made[key] = tensor  # as it is; if it names no layer, the file is refused
            continue
        pieces = torch.split(tensor, sizes) if part == "up" else [tensor] * len(layers)
        made |= dict(zip(names, pieces, strict=True))
    return made


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
    texts: list[str | bytes | None] = [
        metadata.get("lora_adapter_metadata"),
        beside.read_bytes() if beside.is_file() else None,
    ]
    told: dict[str, Any] = {}
    for text in (one for one in texts if one):
        try:
            told.update(json.loads(text))
        except (ValueError, TypeError, RecursionError) as problem:
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
    try:
        factor = factor_of(parts, alpha, told, layer)
    except (AttributeError, TypeError, ValueError, OverflowError, RuntimeError) as problem:
        raise BadInput(
            f"{where} has an alpha that cannot be used ({problem}); export it with names and numbers"
        ) from problem
    if not isfinite(factor):
        raise BadInput(f"{where} has an alpha that is not finite; export or train the LoRA again")
    pieces = {}
    for part, tensor in parts.items():
        pieces[part] = BufferSlice(offset, tuple(tensor.shape))
        offset += tensor.numel()
    return LayerChange(pieces, factor, shape, rank_of(parts)), list(parts.values())


def _some(keys: Iterable[str]) -> str:
    names = sorted(keys)
    more = f" and {len(names) - SHOWN_KEYS} more" if len(names) > SHOWN_KEYS else ""
    return ", ".join(names[:SHOWN_KEYS]) + more
