"""Compiled regions: the blocks that make up a network, each compiled once and shared by all equal blocks.

Compiling a whole network takes minutes and rules out hooks. Its blocks repeat, in ControlNets too, so compiling them is
cheaper, and hooks between them still work. Compiled code reads weights in place: patching weights in place needs no
recompilation.
"""

from __future__ import annotations

from collections.abc import Set
from importlib import import_module
from typing import Any

DEFAULT_OPTIONS: dict[str, Any] = {"conv_1x1_as_mm": True, "triton.multi_kernel": 1}
"""Options of TorchInductor: 1x1 convolutions as products; norms in the faster of two ways, tried when first called."""

AUTOTUNE_OPTIONS: dict[str, Any] = {
    **DEFAULT_OPTIONS,
    "max_autotune_gemm": True,
    "max_autotune_gemm_backends": "ATEN,TRITON",
}
"""The same, and products in the fastest of many tiles, which takes minutes to find where nothing is cached."""

REGIONS = frozenset(
    {
        "Transformer2DModel",
        "ResnetBlock2D",
        "Upsample2D",
        "Downsample2D",
        "JointTransformerBlock",
        "FluxTransformerBlock",
        "FluxSingleTransformerBlock",
    }
)
MAX_SHAPES = 256


def compile_regions(network: Any, options: dict[str, Any], apart: Set[Any] = frozenset()) -> int:
    """Compile the regions of the network, except those in `apart`, on their first call. Returns their number."""
    dynamo = import_module("torch._dynamo").config
    dynamo.recompile_limit = max(dynamo.recompile_limit, MAX_SHAPES)
    dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, 4 * MAX_SHAPES)
    regions = [one for one in network.modules() if type(one).__name__ in REGIONS and one not in apart]
    for module in regions:
        module.compile(fullgraph=True, dynamic=False, options=options)
    return len(regions)
