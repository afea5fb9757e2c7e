"""Chains: what one video sees of the cell it shares, for every kind of cell. `chain_of` is the usual way in.

Names are loaded on first use, so that a plain cell does not wait for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from takeup.core.lazy import lazy_names

if TYPE_CHECKING:
    from takeup.streaming.chains.abr import (
        abr_by_state,
        bitrates_by_users,
        check_ladder,
        check_levels,
        fair_share_rule,
        mean_bitrate,
        num_switches,
    )
    from takeup.streaming.chains.batch import ChainBatch, ps_cells, stack
    from takeup.streaming.chains.cell import SLOT_S, chain_of, ps_cell
    from takeup.streaming.chains.flows import Flow
    from takeup.streaming.chains.mixed import Radio, radio_classes, with_data_traffic
    from takeup.streaming.chains.shared import Tagged, shared_chain, stationary_law
    from takeup.streaming.chains.video import phase_type, with_abandonment, with_phases, with_vbr

__all__ = [
    "SLOT_S",
    "ChainBatch",
    "Flow",
    "Radio",
    "Tagged",
    "abr_by_state",
    "bitrates_by_users",
    "chain_of",
    "check_ladder",
    "check_levels",
    "fair_share_rule",
    "mean_bitrate",
    "num_switches",
    "phase_type",
    "ps_cell",
    "ps_cells",
    "radio_classes",
    "shared_chain",
    "stack",
    "stationary_law",
    "with_abandonment",
    "with_data_traffic",
    "with_phases",
    "with_vbr",
]

_HOMES = {
    "abr": (
        "abr_by_state",
        "bitrates_by_users",
        "check_ladder",
        "check_levels",
        "fair_share_rule",
        "mean_bitrate",
        "num_switches",
    ),
    "batch": ("ChainBatch", "ps_cells", "stack"),
    "cell": ("SLOT_S", "chain_of", "ps_cell"),
    "flows": ("Flow",),
    "mixed": ("Radio", "radio_classes", "with_data_traffic"),
    "shared": ("Tagged", "shared_chain", "stationary_law"),
    "video": ("phase_type", "with_abandonment", "with_phases", "with_vbr"),
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
