"""Chooses how a pipeline is computed on its device: CUDA graphs on CUDA, eager elsewhere."""

from collections.abc import Mapping
from typing import Any

import torch

from takeup.serving.diffusion.addons.controlnet.cuda_streams import StreamWorker
from takeup.serving.diffusion.addons.controlnet.workers import ControlWorker, ThreadWorker
from takeup.serving.diffusion.engine.families import Family
from takeup.serving.diffusion.execution.executors import DEFAULT_OPTIONS, CudaGraphExecutor, EagerExecutor, Executor
from takeup.serving.diffusion.execution.weight_stacks import WeightStacks
from takeup.serving.editing.masked.graph_networks import can_bind


def compute_for(device: torch.device | str, *, compiles: bool = True) -> Executor:
    """The executor for networks on this device."""
    if torch.device(device).type != "cuda":
        return EagerExecutor()
    return CudaGraphExecutor(DEFAULT_OPTIONS if compiles else None)


def stacks_for(compute: Executor, family: Family) -> WeightStacks | None:
    """The stacks that LoRAs are merged into; None where layers are patched one by one."""
    return compute.prepared(family.network).stacks if isinstance(compute, CudaGraphExecutor) else None


def binds_edits(compute: Executor, family: Family) -> bool:
    """Whether masked edits run as CUDA graphs rather than through hooks."""
    return isinstance(compute, CudaGraphExecutor) and can_bind(compute.prepared(family.network))


def workers_for(compute: Executor, nets: Mapping[str, Any]) -> dict[str, ControlWorker]:
    """Workers for ControlNets: CUDA graphs in separate streams, or threads."""
    if isinstance(compute, CudaGraphExecutor):
        return {name: StreamWorker(net, compute) for name, net in nets.items()}
    return {name: ThreadWorker(net) for name, net in nets.items()}
