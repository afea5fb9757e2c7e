"""The cloudlet engine: devices that upload real bytes over shaped links, and a site that computes in real time.

plan        what is sent and computed when, by the clock of this machine
turns       whose turn it is on a free core
links       a rate for each device: kept by the device, or by the kernel between two network namespaces
device      the program of a device, a process of its own
core        the program of a core, a process of its own
priorities  before other processes, where that is allowed and asked for
processes   starting and ending them
site        the loop that takes the bytes, hands out turns and writes down what happened
engine      all of it together
"""

from __future__ import annotations

from takeup.edge.engines.cloudlet.engine import CloudletEngine
from takeup.edge.engines.cloudlet.plan import Plan

__all__ = ["CloudletEngine", "Plan"]
