"""Whether LoRAs are merged into the weights or computed separately (a *sidecar*) in the next steps.

Merged, a step has no extra cost, but all rows of a call must use the same LoRAs, and each change of the set rewrites
the weights. As a sidecar, every row may use different LoRAs, and each layer costs a little more. The cost model:

    merged   sets * (merge_s + step_s)        one call, and one merge, for every distinct set
    sidecar  step_s * (1 + extra_share)       one call for all

Small calls cost the same until the device is saturated, so `step_s` of a call is taken to be
    max(full_rows, rows) / full_rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

Form = Literal["merged", "sidecar"]


@dataclass(frozen=True, slots=True)
class FormCosts:
    """Costs on a device. The defaults were measured on one H200 with SDXL at 1024x1024, in bfloat16."""

    merge_s: float = 8.6e-3
    step_s: float = 41e-3
    full_rows: int = 4


@dataclass(frozen=True, slots=True)
class LoraGroup:
    """All rows of the next step with the same LoRAs. `extra_share`: their relative extra cost as a sidecar."""

    loras: Hashable
    num_rows: int
    extra_share: float = 0.0
    low_rank: bool = True


def extra_share(rank: int, num_in: int, num_out: int) -> float:
    """The cost of a sidecar LoRA of this rank, as a share of the layer: r (in + out) / (in out)."""
    return rank * (num_in + num_out) / (num_in * num_out)


def choose_form(wishes: Sequence[LoraGroup], patched: Hashable, costs: FormCosts) -> Form:
    """The cheaper form for one step of all `wishes`, when `patched` is the set merged now."""
    if len(wishes) <= 1 or any(not wish.low_rank for wish in wishes):
        return "merged"
    merged_s = sum(_merged_s(wish, wish.loras != patched, costs) for wish in wishes)
    return "merged" if merged_s <= _sidecar_s(wishes, costs) else "sidecar"


def _merged_s(wish: LoraGroup, changes: bool, costs: FormCosts) -> float:
    return costs.merge_s * changes + _step_s(wish.num_rows, costs)


def _sidecar_s(wishes: Sequence[LoraGroup], costs: FormCosts) -> float:
    rows = sum(wish.num_rows for wish in wishes)
    extra = sum(wish.extra_share * wish.num_rows for wish in wishes) / max(1, rows)
    return _step_s(rows, costs) * (1 + extra)


def _step_s(num_rows: int, costs: FormCosts) -> float:
    return costs.step_s * max(costs.full_rows, num_rows) / costs.full_rows
