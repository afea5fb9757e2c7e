"""Compiled regions: the blocks that make up a network, each compiled once and shared by all blocks like it.

Compiling a whole network takes minutes, and nothing in it could be hooked any more. Its blocks repeat, in ControlNets
too, so compiling them is cheaper, and what lies between them stays open. Compiled code reads weights where they are:
patching weights in place needs no new compilation.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["REGIONS", "compile_regions"]

REGIONS = frozenset(
    {
        "Transformer2DModel",
        "ResnetBlock2D",
        "JointTransformerBlock",
        "FluxTransformerBlock",
        "FluxSingleTransformerBlock",
    }
)
MOST_SHAPES = 256


def compile_regions(network: Any, options: dict[str, Any]) -> int:
    """Have the regions of the network compiled when they are first called; how many there are."""
    dynamo = import_module("torch._dynamo").config
    dynamo.recompile_limit = max(dynamo.recompile_limit, MOST_SHAPES)
    dynamo.accumulated_recompile_limit = max(dynamo.accumulated_recompile_limit, 4 * MOST_SHAPES)
    regions = [module for name, module in network.named_modules() if _is_region(name, module)]
    for module in regions:
        module.compile(fullgraph=True, dynamic=False, options=options)
    return len(regions)


def _is_region(name: str, module: Any) -> bool:
    """The last norm of a U-Net is in no block; as it is, it would turn the layout of its input around."""
    return type(module).__name__ in REGIONS or name == "conv_norm_out"
