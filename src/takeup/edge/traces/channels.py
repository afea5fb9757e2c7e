"""Measured channels and tables of modulations: signal-to-noise ratios over time, and the rates they allow."""

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.trace import TraceColumn, read_table
from takeup.edge.model import Instance, Modulation
from takeup.errors import BadInput, BadTrace

# Tables of modulations: what a radio sends at which signal-to-noise ratio, instead of what Shannon promises -----------
#
# Efficiencies are those of the tables of channel quality indicators (CQI) in 3GPP TS 38.214, section 5.2.2.1:
# modulation order times code rate. The standard says what to send, and not when it arrives. The ratios of `CQI_64QAM`
# are those in general use for one block in ten lost over a channel with white noise alone; they come from link
# simulations of LTE, whose table is the same. A link that may lose fewer blocks, or fades within one, needs more: see
# `with_margin`.

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


# Channels as they were measured: the signal-to-noise ratio of a phone over time, and gains made from it ---------------
#
# The columns are by default those of the 5G data set of University College Cork (Raca et al., MMSys 2020), which holds
# a row about every second: a time stamp, the ratio in dB, and the channel quality indicator. A row without a ratio
# takes the least ratio that its indicator stands for; a row with neither is left out.
#
# What a phone logs is the ratio of the downlink. We take the channel to be the same in both directions, and the ratio
# for that of an upload at full power spread over all subcarriers. On top, every subcarrier fades by itself.

TIME_FORMAT = "%Y.%m.%d_%H.%M.%S"
UNKNOWN = {"", "-", "nan"}
LARGEST_DB = 100.0


@dataclass(frozen=True, slots=True)
class ChannelColumns:
    """What the columns of a log are called. Times are seconds, or stamps such as 2019.12.16_13.40.04."""

    time: str = "Timestamp"
    snr_db: str = "SNR"
    cqi: str = "CQI"


CORK_5G = ChannelColumns()


@dataclass(frozen=True, slots=True, eq=False)
class ChannelLog:
    """Signal-to-noise ratios (not in dB), each from its time on; the first at zero."""

    name: str
    times_s: Floats
    ratios: Floats

    @property
    def duration_s(self) -> float:
        """How long the log lasts; the last sample as long as is usual."""
        return float(self.times_s[-1] + np.median(np.diff(self.times_s)))

    def ratios_at(self, times_s: Floats) -> Floats:
        """The ratios at these times; after its end the log begins again."""
        places = np.searchsorted(self.times_s, np.mod(times_s, self.duration_s), side="right") - 1
        return self.ratios[places]


def read_channel(path: Path | str, columns: ChannelColumns = CORK_5G) -> ChannelLog:
    """The log in a table. Of several rows with one time the last counts."""
    path = Path(path)
    table = read_table(path, [TraceColumn(columns.time, "text"), *_optional(columns)])
    rows = zip(table[columns.snr_db].tolist(), table[columns.cqi].tolist(), strict=True)
    ratios = np.array([_ratio(path, columns, snr_db, cqi, line) for line, (snr_db, cqi) in enumerate(rows, start=2)])
    stamps = table[columns.time].tolist()
    times_s = np.array([_seconds(path, columns, stamp, line) for line, stamp in enumerate(stamps, start=2)])
    known = ~np.isnan(ratios)
    times_s, ratios = times_s[known], ratios[known]
    if (np.diff(times_s) < 0).any():
        raise BadTrace(path, "time goes backwards; sort the rows by time", column=columns.time)
    lasts = np.append(np.diff(times_s) > 0, True)[: len(times_s)]
    if lasts.sum() < 2:
        raise BadTrace(path, f"has {lasts.sum()} usable samples; a channel is described by two or more")
    return ChannelLog(path.name.partition(".csv")[0], times_s[lasts] - times_s[lasts][0], ratios[lasts])


def with_channel(instance: Instance, log: ChannelLog, random: np.random.Generator) -> Instance:
    """The same tasks over the channel of the log; every device has a random offset into it, plus its release."""
    moments_s = random.uniform(0, log.duration_s, instance.num_devices) + instance.releases_s
    radio = instance.radio
    power_w = radio.max_power_w / instance.num_subcarriers
    mean_gains = log.ratios_at(moments_s) * radio.noise_w_per_hz * radio.bandwidth_hz / power_w
    fading = np.maximum(random.exponential(size=instance.gains.shape), 1e-12)  # a gain of zero has no logarithm
    return replace(instance, gains=mean_gains[:, None] * fading)


def _optional(columns: ChannelColumns) -> list[TraceColumn]:
    return [TraceColumn(name, "text", required=False) for name in (columns.snr_db, columns.cqi)]


def _ratio(path: Path, columns: ChannelColumns, snr_db: str, cqi: str, line: int) -> float:
    """From the ratio, or else the indicator; nan if both are unknown."""
    if snr_db.strip().lower() not in UNKNOWN:
        return float(10 ** (_number(path, columns.snr_db, snr_db, line, LARGEST_DB) / 10))
    if cqi.strip().lower() in UNKNOWN:
        return float("nan")
    quality = int(_number(path, columns.cqi, cqi, line, len(CQI_64QAM)))
    return CQI_64QAM[quality - 1].least_ratio if quality > 0 else float("nan")  # 0: out of range


def _number(path: Path, column: str, cell: str, line: int, largest: float) -> float:
    try:
        value = float(cell)
    except ValueError:
        raise BadTrace(path, f"{cell!r} is not a number", line=line, column=column) from None
    if not abs(value) <= largest:
        raise BadTrace(path, f"{cell} is beyond {largest:g}, the most there is", line=line, column=column)
    return value


def _seconds(path: Path, columns: ChannelColumns, stamp: str, line: int) -> float:
    try:
        seconds = float(stamp)
    except ValueError:
        pass
    else:
        if np.isfinite(seconds):
            return seconds
    try:
        return (datetime.strptime(stamp, TIME_FORMAT) - datetime(1970, 1, 1)).total_seconds()
    except ValueError:
        problem = f"{stamp!r} is no time; expected seconds, or a stamp such as 2019.12.16_13.40.04"
        raise BadTrace(path, problem, line=line, column=columns.time) from None
