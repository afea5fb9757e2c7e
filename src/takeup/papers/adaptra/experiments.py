"""The 14B model of the paper: eight stages, a delay on the last link, simulated with equal operation times.

Three of the four systems are simulated as they are: blocking sends for 1F1B (compute waits for every send),
non-blocking messages under delegation, and adapted schedules. Ratios to a healthy iteration are compared, because
times depend on GPUs. A zero-bubble schedule with blocking sends is slower in the paper than our model of a single
queue predicts; it is shown, but is not a check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from takeup.core.report import Cell, Check, Column, Series, Table
from takeup.papers.adaptra.pipelines import Numbers, iteration_ms, to_ms
from takeup.papers.findings import Findings
from takeup.training.model.pipeline import Link, Profile
from takeup.training.policies.adaptra import Adaptra
from takeup.training.policies.one_f_one_b import OneFOneB
from takeup.training.timing.runs import generate_schedule

NUM_STAGES, NUM_MICROBATCHES = 8, 24
SYSTEMS = ("one_f_one_b", "zero_bubble", "delegation_only", "full")


def model_14b(expected: Numbers) -> Findings:
    """Iteration times by delay compared with the logged ones, and ratios at the largest delay with the printed ones."""
    part, logs = expected["model_14b"], expected["model_14b_logs"]
    healthy = _simulate_14b(expected, 0.0)
    ours = {delay_ms: _simulate_14b(expected, delay_ms) for delay_ms in logs["delays_ms"]}
    worst = ours[part["delay_ms"]]
    checks = [
        Check.near(
            f"14B, {part['delay_ms']} ms on the last link, {system} over healthy",
            worst[system] / healthy[system],
            part[system],
            part["tolerance"],
            why="simulated with equal operation times",
        )
        for system in ("one_f_one_b", "delegation_only", "full")
    ]
    blocking = expected["model_14b_blocking"]["zero_bubble"]
    why = "our model of a single queue, in which compute waits for every send, does not explain all of it"
    ratio = worst["zero_bubble"] / healthy["zero_bubble"]
    checks.append(
        Check.near("14B, zero bubble with blocking sends", ratio, blocking, 0.4, source="unverified", why=why)
    )
    return Findings(tuple(checks), (_table_14b(logs, ours),), (_chart_14b(logs, ours),))


def _simulate_14b(expected: Numbers, delay_ms: float) -> dict[str, float]:
    op_s = expected["model_14b"]["healthy_zero_bubble_ms"] / 1e3 / (NUM_STAGES - 1 + 3 * NUM_MICROBATCHES)
    profile = Profile.uniform(NUM_STAGES, NUM_MICROBATCHES, op_s, {NUM_STAGES - 2: Link(delay_ms / 1e3)})
    blocking = replace(profile, max_sends=1)
    healthy = profile.with_links({NUM_STAGES - 2: Link()})
    zero_bubble = generate_schedule(healthy, [2 * (NUM_STAGES - stage) - 1 for stage in range(NUM_STAGES)])
    return {
        "one_f_one_b": to_ms(OneFOneB().plan(blocking).iteration_s),
        "zero_bubble": iteration_ms(zero_bubble, blocking),
        "delegation_only": iteration_ms(zero_bubble, profile),
        "full": to_ms(Adaptra().plan(profile).iteration_s),
    }


def _table_14b(logs: Numbers, ours: dict[float, dict[str, float]]) -> Table:
    words = [system.replace("_", " ") for system in SYSTEMS]
    columns = [Column("delay", "ms", 0)]
    columns += [Column(f"{word}{kind}", "ms", 0) for word in words for kind in ("", ", paper")]
    rows: list[Sequence[Cell]] = [
        (delay_ms, *(value for system in SYSTEMS for value in (times[system], logs[system][index])))
        for index, (delay_ms, times) in enumerate(ours.items())
    ]
    note = "one operation takes as long as any other, so that a healthy zero-bubble iteration takes as long as theirs"
    return Table("14B, delay on the last link", tuple(columns), tuple(map(tuple, rows)), note)


def _chart_14b(logs: Numbers, ours: dict[float, dict[str, float]]) -> Series:
    rows: list[dict[str, Cell]] = []
    for index, (delay_ms, times) in enumerate(ours.items()):
        for system in SYSTEMS:
            name = system.replace("_", " ")
            rows.append({"delay": delay_ms, "system": name, "iteration": times[system], "whose": "simulated"})
            rows.append({"delay": delay_ms, "system": name, "iteration": logs[system][index], "whose": "paper"})
    return Series("14B, delay on the last link", "delay", "iteration", tuple(rows), "system", "whose", "ms", "ms")
