"""The cloudlet engine: devices that upload real bytes over shaped links, and a site that computes in real time.

plan        what is sent and computed when, by the clock of this machine
turns       which job a free core runs next
links       a rate for each device: kept by the device, or by the kernel between two network namespaces
device      the program of a device, run as a separate process
core        the program of a core, run as a separate process
priorities  real-time priorities, where permitted and requested
processes   starting and ending them
site        the event loop that receives the bytes, dispatches jobs to cores and records what happened
engine      the engine that combines these
"""

from __future__ import annotations

from takeup.edge.engines.cloudlet.engine import CloudletEngine
from takeup.edge.engines.cloudlet.plan import CloudletPlan

__all__ = ["CloudletEngine", "CloudletPlan"]
