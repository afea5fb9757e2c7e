"""Instances as files, JSON to read and edit, npz for large ones: what is read back is what was written, bit by bit.

Both hold the same: a head, with everything that is one for the whole instance, and one array for each field of the
devices. In npz the head is JSON text; nothing in a file is ever run.
"""

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from takeup.core.files import write_atomically
from takeup.edge.model import Instance, Modulation, Radio
from takeup.errors import BadInput, BadTrace

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
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadTrace(path, f"cannot be opened: {error.strerror or error}; check the path") from error
    except (ValueError, RecursionError) as error:
        raise BadTrace(path, f"is not JSON, or not all of it ({error}); write the file again") from error
    if not isinstance(fields, dict):
        raise BadTrace(path, f"holds {type(fields).__name__}; expected an object with the fields of an instance")
    return fields


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except OSError as error:
        raise BadTrace(path, f"cannot be opened: {error.strerror or error}; check the path") from error
    except (ValueError, EOFError, KeyError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise BadTrace(path, f"is damaged, or holds more than numbers and text ({error}); write it again") from error
    head = arrays.pop("head", None)
    if head is None:
        raise BadTrace(path, "has no 'head'; expected a file that save_instance wrote")
    try:
        return dict(json.loads(str(head))) | arrays
    except (ValueError, TypeError) as error:
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
