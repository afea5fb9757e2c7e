"""Synthetic applications with graphs of the shape of real ones; each takes a random generator, gives a `Workload`.

The table of workloads in the README of this domain says what each is good for.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from takeup.caching.model import Workload
from takeup.caching.traces.job_graph import WorkloadBuilder

MB = 1_000_000


def zip_tenants(
    rng: np.random.Generator,
    *,
    num_tenants: int = 10,
    num_blocks: int = 100,
    num_workers: int = 20,
    block_bytes: int = 4 * MB,
    load_s: float = 0.02,
    zip_s: float = 0.05,
) -> Workload:
    """Every tenant loads the blocks of its first file, then of its second, then zips them; tenants interleave at
    random. Peers live on the same worker."""
    builder = WorkloadBuilder("zip")
    stage = -1
    for files in ("A", "B", "AB"):
        stage = builder.stage(after=stage)
        for tenant, index in _interleave(rng, num_tenants, num_blocks):
            blocks = [(file, tenant, index) for file in files]
            for block in blocks:
                builder.block(block, block_bytes, worker=(tenant * num_blocks + index) % num_workers)
            if len(blocks) == 1:
                builder.task(outputs=blocks, job=tenant, stage=stage, compute_s=load_s)
            else:
                builder.task(inputs=blocks, job=tenant, stage=stage, compute_s=zip_s)
    return builder.build()


def _interleave(rng: np.random.Generator, num_tenants: int, num_blocks: int) -> list[tuple[int, int]]:
    """(tenant, index) pairs: every tenant iterates over its blocks in order; the next tenant is drawn at random."""
    done, waiting, order = [0] * num_tenants, list(range(num_tenants)), []
    while waiting:
        tenant = waiting[int(rng.integers(len(waiting)))]
        order.append((tenant, done[tenant]))
        done[tenant] += 1
        if done[tenant] == num_blocks:
            waiting.remove(tenant)
    return order


@dataclass(frozen=True, slots=True)
class GraphShape:
    """An iterative graph application: mean bytes and compute seconds of a block of each kind.

    Partitions are uneven by `skew` (standard deviation of the logarithm). `shrink` multiplies the messages from one
    iteration to the next, as an active set that converges does.
    """

    num_partitions: int = 40
    num_workers: int = 20
    num_iterations: int = 10
    edge_bytes: int = 40 * MB
    vertex_bytes: int = 10 * MB
    message_bytes: int = 10 * MB
    edge_s: float = 2.5
    vertex_s: float = 0.3
    message_s: float = 0.3
    skew: float = 0.3
    shrink: float = 1.0


def graph_iterations(name: str, shape: GraphShape, rng: np.random.Generator) -> Workload:
    """Pregel in blocks: a job for each iteration makes *messages* from the edges and the vertices, then new *vertices*
    from the old ones and the messages. Edges are read in every iteration, vertices twice, messages once."""
    builder = WorkloadBuilder(name)
    weights = rng.lognormal(-(shape.skew**2) / 2, shape.skew, shape.num_partitions).tolist()

    def compute(stage: int, job: int, kind: str, size_bytes: float, seconds: float, *inputs: tuple[str, int]) -> None:
        """One task for each partition, that reads its part of `inputs` and writes its part of `kind`."""
        for part, weight in enumerate(weights):
            output = (kind, job, part)
            builder.block(output, max(1, round(size_bytes * weight)), part % shape.num_workers)
            parts = [(*block, part) for block in inputs]
            builder.task(inputs=parts, outputs=[output], job=job, stage=stage, compute_s=seconds * weight)

    load = stage = builder.stage()
    compute(load, 0, "edges", shape.edge_bytes, shape.edge_s)
    compute(load, 0, "vertices", shape.vertex_bytes, shape.vertex_s)
    for job in range(1, shape.num_iterations + 1):
        active = shape.shrink ** (job - 1)
        vertices = ("vertices", job - 1)
        stage = builder.stage(after=stage)
        compute(stage, job, "messages", shape.message_bytes * active, shape.message_s * active, ("edges", 0), vertices)
        stage = builder.stage(after=stage)
        compute(stage, job, "vertices", shape.vertex_bytes, shape.vertex_s, vertices, ("messages", job))
    return builder.build()


def scan(
    rng: np.random.Generator,
    *,
    num_blocks: int = 200,
    num_passes: int = 6,
    num_workers: int = 4,
    block_bytes: int = 4 * MB,
    compute_s: float = 0.02,
) -> Workload:
    """Load blocks once, then read all of them again and again; every pass is a job."""
    builder = WorkloadBuilder("scan")
    weights = rng.lognormal(-0.02, 0.2, num_blocks).tolist()
    stage = builder.stage()
    for block, weight in enumerate(weights):
        builder.block(block, round(block_bytes * weight), block % num_workers)
        builder.task(outputs=[block], stage=stage, compute_s=compute_s)
    for job in range(1, num_passes + 1):
        stage = builder.stage(after=stage)
        for block in range(num_blocks):
            builder.task(inputs=[block], job=job, stage=stage, compute_s=compute_s)
    return builder.build()


COMPONENTS = GraphShape(edge_bytes=30 * MB, message_bytes=20 * MB, shrink=0.6)
FACTORS = GraphShape(
    num_iterations=8, edge_bytes=25 * MB, vertex_bytes=25 * MB, message_bytes=25 * MB, vertex_s=0.6, message_s=0.6
)

WORKLOADS: dict[str, Callable[[np.random.Generator], Workload]] = {
    "zip": zip_tenants,
    "pagerank": lambda rng: graph_iterations("pagerank", GraphShape(), rng),
    "components": lambda rng: graph_iterations("components", COMPONENTS, rng),
    "svdpp": lambda rng: graph_iterations("svdpp", FACTORS, rng),
    "scan": scan,
}
