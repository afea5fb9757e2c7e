"""Template compression: few-bit quantization with a scale per group of channels, or deltas between steps.

How it works. Pages are packed in the order of the steps. For every tensor the fewest bits are used whose error is
within the budget; it is measured, relative to the size of the tensor (root mean square):

    none        the tensor is nearly equal to that of the step before
    2 to 8      of the delta to the step before, or of the tensor itself
    all         uncompressed

Deltas are relative to the unpacked previous step, not to the original one: errors do not accumulate. Groups of fewer
than eight bits are rotated (by a Hadamard matrix with random signs) before they are rounded, so that no channel is much
larger than the others of its group.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

GROUP = 64
"""Channels that share a scale: a head, in most networks."""
EXACT = 0
BITS = (2, 3, 4, 5, 6, 8)
PLANES = (4, 2, 1)
"""Numbers of five bits, for example, lie as numbers of four and of one: each fits into bytes."""
BEST_STEPS = {2: 0.996, 3: 0.586}
"""Max, "Quantizing for minimum distortion", 1960: how far apart values are best for a normal distribution of size one.
With more bits, groups are so small that their largest number is better not cut off."""
USUAL_ERRORS = {2: 0.34, 3: 0.18, 4: 0.09, 5: 0.045, 6: 0.023, 8: 0.006}
HOPELESS = 1.2
"""Candidates that are expected to exceed the budget by this factor are not tried."""
SMALLEST = 1e-30

Page = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """Plain values (no `bits`, no scales), or integers with a scale for each row, token and group of channels.

    `is_change`: a delta to the tensor of the step before.
    """

    values: torch.Tensor
    scales: torch.Tensor | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    bits: int = EXACT
    is_change: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of values and scales."""
        parts = [self.values] if self.scales is None else [self.values, self.scales]
        return sum(part.numel() * part.element_size() for part in parts)


PackedPage = dict[str, PackedTensor]
"""Tensors that are not in it are as in the page before."""


def pack(tensor: torch.Tensor, bits: int) -> PackedTensor:
    """Pack into `bits` bits, or unchanged if `bits` is EXACT."""
    if bits == EXACT:
        return PackedTensor(tensor.contiguous(), None, tuple(tensor.shape), tensor.dtype)
    groups = _grouped(tensor).float()
    values, scales = _rounded(groups) if bits == BITS[-1] else _squeezed(_rotated(groups), bits)
    return PackedTensor(values, scales, tuple(tensor.shape), tensor.dtype, bits)


def unpack(packed: PackedTensor) -> torch.Tensor:
    """The tensor, up to quantization error."""
    if packed.scales is None:
        return packed.values
    if packed.bits == BITS[-1]:
        return (packed.values.to(packed.dtype) * packed.scales.to(packed.dtype)).view(packed.shape)
    groups = (_from_planes(packed.values, packed.bits).float() - (2 ** (packed.bits - 1) - 0.5)) * packed.scales.float()
    return _rotated(groups, back=True).to(packed.dtype).view(packed.shape)


def unpack_page(page: PackedPage, before: Page) -> dict[str, torch.Tensor]:
    """All tensors of a step, from those of the step before."""
    return {**before, **{name: _applied(packed, before.get(name)) for name, packed in page.items()}}


def error_of(ours: Page, theirs: Page) -> float:
    """The largest relative error of a tensor."""
    return max((_relative(ours[name], theirs[name]) for name in theirs), default=0.0)


class PagePacker:
    """Packs pages in step order. `error` is the largest so far; with a budget of 0 packing is lossless."""

    def __init__(self, budget: float) -> None:
        self._budget, self._known = budget, dict[str, torch.Tensor]()
        self.error = 0.0

    def add(self, page: Page) -> PackedPage:
        """The page, packed."""
        if not self._budget:
            return {name: pack(tensor, EXACT) for name, tensor in page.items()}
        packed: PackedPage = {}
        for name, tensor in page.items():
            found = self._smallest(tensor, self._known.get(name))
            if found is not None:
                packed[name] = found
                self._known[name] = _applied(found, self._known.get(name))
            self.error = max(self.error, _relative(self._known[name], tensor))
        return packed

    def _smallest(self, tensor: torch.Tensor, known: torch.Tensor | None) -> PackedTensor | None:
        """None if it is nearly unchanged. Norms, which have a single token, are not compressed."""
        if tensor.shape[1] == 1:
            return pack(tensor, EXACT)
        change = None if known is None else tensor - known
        if change is not None and _size(change, tensor) <= self._budget:
            return None
        for one in self._candidates(tensor, change):
            if _relative(_applied(one, known), tensor) <= self._budget:
                return one
        return pack(tensor, EXACT)

    def _candidates(self, tensor: torch.Tensor, change: torch.Tensor | None) -> Iterator[PackedTensor]:
        """Candidates expected to meet the budget, smallest first; deltas only if smaller than the tensor."""
        sources = [(tensor, 1.0)]
        if change is not None and _size(change, tensor) < 1:
            sources.insert(0, (change, _size(change, tensor)))
        for bits in BITS:
            for source, size in sources:
                if USUAL_ERRORS[bits] * size < HOPELESS * self._budget and _fits(tensor, bits):
                    yield replace(pack(source, bits), is_change=source is change)


def _applied(packed: PackedTensor, before: torch.Tensor | None) -> torch.Tensor:
    if not packed.is_change:
        return unpack(packed)
    assert before is not None
    return before + unpack(packed)


# Rounding -------------------------------------------------------------------------------------------------------------


def _rounded(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight bits: the largest absolute value of a group maps to 127."""
    # bfloat16: scales of half precision would be zero for small activations
    scales = (groups.abs().amax(dim=-1, keepdim=True) / 127).clamp(min=SMALLEST).to(torch.bfloat16)
    return (groups / scales.float()).round().clamp(-127, 127).to(torch.int8), scales


def _squeezed(groups: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Fewer bits, several numbers in a byte; values are the midpoints of their intervals, so none is zero."""
    middle = 2 ** (bits - 1)
    scales = groups.abs().amax(dim=-1, keepdim=True) / middle
    if bits in BEST_STEPS:
        scales = torch.minimum(scales, groups.square().mean(dim=-1, keepdim=True).sqrt() * BEST_STEPS[bits])
    scales = scales.clamp(min=SMALLEST).to(torch.bfloat16)
    whole = ((groups / scales.float()).floor().clamp(-middle, middle - 1) + middle).to(torch.uint8)
    return _to_planes(whole, bits), scales


def _to_planes(whole: torch.Tensor, bits: int) -> torch.Tensor:
    """Bit planes as bytes: the lowest four bits of all numbers first, if `bits` includes four, then the next."""
    planes = []
    for wide in _planes(bits):
        parts = (whole & (2**wide - 1)).chunk(8 // wide, dim=-1)
        planes.append(torch.stack([part << (wide * place) for place, part in enumerate(parts)]).sum(0))
        whole = whole >> wide
    return torch.cat(planes, dim=-1).to(torch.uint8)


def _from_planes(packed: torch.Tensor, bits: int) -> torch.Tensor:
    wides = _planes(bits)
    widths = [packed.shape[-1] * wide // bits for wide in wides]
    whole, shift = torch.zeros(1, dtype=torch.uint8, device=packed.device), 0
    for wide, plane in zip(wides, torch.split(packed, widths, dim=-1), strict=True):
        parts = [(plane >> (wide * place)) & (2**wide - 1) for place in range(8 // wide)]
        whole = whole | (torch.cat(parts, dim=-1) << shift)
        shift += wide
    return whole


def _planes(bits: int) -> list[int]:
    return [wide for wide in PLANES if bits & wide]


def _rotated(groups: torch.Tensor, *, back: bool = False) -> torch.Tensor:
    matrix = _hadamard(groups.shape[-1], groups.device)
    return groups @ (matrix.T if back else matrix)


@lru_cache(maxsize=16)
def _hadamard(width: int, device: torch.device) -> torch.Tensor:
    """Orthogonal: its transpose is the inverse. The identity if the width is not a power of two."""
    if width & (width - 1):
        return torch.eye(width, device=device)
    matrix = torch.ones(1, 1)
    while len(matrix) < width:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    signs = torch.randint(0, 2, (width, 1), generator=torch.Generator().manual_seed(width)) * 2 - 1
    return (signs * matrix / math.sqrt(width)).to(device)


def _fits(tensor: torch.Tensor, bits: int) -> bool:
    return bits == BITS[-1] or _grouped(tensor).shape[-1] % (8 // _planes(bits)[-1]) == 0


def _grouped(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.flatten(2)
    width = flat.shape[-1]
    return flat.reshape(*flat.shape[:-1], -1, GROUP if width % GROUP == 0 else width)


def _relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return _size(ours.float() - theirs.float(), theirs)


def _size(part: torch.Tensor, whole: torch.Tensor) -> float:
    return float(part.float().norm() / whole.float().norm().clamp(min=1e-12))
