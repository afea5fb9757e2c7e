"""Long uploads, where the greedy algorithm of the paper loses: the loss, certified by a bound for every instance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from takeup.core.report import Check, Column, Table
from takeup.core.seeds import Streams
from takeup.edge.model import Instance
from takeup.edge.policies import find_policy
from takeup.edge.policies.batch import joint_batch
from takeup.edge.traces.generators import radio_tight_setting
from takeup.papers.findings import Findings

RADIO_TIGHT_POLICIES = ("radio_first", "cpu_first", "joint", "gma", "car_p", "jtora", "joint_plus")


def radio_tight(expected: Mapping[str, Any], tick: Callable[[], None]) -> Findings:
    """Gaps of all policies to one bound, that of `auto`."""
    part = expected["radio_tight"]
    random = Streams(expected["setting"]["seed"]).stream("radio_tight")
    rows = []
    for _ in range(part["num_instances"]):
        rows.append(_gaps_to_bound(radio_tight_setting(random, part["num_devices"])))
        tick()
    gaps = dict(zip((*RADIO_TIGHT_POLICIES, "auto"), np.array(rows).T, strict=True))
    columns = (Column("policy"), Column("mean", "%", 2), Column("median", "%", 2), Column("max", "%", 2))
    table = Table(
        "Where uploads are long: largest possible loss of saving",
        columns,
        tuple(
            (name, float(gap.mean()), float(np.median(gap)), float(gap.max()))  # one row for each policy
            for name, gap in gaps.items()
        ),
        "against the bound of auto, which no allocation exceeds; the true loss is smaller",
    )
    lost = _greedy_loss_percent(part, random)
    return Findings(_radio_tight_checks(part, gaps["auto"].tolist(), lost), (table,))


def _greedy_loss_percent(part: Mapping[str, Any], random: np.random.Generator) -> float:
    """The largest share of the saving of joint_plus that joint does not reach, in percent."""
    cells = [radio_tight_setting(random, part["num_devices"]) for _ in range(part["num_greedy_instances"])]
    shares = joint_batch(cells, "joint").saving_j / joint_batch(cells, "joint_plus").saving_j
    return 100 * float(1 - shares.min())


def _gaps_to_bound(instance: Instance) -> list[float]:
    auto = find_policy("auto").allocate(instance)
    assert auto.bound_j is not None
    savings_j = [find_policy(name).allocate(instance).saving_j for name in RADIO_TIGHT_POLICIES]
    return [100 * (1 - saving_j / auto.bound_j) for saving_j in (*savings_j, auto.saving_j)]


def _radio_tight_checks(part: Mapping[str, Any], gaps: list[float], lost: float) -> tuple[Check, ...]:
    why = f"of {part['num_greedy_instances']} cells: the greedy of the paper is no longer near the optimum"
    return (
        Check.at_most("auto, certified gap, mean", float(np.mean(gaps)), part["auto_mean"], unit="%"),
        Check.at_most("auto, certified gap, largest", max(gaps), part["auto_max"], unit="%"),
        Check.at_least(
            "joint, lost against joint_plus, largest", lost, part["joint_loses_at_least"], unit="%", why=why
        ),
    )
