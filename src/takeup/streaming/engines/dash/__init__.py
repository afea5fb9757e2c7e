"""The dash engine: a real HTTP server, real players over real TCP, one bottleneck that all downloads share.

playout     start-up and stalls of a viewer, given the arrival times of the bytes
sharing     processor sharing of the link, as arithmetic
links       the bottleneck: paced in this process, or by the kernel between two network namespaces
videos      what the server has: sizes of segments, playlists, contents
server      HTTP/1.1
download    one player's connection
ring        arrivals, admission and all players at once
estimates   from measured playbacks to an answer with standard errors
browser     Chromium as a player
"""

from __future__ import annotations

from takeup.streaming.engines.dash.engine import DashEngine, DashPlan

__all__ = ["DashEngine", "DashPlan"]
