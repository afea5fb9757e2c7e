"""How often a video stops: two users by hand and by the solver, then a cell of ten."""

from __future__ import annotations

from math import exp, sqrt

from takeup.streaming import Cell, Player, chain_of, solve_cell
from takeup.streaming.solvers.fluid import DoublingSolver

# Two users at most. Alone the buffer grows by 0.5 s per second, with company it falls by 0.25; see docs/concepts.
other_comes, other_goes, ends_alone, ends_together = 0.02, 0.0125, 0.025, 0.0125
a, b = -(other_comes + ends_alone) / 0.5, other_comes / 0.5
c, e = other_goes / 0.25, -(other_goes + ends_together) / 0.25
psi = (-(a + e) - sqrt((a + e) ** 2 - 4 * b * c)) / (2 * c)
low = e + c * psi
print(f"by hand   together {exp(5 * low):.4f}  alone {psi * exp(5 * low):.4f}")

pair = Cell(capacity_bps=1.5e6, bitrate_bps=1e6, arrivals_per_s=0.02, max_users=2)
solution = DoublingSolver().solution(chain_of(pair))
alone, together = solution.playback.empties(5.0)[:, 0]
print(f"doubling  together {together:.4f}  alone {alone:.4f}")

cell = Cell(capacity_bps=2.8e6, bitrate_bps=360e3, arrivals_per_s=0.12, max_users=10)
for start_s in (2, 5, 10, 20):
    answer = solve_cell(cell, Player(start_s))
    print(f"start at {start_s:2} s  P(stall) {answer.stall_probability.value:.4f}  wait {answer.startup_s.value:.2f} s")
