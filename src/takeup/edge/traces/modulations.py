"""Tables of modulations: what a radio sends at which signal-to-noise ratio, instead of what Shannon promises.

Efficiencies are those of the tables of channel quality indicators (CQI) in 3GPP TS 38.214, section 5.2.2.1: modulation
order times code rate. The standard says what to send, and not when it arrives. The ratios of `CQI_64QAM` are those in
general use for one block in ten lost over a channel with white noise alone; they come from link simulations of LTE,
whose table is the same. A link that may lose fewer blocks, or fades within one, needs more: see `with_margin`.
"""

from __future__ import annotations

from dataclasses import replace

from takeup.edge.model import Modulation
from takeup.errors import BadInput

_EFFICIENCIES = (
    *(0.1523, 0.2344, 0.3770, 0.6016, 0.8770, 1.1758),  # QPSK
    *(1.4766, 1.9141, 2.4063),  # 16-QAM
    *(2.7305, 3.3223, 3.9023, 4.5234, 5.1152, 5.5547),  # 64-QAM
)
_RATIOS_DB = (-6.7, -4.7, -2.3, 0.2, 2.4, 4.3, 5.9, 8.1, 10.3, 11.7, 14.1, 16.3, 18.7, 21.0, 22.7)

CQI_64QAM = tuple(
    Modulation(bits_per_hz_s, 10 ** (ratio_db / 10))
    for bits_per_hz_s, ratio_db in zip(_EFFICIENCIES, _RATIOS_DB, strict=True)
)


def cqi_ratio(cqi: int) -> float:
    """The signal-to-noise ratio that a channel of this quality indicator, 1 to 15, has at least."""
    if not 1 <= cqi <= len(CQI_64QAM):
        raise BadInput(f"a channel quality indicator of {cqi} does not exist; expected 1 to {len(CQI_64QAM)}")
    return CQI_64QAM[cqi - 1].least_ratio


def with_margin(modulations: tuple[Modulation, ...], margin_db: float) -> tuple[Modulation, ...]:
    """The same modulations, each needing a ratio that is higher by `margin_db`."""
    factor = 10 ** (margin_db / 10)
    return tuple(replace(each, least_ratio=each.least_ratio * factor) for each in modulations)
