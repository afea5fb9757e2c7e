"""Files of serving that `takeup try` answers: LoRAs, models in diffusers format, and request traces."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.core.file_kinds import Answer, FileKind, Sample, rows_of
from takeup.core.limits import MOST_LINE_BYTES, read_json, reading
from takeup.core.report import Report
from takeup.core.trace import TraceColumn, read_table
from takeup.errors import BadTrace

DESIGNS = ("diffusers", "swiftdiffusion", "takeup")
RATE_PER_S, NUM_REQUESTS, NUM_GPUS = 0.5, 300, 8
LORA_KEY = re.compile(r"lora[_.]|\.(hada|lokr)_w1|lora_[AB]\b")
WIDTHS = {768: "SD 1.5", 1024: "SD 2", 2048: "SDXL"}  # of the text that a cross-attention reads


def _is_lora(sample: Sample) -> bool:
    is_tensors = '"data_offsets"' in sample.text and LORA_KEY.search(sample.text) is not None
    return is_tensors or bool({"adapter_config.json", "pytorch_lora_weights.safetensors"} & sample.entries)


KINDS = (
    FileKind("a LoRA", _is_lora, "takeup.serving.file_kinds:answer_lora"),
    FileKind(
        "a model in diffusers format",
        lambda sample: "model_index.json" in sample.entries,
        "takeup.serving.file_kinds:answer_model",
    ),
    FileKind(
        "a trace of image requests",
        lambda sample: sample.has("gmt_create", "num_inference_steps", "num_lora"),
        "takeup.serving.file_kinds:answer_requests",
    ),
)


def answer_lora(path: Path, *, quiet: bool) -> Answer:
    """What the LoRA changes, how long it takes to load, and what its requests gain from an adapter cache."""
    from takeup.serving.traces.arrivals import BANDWIDTH_MIB_PER_S

    file = _weights(path) if path.is_dir() else path
    shapes = tensor_shapes(file)
    downs = [
        shape for name, shape in shapes.items() if re.search(r"lora[_.](A|down)|_lora\.down|hada_w1_b|lokr_w1", name)
    ]
    ranks = sorted({shape[0] for shape in downs if shape})
    size_mib = file.stat().st_size / 2**20
    words = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}" if ranks else "no rank"
    report = _simulated(quiet)
    sentences = (
        f"This LoRA changes {len(downs)} layers of {_family(shapes)} with {words}; its {size_mib:.1f} MiB load in "
        f"about {size_mib / BANDWIDTH_MIB_PER_S:.2f} s at {BANDWIDTH_MIB_PER_S:.0f} MiB/s.",
        *_designs(report),
    )
    return Answer(report, sentences, f"takeup serve MODEL --adapters {shlex.quote(str(file.resolve().parent))}")


def _family(shapes: Mapping[str, Any]) -> str:
    """The family of the model, as far as names and shapes of the layers say it."""
    if any(re.search(r"(double|single)_(transformer_)?blocks", name) for name in shapes):
        return "Flux"
    reads_text = re.compile(r"attn2[._]to_[kv][._].*(down|lora_A)")
    widths = {shape[-1] for name, shape in shapes.items() if reads_text.search(name)}
    return next((WIDTHS[width] for width in sorted(widths) if width in WIDTHS), "its model")


def answer_model(path: Path, *, quiet: bool) -> Answer:
    """The pipeline's class and size, and what step-level batching gives to its kind of service."""
    name = class_name(path / "model_index.json")
    size_gib = sum(file.stat().st_size for file in path.rglob("*.safetensors")) / 2**30
    report = _simulated(quiet)
    first = f"This is a {name} with {size_gib:.2f} GiB of weights, which the device holds once for all requests."
    return Answer(report, (first, *_designs(report)), f"takeup serve {shlex.quote(str(path))}")


def answer_requests(path: Path, *, quiet: bool) -> Answer:
    """The busiest hour of the trace as Poisson arrivals, with the add-ons of two retail services."""
    hours, num_loras = request_hours(path)
    with_lora = int(np.count_nonzero(num_loras > 0))
    rate_per_s = max(Counter(hours).values()) / 3600
    report = _simulated(quiet, rate_per_s, 4 * rate_per_s)
    share = with_lora / len(hours)
    first = f"{len(hours):,} requests, {share:.0%} with LoRAs; the busiest hour has {rate_per_s:.3f} per second."
    loras = next((entry for entry in path.parent.glob("data_trace_processed*")), Path("data_trace_processed.tar.gz"))
    files = f"--trace {shlex.quote(str(path))} --loras {shlex.quote(str(loras))}"
    return Answer(report, (first, *_designs(report)), f"takeup serving compare --workload gentd26 {files}")


def _simulated(quiet: bool, *rates_per_s: float) -> Report:
    from takeup.serving.experiment import ServingScenario, run

    rates = rates_per_s or (RATE_PER_S,)
    scenario = ServingScenario(
        verb="compare", designs=DESIGNS, rates_per_s=rates, num_requests=NUM_REQUESTS, num_gpus=NUM_GPUS
    )
    return run(scenario, quiet=quiet)


def _designs(report: Report) -> tuple[str, str]:
    """Mean times of the designs at each rate, and what the cache of LoRAs loads."""
    rows, work = rows_of(report), rows_of(report, 1)
    each = len(DESIGNS)
    times = "; ".join(_times(rows[place : place + each]) for place in range(0, len(rows), each))
    stock, *_, ours = work[-each:]
    return (
        f"Simulated on {NUM_GPUS} GPUs with the add-ons of two retail services: {times}.",
        f"takeup makes {ours['images']:.1f} images per GPU-minute in use, diffusers {stock['images']:.1f}; its cache "
        f"loads {ours['loads']:.2f} LoRAs per request instead of {stock['loads']:.2f}.",
    )


def _times(rows: Sequence[Mapping[str, Any]]) -> str:
    means = ", ".join(f"{row['mean']:.1f} s with {row['design']}" for row in rows)
    return f"at {rows[0]['rate']:.2f} requests per second one takes {means}"


def _weights(folder: Path) -> Path:
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        raise BadTrace(folder, "has no .safetensors file; give the folder or file of a LoRA with one")
    return found[0]


def tensor_shapes(path: Path) -> dict[str, list[int]]:
    """Names and shapes of the tensors in a file, without reading the tensors."""
    expected = "expected safetensors; copy the file again"
    with reading(path, expected), path.open("rb") as file:
        num_bytes = int.from_bytes(file.read(8), "little")
        if num_bytes > min(path.stat().st_size, MOST_LINE_BYTES):
            raise BadTrace(path, "ends within its header; copy the file again")
        header = json.loads(file.read(num_bytes))
    try:
        shapes = {name: list(map(int, entry["shape"])) for name, entry in header.items() if name != "__metadata__"}
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise BadTrace(path, f"names a tensor without a shape; {expected}") from error
    return shapes


def class_name(path: Path) -> str:
    """The class of a pipeline by its model_index.json."""
    expected = "give a folder that diffusers saved"
    found = read_json(path, expected)
    if not isinstance(found, dict) or not isinstance(found.get("_class_name"), str):
        raise BadTrace(path, f"names no '_class_name'; {expected}")
    return str(found["_class_name"])


def request_hours(path: Path) -> tuple[list[datetime], npt.NDArray[np.float64]]:
    """The hour of every request of a trace, and its number of LoRAs."""
    table = read_table(path, [TraceColumn("gmt_create", "text"), TraceColumn("num_lora", "text", required=False)])
    try:
        hours = [
            datetime.fromisoformat(each).replace(minute=0, second=0, microsecond=0) for each in table["gmt_create"]
        ]
        num_loras = np.array([each or 0 for each in table["num_lora"].tolist()], np.float64)
    except ValueError as error:
        expected = "expected gmt_create as a date and time, and num_lora as a number"
        raise BadTrace(path, f"has a row that cannot be used ({error}); {expected}") from error
    if not hours:
        raise BadTrace(path, "holds no request; give a trace with some")
    return hours, num_loras
