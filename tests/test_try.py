"""`takeup try` recognises every kind of file by its content and answers in three sentences with a next command."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pytest
from safetensors.numpy import save_file

from command_line import Run, assert_one_sentence, report_of
from takeup.cli import takeup as command_tree
from takeup.core.file_kinds import sample_of
from takeup.core.report import Report
from takeup.example import SAMPLES, write_sample
from takeup.tryfile import kinds, recognise

ROOT = Path(__file__).parent.parent
RECOGNISED = {
    "window.eventlog.gz": "a Spark event log",
    "tasks.csv": "a table of tasks and their blocks",
    "zips.csv": "a table of tasks and their blocks",
    "gpu-jobs.csv": "a table of GPU jobs",
    "hourly.csv": "a table of the hourly demand for GPUs",
    "cell.json": "a cell with its devices",
    "channel.csv": "a log of a radio channel",
    "drive.csv": "a throughput log",
    "cmcd.log": "a log of CMCD reports",
    "operations.parquet": "a trace of training operations",
    "pipeline.toml": "a profile of a pipeline",
    "image-requests.csv": "a trace of image requests",
}


def lora_of_sdxl(folder: Path) -> Path:
    name = "down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k"
    shapes = {f"unet.{name}.lora_A.weight": (4, 2048), f"unet.{name}.lora_B.weight": (640, 4)}
    save_file({key: np.zeros(shape, np.float32) for key, shape in shapes.items()}, folder / "style.bin")
    return folder / "style.bin"


def lora_folder(folder: Path) -> Path:
    (folder / "adapter").mkdir()
    shutil.move(lora_of_sdxl(folder), folder / "adapter" / "adapter_model.safetensors")
    (folder / "adapter" / "adapter_config.json").write_text("{}")
    return folder / "adapter"


def model_folder(folder: Path) -> Path:
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline"}))
    return folder


def rolling_event_log(folder: Path) -> Path:
    (folder / "events_1_app").write_bytes(
        gzip.decompress((ROOT / "src/takeup/samples/window.eventlog.gz").read_bytes())
    )
    return folder


def written(name: str, text: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_text(text)
        return folder / name

    return make


def packed_table(folder: Path) -> Path:
    (folder / "table").write_bytes(gzip.compress(b"rate_bps\n1000000\n2000000\n"))
    return folder / "table"


OTHERS: tuple[tuple[str, Callable[[Path], Path]], ...] = (
    ("a LoRA", lora_of_sdxl),
    ("a LoRA", lora_folder),
    ("a model in diffusers format", model_folder),
    ("a Spark event log", rolling_event_log),
    ("a throughput log", packed_table),
    ("a throughput log", written("pensieve", "0.0 2.1\n1.0 2.4\n2.0 1.9\n")),
    ("a throughput log", written("mahimahi", "1\n5\n9\n12\n")),
    ("a throughput log", written("sabre.json", '[{"duration_ms": 1000, "bandwidth_kbps": 2000}]')),
    ("a log of CMCD reports", written("beacon.json", '{"mtp": 2100, "ts": 1}\n')),
    ("job records of Slurm (sacct)", written("sacct", "JobID|Submit|Start|End|ReqTRES|QOS\n1|a|b|c|gres/gpu=4|spot\n")),
    ("job records of Slurm (sacct)", written("sacct.json", '{"jobs": [{"job_id": 1}]}')),
    ("pods of Kubernetes", written("pods", '{"items": [{"spec": {"containers": []}}]}')),
    ("a table of GPU jobs", written("philly", "Submit_Time,num_gpus,duration\n0,1,5\n")),
)


@pytest.mark.parametrize(("name", "kind"), RECOGNISED.items())
def test_every_sample_is_recognised(name: str, kind: str, tmp_path: Path) -> None:
    assert recognise(sample_of(write_sample(name, tmp_path))).name == kind


@pytest.mark.parametrize(("kind", "make"), OTHERS)
def test_other_forms_are_recognised_under_any_name(kind: str, make: Callable[[Path], Path], tmp_path: Path) -> None:
    assert recognise(sample_of(make(tmp_path))).name == kind


def test_every_kind_has_a_sample_or_a_form_that_is_tested() -> None:
    assert {kind.name for kind in kinds()} == {*RECOGNISED.values(), *(kind for kind, _ in OTHERS)}


def test_a_file_is_of_one_kind_or_of_the_more_specific_one(tmp_path: Path) -> None:
    matching = {
        name: [kind.name for kind in kinds() if kind.matches(sample_of(write_sample(name, tmp_path)))]
        for name in RECOGNISED
    }

    assert {name: found for name, found in matching.items() if len(found) > 1} == {}


def understood(line: str) -> bool:
    """Whether the command line parses; the words after the name of the program are given."""
    context = click.Context(command_tree, info_name="takeup")
    words = shlex.split(line)[1:]
    while isinstance(context.command, click.Group):
        command = context.command.get_command(context, words[0])
        assert command is not None
        context, words = click.Context(command, context, words[0]), words[1:]
    return bool(context.command.make_context(context.info_name, words).params)


@pytest.mark.timeout(300)  # the first one of a domain compiles kernels
@pytest.mark.parametrize("name", RECOGNISED)
def test_a_sample_is_answered_in_three_sentences_with_a_chart_and_a_command(
    name: str, run: Run, tmp_path: Path
) -> None:
    outcome = run("try", write_sample(name, tmp_path))
    *sentences, chart, command = outcome.out.splitlines()

    assert (outcome.code, f"{name} is {RECOGNISED[name]}" in outcome.err) == (0, True)
    assert len(sentences) == 3
    assert all(sentence.endswith((".", ").")) for sentence in sentences)
    assert Path(chart.partition(": ")[2]).read_bytes().startswith(b"\x89PNG")
    assert understood(command.partition("next:  ")[2])


@pytest.mark.xdist_group("cluster")
@pytest.mark.timeout(300)
def test_a_small_table_of_jobs_gets_the_answer_of_the_kernels_without_compiling_them(run: Run, tmp_path: Path) -> None:
    jobs, kernels = write_sample("gpu-jobs.csv", tmp_path), tmp_path / "kernels"
    command = [sys.executable, "-m", "takeup", "try", str(jobs), "--json", "--quiet"]
    plain = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "NUMBA_CACHE_DIR": str(kernels)}
    )

    compiled = run("try", jobs, "--json", "--quiet")
    assert not kernels.exists()
    assert Report.from_json(plain.stdout).tables == Report.from_json(compiled.out).tables


@pytest.mark.parametrize("make", [lora_of_sdxl, lora_folder, model_folder])
def test_a_lora_and_a_model_are_answered(make: Callable[[Path], Path], run: Run, tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    outcome = run("try", make(tmp_path / "given"), "--quiet")

    assert outcome.code == 0
    assert ("FluxPipeline" if make is model_folder else "1 layers of SDXL with rank 4") in outcome.out
    assert "next:  takeup serve " in outcome.out


def test_the_report_behind_an_answer_can_be_had_as_json(run: Run, tmp_path: Path) -> None:
    assert report_of(run("try", write_sample("tasks.csv", tmp_path), "--json")).domain == "caching"


def test_an_unknown_file_is_one_sentence_with_all_kinds(run: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Buy milk.\n")

    assert_one_sentence(run("try", tmp_path / "notes.txt"), "notes.txt", "a LoRA", "docs/guides/file-formats.md")


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b\x08\x00broken", b"PAR1", b"\x00" * 100])
def test_a_damaged_file_is_one_sentence(content: bytes, run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)

    assert_one_sentence(run("try", tmp_path / "file"), "file")


def test_a_file_that_is_not_there_is_said(run: Run, tmp_path: Path) -> None:
    assert_one_sentence(run("try", tmp_path / "nowhere"), "nowhere", "does not exist")


# Samples --------------------------------------------------------------------------------------------------------------


def test_all_samples_are_listed_and_can_be_written(run: Run, tmp_path: Path) -> None:
    listed = [line.split()[0] for line in run("example").out.splitlines()]
    outcome = run("example", "--all")

    assert listed == list(SAMPLES)
    assert outcome.code == 0
    assert {path.name for path in tmp_path.iterdir()} == set(SAMPLES)


def test_every_file_of_the_folder_is_a_sample() -> None:
    files = {path.name.removesuffix(".txt") for path in (ROOT / "src/takeup/samples").iterdir()}

    assert files == set(SAMPLES)


def test_the_training_script_is_the_example_of_the_tree() -> None:
    sample = (ROOT / "src/takeup/samples/train_ddp.py.txt").read_text("utf-8")

    assert sample == (ROOT / "examples/train_ddp.py").read_text("utf-8")


def test_a_file_of_the_user_is_kept(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tasks.csv").write_text("mine")

    assert_one_sentence(run("example", "tasks.csv"), "tasks.csv is there", "move it away")
    assert (tmp_path / "tasks.csv").read_text() == "mine"


def test_an_unknown_sample_is_one_sentence(run: Run) -> None:
    assert_one_sentence(run("example", "task.csv"), "did you mean 'tasks.csv'?")


NOTHING_COMPILED = """
import gc
import sys
from numba.core.dispatcher import Dispatcher
from takeup.cli import takeup
from takeup.core import compiled
compiled.has_code = lambda package: False
takeup(["example", sys.argv[1]], standalone_mode=False)
takeup(["try", sys.argv[1], "--quiet"], standalone_mode=False)
kernels = [it for it in gc.get_objects() if isinstance(it, Dispatcher) and "takeup" in it.py_func.__module__]
print("compiled:", sum(len(it.overloads) for it in kernels))
"""


@pytest.mark.parametrize("name", ["cell.json", "channel.csv"])
def test_a_cell_is_planned_in_plain_python_where_nothing_is_compiled(tmp_path: Path, name: str) -> None:
    answered = subprocess.run(
        [sys.executable, "-c", NOTHING_COMPILED, name], capture_output=True, text=True, check=False, cwd=tmp_path
    )

    assert answered.returncode == 0, answered.stderr
    assert "the best possible" in answered.stdout or "No plan is worth more" in answered.stdout
    assert "compiled: 0" in answered.stdout
