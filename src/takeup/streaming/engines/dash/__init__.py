"""The dash engine: a real HTTP server, real players over real TCP, one bottleneck that all downloads share.

engine          plans and runs, and estimates with standard errors
cell_emulator   arrivals, admission and all players at once; the same arrivals on an ideal link
player          one player's download and playout
server          videos, playlists and HTTP/1.1
links           the bottleneck: paced in this process, or by the kernel between two network namespaces
"""

from takeup.streaming.engines.dash.engine import DashEngine, DashPlan

__all__ = ["DashEngine", "DashPlan"]
