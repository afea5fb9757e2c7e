"""Cost model of an edit step: operations and loads of every block, from its shape and the number of masked tokens.

A block of a U-Net (self-attention, cross-attention, gated feed-forward) needs 36 n H^2 operations for n tokens
of width H, and 4 n H for every key; one of a transformer of text and image (Flux) 24 n H^2, its text tokens counted in,
as they are always computed. With `output` keys and values of the other tokens are 4 H^2 more for each. A mask is the
share of the image that it covers, or what it really is on every grid: coarse grids round up.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from takeup.errors import BadInput
from takeup.serving.editing.planner.block_formats import BlockCost, Format

BYTES = 2
"""Of a number in half precision."""
TEXT_KEYS = 77
Mask = float | Mapping[int, int]
"""A share of the image, or masked tokens by the number of tokens of a grid."""


@dataclass(frozen=True, slots=True)
class BlockShape:
    """A transformer block: tokens of the image, their width, and text tokens computed with them."""

    num_tokens: int
    width: int
    kind: Literal["unet", "joint"] = "unet"
    num_text: int = 0

    def flop(self, what: Format, num_masked: int) -> float:
        """Operations for one row of a batch."""
        computed = (self.num_tokens if what == "full" else num_masked) + self.num_text
        others = self.num_tokens - num_masked if what == "output" else 0
        keys = self.num_tokens + self.num_text + (TEXT_KEYS if self.kind == "unet" else 0)
        linear = (36 if self.kind == "unet" else 24) * computed * self.width**2
        return linear + 4 * computed * keys * self.width + 4 * others * self.width**2

    def load_bytes(self, what: Format, num_masked: int) -> float:
        """Bytes loaded from the template for one row."""
        copies = {"full": 0, "output": 1, "kv": 2}[what]
        return copies * (self.num_tokens - num_masked) * self.width * BYTES

    @property
    def weight_bytes(self) -> float:
        """Read once per call, regardless of the rows; joint blocks have twice as many on average (text and image)."""
        return (18 if self.kind == "unet" else 18.4) * self.width**2 * BYTES


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """Blocks in order, operations outside of them for one row (perhaps masked ones only), and rows per image."""

    blocks: tuple[BlockShape, ...]
    num_tokens: int
    other_flop: float = 0.0
    num_rows: int = 1
    others_masked: bool = False

    def outside_flop(self, mask: Mask) -> float:
        """Operations outside of the blocks for one row."""
        share = mask[self.num_tokens] / self.num_tokens if isinstance(mask, Mapping) else mask
        return self.other_flop * (share if self.others_masked else 1.0)


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """Speed of a device; `launch_s`: fixed overhead of a block, `start_s`: fixed overhead of an edit.

    The tokens of all rows together are rounded up to whole tiles of `tile_tokens`.
    """

    flop_per_s: float
    memory_bytes_per_s: float
    link_bytes_per_s: float
    launch_s: float = 0.0
    tile_tokens: int = 1
    start_s: float = 0.0

    def compute_s(self, flop: float, weight_bytes: float) -> float:
        """Roofline: the larger of compute time and weight-read time, plus launch overhead."""
        return max(flop / self.flop_per_s, weight_bytes / self.memory_bytes_per_s) + self.launch_s

    def tiled(self, num_tokens: int) -> float:
        """Ratio of computed to requested tokens, due to tile rounding."""
        return -(-num_tokens // self.tile_tokens) * self.tile_tokens / max(1, num_tokens)


SDXL = NetworkShape(
    blocks=(*[BlockShape(4096, 640)] * 4, *[BlockShape(1024, 1280)] * 60, *[BlockShape(4096, 640)] * 6),
    num_tokens=16384,
    other_flop=1.623e12,
    num_rows=2,
)
SDXL_COLUMNS = replace(SDXL, others_masked=True)
"""With mask-aware convolutions."""
FLUX = NetworkShape(blocks=(BlockShape(4096, 3072, "joint", 512),) * 57, num_tokens=4096)
H200 = DeviceSpeed(flop_per_s=790e12, memory_bytes_per_s=4.3e12, link_bytes_per_s=55e9)


def num_masked(block: BlockShape, mask: Mask) -> int:
    """Tokens of this block inside the mask."""
    if isinstance(mask, Mapping):
        return mask[block.num_tokens]
    if not 0 <= mask <= 1:
        raise BadInput(f"the mask covers {mask:g} of the image; give a share from 0 to 1")
    return math.ceil(mask * block.num_tokens)


def flop_of(network: NetworkShape, what: Format, mask: Mask) -> float:
    """Operations of one step of one image with every block in this format."""
    blocks = sum(block.flop(what, num_masked(block, mask)) for block in network.blocks)
    return network.num_rows * (blocks + network.outside_flop(mask))


def load_bytes(network: NetworkShape, what: Format, mask: Mask) -> float:
    """Loads of one step of one image with every block in this format."""
    return network.num_rows * sum(b.load_bytes(what, num_masked(b, mask)) for b in network.blocks)


def costs_of(network: NetworkShape, masks: Sequence[Mask], device: DeviceSpeed) -> list[BlockCost]:
    """Block costs for a batch of edits with these masks. Every edit loads its own template; weights are read once.

    Operations outside the blocks (convolutions) are distributed evenly over the blocks.
    """
    other_flop = network.num_rows * sum(map(network.outside_flop, masks)) / len(network.blocks)
    made: dict[BlockShape, BlockCost] = {}
    for block in network.blocks:
        made[block] = made.get(block) or _cost(block, network.num_rows, masks, device, other_flop)
    return [made[block] for block in network.blocks]


def _cost(block: BlockShape, num_rows: int, masks: Sequence[Mask], device: DeviceSpeed, other_flop: float) -> BlockCost:
    counts = [num_masked(block, mask) for mask in masks]

    def compute_s(what: Format) -> float:
        computed = num_rows * sum((block.num_tokens if what == "full" else n) + block.num_text for n in counts)
        flop = num_rows * sum(block.flop(what, n) for n in counts) * device.tiled(computed)
        return device.compute_s(flop + other_flop, block.weight_bytes)

    def load_s(what: Format) -> float:
        return num_rows * sum(block.load_bytes(what, n) for n in counts) / device.link_bytes_per_s

    rows_s = load_s("output")
    return BlockCost(compute_s("full"), compute_s("output"), compute_s("kv"), rows_s, load_s("kv"), rows_s)
