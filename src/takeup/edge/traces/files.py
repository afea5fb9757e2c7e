"""Files: instances (JSON or npz), and measured channels with the table of modulations."""

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from takeup.core.arrays import Floats
from takeup.core.files import write_atomically
from takeup.core.limits import check_archive, read_json, reading
from takeup.core.trace import TraceColumn, read_table
from takeup.edge.model import Instance, Modulation, Radio
from takeup.errors import BadInput, BadTrace

# Instances as files: JSON to read and edit, npz for large ones; reading returns exactly what was written --------------
#
# Both hold the same: a head, with everything that is one for the whole instance, and one array for each field of the
# devices. In npz the head is JSON text; nothing in a file is executed.

ARRAYS = ("gains", "bits", "cycles", "deadlines_s", "releases_s", "values_j")
FORMATS = (".json", ".npz")

Number = Annotated[float, Field(strict=True)]
Count = Annotated[int, Field(strict=True)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _ModulationHead(_Part):
    bits_per_hz_s: Number
    least_ratio: Number


class _RadioHead(_Part):
    bandwidth_hz: Number
    noise_w_per_hz: Number
    max_power_w: Number
    circuit_power_w: Number
    modulations: tuple[_ModulationHead, ...]


class _Head(_Part):
    format: Literal["takeup edge instance"] = "takeup edge instance"
    version: Literal[1] = 1
    num_subcarriers: Count
    radio: _RadioHead
    edge_hz: Number
    local_hz: Number
    chip_constant: Number
    miss_penalty_j: Number
    num_cores: Count
    contiguous: Annotated[bool, Field(strict=True)]
    group_sizes: tuple[Count, ...]


def save_instance(path: Path | str, instance: Instance) -> None:
    """Write the instance, whole or not at all, in the format that the name of the file asks for."""
    path = Path(path)
    arrays = {name: getattr(instance, name) for name in ARRAYS}
    arrays["deadlines_s"] = np.where(instance.best_effort, np.inf, instance.deadlines_s)
    head = _head(instance)
    if _format(path) == ".json":
        fields = head.model_dump() | {name: array.tolist() for name, array in arrays.items()}
        write_atomically(path, json.dumps(fields, indent=1) + "\n")
        return
    buffer = io.BytesIO()
    np.savez(buffer, head=np.array(head.model_dump_json()), **arrays)
    write_atomically(path, buffer.getvalue())


def load_instance(path: Path | str) -> Instance:
    """The instance in a file that `save_instance` or a person wrote."""
    path = Path(path)
    fields = _read_json(path) if _format(path) == ".json" else _read_npz(path)
    missing = [name for name in ARRAYS if name not in fields]
    if missing:
        raise BadTrace(path, f"the key {missing[0]!r} is missing; expected a list with an entry for each device")
    arrays = {name: fields.pop(name) for name in ARRAYS}
    head = _checked(path, fields)
    try:
        return _built(head, arrays)
    except BadInput as error:
        raise BadTrace(path, str(error)) from error


def _format(path: Path) -> str:
    if path.suffix.lower() not in FORMATS:
        raise BadTrace(path, f"the name does not tell the format; expected it to end in {' or '.join(FORMATS)}")
    return path.suffix.lower()


def _head(instance: Instance) -> _Head:
    return _Head(
        num_subcarriers=instance.num_subcarriers,
        radio=_RadioHead.model_validate(asdict(instance.radio)),
        edge_hz=float(instance.edge_hz),
        local_hz=float(instance.local_hz),
        chip_constant=float(instance.chip_constant),
        miss_penalty_j=float(instance.miss_penalty_j),
        num_cores=int(instance.num_cores),
        contiguous=bool(instance.contiguous),
        group_sizes=tuple(int(size) for size in instance.group_sizes),
    )


def _built(head: _Head, arrays: Mapping[str, Any]) -> Instance:
    gains = arrays["gains"]
    if isinstance(gains, list) and not gains:
        gains = np.zeros((0, head.num_subcarriers))  # JSON does not say how long the rows would have been
    radio = head.radio.model_dump()
    radio["modulations"] = tuple(Modulation(**each) for each in radio["modulations"])
    rest = head.model_dump(exclude={"format", "version", "num_subcarriers", "radio"})
    instance = Instance(**{**arrays, "gains": gains}, radio=Radio(**radio), **rest)
    if instance.num_subcarriers != head.num_subcarriers:
        found = f"gains are for {instance.num_subcarriers} subcarriers, num_subcarriers is {head.num_subcarriers}"
        raise BadInput(f"{found}; make them equal")
    return instance


def _read_json(path: Path) -> dict[str, Any]:
    fields = read_json(path, "write the file again")
    if not isinstance(fields, dict):
        raise BadTrace(path, f"holds {type(fields).__name__}; expected an object with the fields of an instance")
    return fields


def _read_npz(path: Path) -> dict[str, Any]:
    expected = "expected a file that save_instance wrote, write it again"
    try:
        with reading(path, expected), zipfile.ZipFile(path) as archive:
            check_archive(path, archive)
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
    except (KeyError, AttributeError, TypeError) as error:
        raise BadTrace(path, f"is damaged, or holds more than numbers and text ({error}); {expected}") from error
    head = arrays.pop("head", None)
    if head is None:
        raise BadTrace(path, "has no 'head'; expected a file that save_instance wrote")
    try:
        return dict(json.loads(str(head))) | arrays
    except (ValueError, TypeError, RecursionError) as error:
        raise BadTrace(path, f"its 'head' is not a JSON object ({error}); write the file again") from error


def _checked(path: Path, fields: dict[str, Any]) -> _Head:
    try:
        return _Head.model_validate(fields)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        raise BadTrace(path, f"the key {key!r} is missing; add it")
    if first["type"] == "extra_forbidden":
        raise BadTrace(path, f"there is no key {key!r} (known: {', '.join([*_Head.model_fields, *ARRAYS])})")
    found = f"{key!r} is {first['input']!r}"
    raise BadTrace(path, f"{found[:80]}; expected {first['msg'].removeprefix('Input should be ')}")


# Tables of modulations: what a radio sends at which signal-to-noise ratio, instead of what Shannon promises -----------
#
# Efficiencies are those of the tables of channel quality indicators (CQI) in 3GPP TS 38.214, section 5.2.2.1:
# modulation order times code rate. The standard says what to send, and not when it arrives. The ratios of `CQI_64QAM`
# are those in general use for one block in ten lost over a channel with white noise alone; they come from link
# simulations of LTE, whose table is the same. A link that may lose fewer blocks, or fades within one, needs more.

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
