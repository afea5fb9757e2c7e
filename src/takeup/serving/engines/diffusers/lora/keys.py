"""Parses one key of a LoRA file: which layer, and which part of its change. Unknown keys are reported, not dropped.

Kinds of change, by their parts, for a layer with weights W of rank r:

    LoRA   down (r, in), up (out, r)                W + alpha / r * up down
    DoRA   the same, a magnitude m for each output  m (W + alpha / r * up down) / |W + alpha / r * up down|
    LoHa   w1_a, w1_b, w2_a, w2_b                   W + alpha / r * (w1_a w1_b) o (w2_a w2_b)
    LoKr   w1 and w2, each whole or as a product    W + alpha / r * w1 (x) w2
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from takeup.serving.engines.diffusers.lora.targets import LayerId, LoraTargets

ADAPTER = r"(?:\.[^.]+)??"  # PEFT may write the adapter's name before `.weight`
SUFFIXES: tuple[tuple[str, str], ...] = (
    (rf"\.lora_A{ADAPTER}(?:\.weight)?", "down"),
    (rf"\.lora_B{ADAPTER}(?:\.weight)?", "up"),
    (r"[._]lora(?:_linear_layer)?[._]down(?:\.weight)?", "down"),
    (r"[._]lora(?:_linear_layer)?[._]up(?:\.weight)?", "up"),
    (r"(?:\.lora)?\.alpha", "alpha"),
    (rf"\.lora_magnitude_vector{ADAPTER}(?:\.weight)?", "magnitude"),
    (r"\.dora_scale", "dora_scale"),
    (rf"\.hada_(w[12]_[ab]){ADAPTER}", "hada_"),
    (rf"\.lokr_(w[12](?:_[ab])?){ADAPTER}", "lokr_"),
)
PATTERNS = tuple((re.compile(f"(.+?){suffix}"), part) for suffix, part in SUFFIXES)
NOISE = (("base_model.model.", ""), (".processor.", "."))


@dataclass(frozen=True, slots=True)
class LoraKey:
    """A parsed key."""

    text: str
    layer: LayerId
    part: str


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
    for noise, instead in NOISE:
        name = name.replace(noise, instead)
    return targets.names.get(name) or targets.names.get(f"{name}.0")  # `to_out` was `to_out.0` once
