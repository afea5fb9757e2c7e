"""One of two ranks that make images together; rank 1 is a process of its own."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from takeup.serving.engines.diffusers.branches.exchange import GroupExchange
from takeup.serving.engines.diffusers.branches.family import OneBranch
from takeup.serving.engines.diffusers.branches.pair import Follower, SharedClock
from torch._C._distributed_c10d import FileStore

from takeup.serving.engines.diffusers.addons import AddOn
from takeup.serving.engines.diffusers.controls.addon import Controls
from takeup.serving.engines.diffusers.families import family_of
from takeup.serving.engines.diffusers.lora.addon import Loras
from takeup.serving.engines.diffusers.lora.loaders import ThreadLoader
from takeup.serving.engines.diffusers.lora.targets import LoraTargets
from takeup.serving.engines.diffusers.steps import StepEngine
from takeup.serving.engines.diffusers.tiny import build

__all__ = ["NAME", "follow", "joined", "rank_engine"]

NAME = "takeup/tiny-sdxl-controlnet"


def joined(rank: int, store: Path) -> GroupExchange:
    """The line between both, over Gloo."""
    made = FileStore(str(store), 2)
    dist.init_process_group("gloo", store=made, rank=rank, world_size=2, timeout=timedelta(seconds=600))
    return GroupExchange()


def rank_engine(exchange: GroupExchange, files: dict[str, Path], loader: Any = None) -> tuple[StepEngine, SharedClock]:
    """The engine of this rank, with LoRAs and ControlNets."""
    pipeline, clock = build(NAME), SharedClock()
    family = OneBranch(family_of(pipeline), exchange)
    nets = dict(zip(("depth", "edges"), pipeline.controlnet.nets, strict=True))
    loras = Loras(family, loader or ThreadLoader(files, LoraTargets.of(pipeline)), "merged", agree=exchange.agree)
    add_ons: list[AddOn] = [loras, Controls(family, nets)]
    return StepEngine(pipeline, family=family, clock=clock, add_ons=add_ons), clock


def follow(store: Path, files: dict[str, Path]) -> None:
    """The whole life of rank 1."""
    torch.set_num_threads(1)
    exchange = joined(1, store)
    engine, clock = rank_engine(exchange, files)
    Follower(engine, exchange, clock).run()
    dist.destroy_process_group()
    os._exit(0)  # all is done; threads of PyTorch that live on now and then abort a process that ends
