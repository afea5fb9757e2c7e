"""GFS: demand forecast, spot quota, preemption-aware placement (Duan et al., ASPLOS 2026)."""
