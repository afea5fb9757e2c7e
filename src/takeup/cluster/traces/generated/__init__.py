"""Synthetic workloads with the statistics of a production fleet: sizes, durations, arrivals, organisations, levels.

Open `published.py` for the numbers, `presets.py` for the fleets. Each pool draws from separate random streams, so that
leaving one out does not change the others, and a shorter window is the end of the longer one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from takeup.cluster.model import Kind, Workload
from takeup.cluster.traces.generated.draw import DrawnJobs, PoolGenerator, joined
from takeup.cluster.traces.generated.presets import PRESETS, Preset
from takeup.cluster.traces.generated.published import NUM_DAYS, PROFILES
from takeup.cluster.traces.generated.shapes import Nodes
from takeup.cluster.traces.generated.times import bursts
from takeup.core.seeds import Streams
from takeup.errors import BadInput, UnknownName

__all__ = ["PRESETS", "Preset", "generate"]

GUARANTEE_H, CHECKPOINT_S = 1.0, 3600.0


def generate(
    name: str, streams: Streams, num_days: int | None = None, scale: float = 1.0, pools: Sequence[str] | None = None
) -> Workload:
    """The workload of a preset, or its last `num_days`, with `scale` times its nodes and jobs, of some `pools` only."""
    if name not in PRESETS:
        raise UnknownName("cluster workload", name, PRESETS)
    preset = PRESETS[name]
    days = preset.num_days if num_days is None else num_days
    if not 1 <= days <= NUM_DAYS:
        raise BadInput(f"{days} days were asked for; choose 1 to {NUM_DAYS}")
    if not (np.isfinite(scale) and scale > 0):
        raise BadInput(f"the scale is {scale:g}; choose a number above zero")
    nodes = {pool: _scaled(sizes, scale) for pool, sizes in _chosen(name, preset, pools).items()}
    burst = bursts(streams.stream("bursts"))
    drawn = [
        PoolGenerator(PROFILES[pool], sizes, preset, days, burst, streams.child(pool)).jobs()
        for pool, sizes in nodes.items()
    ]
    return _workload(name, nodes, drawn)


def _chosen(name: str, preset: Preset, pools: Sequence[str] | None) -> Mapping[str, Nodes]:
    if pools is None:
        return preset.nodes
    if not pools:
        raise BadInput(f"no pool was chosen; leave `pools` out or name some of {', '.join(preset.nodes)}")
    for pool in pools:
        if pool not in preset.nodes:
            raise UnknownName(f"pool of {name}", pool, preset.nodes)
    return {pool: preset.nodes[pool] for pool in pools}


def _scaled(nodes: Nodes, scale: float) -> Nodes:
    return tuple((size, max(1, round(count * scale))) for size, count in nodes)


def _workload(name: str, nodes: Mapping[str, Nodes], drawn: list[DrawnJobs]) -> Workload:
    jobs = joined(drawn)
    pool = np.repeat(np.arange(len(drawn)), [len(part.kind) for part in drawn])
    order = np.argsort(jobs.submit_s, kind="stable")
    numbers, organisation = np.unique(jobs.organisation[order], return_inverse=True)
    node_gpus = [[size for size, count in sizes for _ in range(count)] for sizes in nodes.values()]
    return Workload(
        name=name,
        pools=tuple(nodes),
        organisations=tuple(f"organisation-{number}" for number in numbers),
        node_pool=np.repeat(np.arange(len(node_gpus)), [len(sizes) for sizes in node_gpus]),
        node_gpus=np.array([size for sizes in node_gpus for size in sizes], np.int64),
        job_kind=jobs.kind[order],
        job_pool=pool[order],
        job_organisation=organisation.astype(np.int64),
        job_gpus=jobs.gpus[order],
        job_workers=jobs.workers[order],
        job_submit_s=jobs.submit_s[order],
        job_duration_s=jobs.duration_s[order],
        job_guarantee_h=np.where(jobs.kind[order] == Kind.SPOT, GUARANTEE_H, 0.0),
        job_checkpoint_s=np.full(len(order), CHECKPOINT_S),
    )
