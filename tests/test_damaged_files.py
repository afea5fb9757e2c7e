"""One damaged cell or file is one sentence with its place and exit code 2: it neither hangs nor fills the memory."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cluster.engines.slurm.test_slurm_history import BEGIN_S, NODES, recorded
from command_line import Run, assert_one_sentence
from edge.cells import two_devices
from takeup.cluster.engines.slurm import QosClasses
from takeup.cluster.engines.slurm.journal import Journal, SlurmLedger
from takeup.cluster.engines.slurm.rows import past_workload, read_job
from takeup.core import limits
from takeup.edge.traces.files import save_instance
from takeup.errors import BadInput, BadScenario, BadTrace
from takeup.serving.file_kinds import tensor_shapes
from takeup.serving.simulate.designs import design_of
from takeup.training.traces.profiles import load_schedule

JOBS = "submit_time,duration,gpu_num,vc\n" + "".join(f"{60 * number},600,1,a\n" for number in range(50))
START = json.dumps({"Event": "SparkListenerLogStart", "Spark Version": "4.0.0"}) + "\n"


@pytest.mark.parametrize("row", ["3000,600,1000000000,a", "1e300,600,1,a", "1e18,600,1,a", "3000,1e300,1,a"])
def test_a_job_that_asks_for_the_impossible_is_left_out_or_named(run: Run, tmp_path: Path, row: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS + row + "\n")

    outcome = run("cluster", "simulate", "fifo", "--trace", str(path), "--json")
    strict = run("cluster", "simulate", "fifo", "--trace", str(path), "--strict")

    assert outcome.code == 0
    assert "1 of 51 rows were skipped" in outcome.out
    assert_one_sentence(strict, "jobs.csv, line 52, column")


def test_jobs_that_need_more_nodes_than_can_be_counted_are_an_error(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("submit_time,duration,gpu_num,vc\n" + "0,600,1000000,a\n" * 100)

    assert_one_sentence(run("cluster", "simulate", "fifo", "--trace", str(path)), "jobs.csv", "nodes of 8 GPUs")


def test_a_rolling_log_with_an_absurd_number_names_the_first_file_that_is_missing(run: Run, tmp_path: Path) -> None:
    for number in (1, 999_999_999_999):
        (tmp_path / f"events_{number}_app").write_text(START)

    assert_one_sentence(run("caching", "simulate", "lru", "--trace", str(tmp_path)), "lacks its file number 2 ")


def test_a_line_without_an_end_is_refused_while_it_is_decompressed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST_LINE_BYTES", 1 << 20)
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(START.encode() + b'{"Event": "' + b"a" * (4 << 20)))

    assert_one_sentence(run("caching", "simulate", "lru", "--trace", str(path)), "log.gz, line 2", "1048576 bytes")


def test_data_that_grows_far_beyond_its_file_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SMALL_BYTES", 1 << 20)
    (tmp_path / "log.gz").write_bytes(gzip.compress(START.encode() * 100_000))
    (tmp_path / "rates.csv.gz").write_bytes(gzip.compress(b"rate_bps\n" + b"1000000\n" * 1_000_000))

    assert_one_sentence(run("caching", "simulate", "lru", "--trace", str(tmp_path / "log.gz")), "200 times its size")
    outcome = run("streaming", "predict", "--log", str(tmp_path / "rates.csv.gz"))
    assert_one_sentence(outcome, "rates.csv.gz", "200 times its size")


def test_deeply_nested_json_in_an_event_log_is_no_event(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(START + "[" * 200_000 + "\n" + START)

    assert_one_sentence(run("caching", "simulate", "lru", "--trace", str(path)), "log, line 2", "one JSON event")


def archive(*entries: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        for name, data in entries:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def folder_of(name: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        member = tarfile.TarInfo(name)
        member.type = tarfile.DIRTYPE
        file.addfile(member)
    return buffer.getvalue()


REQUESTS = "gmt_create,task_id,number_of_images,num_inference_steps,checkpoint_model_version_id,num_lora\n"
LORAS = b"lora_args,checkpoint_model_version_id\n"
ARCHIVES = {
    "latin1.csv": (LORAS + "[],Größe\n".encode("latin-1"), "not UTF-8"),
    "latin1.tar.gz": (archive(("data_trace_processed.csv", LORAS + b"[],Gr\xf6\xdfe\n")), "not UTF-8"),
    "cut.tar.gz": (archive(("data_trace_processed.csv", LORAS + b"[],x\n" * 99_999))[:200], "cannot be read"),
    "folder.tar.gz": (folder_of("data_trace_processed.csv"), "has no file data_trace_processed.csv"),
    "other.tar.gz": (archive(("readme", b"nothing")), "has no file data_trace_processed.csv"),
    "many.tar.gz": (archive(*((str(number), b"") for number in range(10_001))), "has no file"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_damaged_trace_of_image_requests_is_named(run: Run, tmp_path: Path, name: str) -> None:
    data, problem = ARCHIVES[name]
    (tmp_path / name).write_bytes(data)
    (tmp_path / "requests.csv").write_text(REQUESTS)
    files = ("--trace", str(tmp_path / "requests.csv"), "--loras", str(tmp_path / name))

    assert_one_sentence(run("serving", "compare", "--workload", "gentd26", *files), name, problem)


def test_numbers_of_thousands_of_digits_are_refused(run: Run, tmp_path: Path) -> None:
    digits = "9" * 5000
    (tmp_path / "tasks.csv").write_text(f"task,outputs,output_bytes\nload,a,{digits}\n")
    (tmp_path / "schedule.csv").write_text(f"0F0,0F{digits}\n")
    (tmp_path / "sparse.csv").write_text("0F0,0F999999\n")

    outcome = run("caching", "simulate", "lru", "--trace", str(tmp_path / "tasks.csv"))
    assert_one_sentence(outcome, "tasks.csv, line 2, column 'output_bytes'")
    for name in ("schedule.csv", "sparse.csv"):
        outcome = run("training", "simulate", "--schedule", str(tmp_path / name))
        assert_one_sentence(outcome, name)


def test_workers_that_are_counted_one_by_one_have_a_limit(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tasks.csv").write_text(f"task,worker,outputs,output_bytes\nload,{2**62},a,5\n")

    outcome = run("caching", "simulate", "lru", "--trace", str(tmp_path / "tasks.csv"))
    assert_one_sentence(outcome, "tasks.csv, line 2, column 'worker'")


def set_method(data: bytearray, value: int) -> None:
    data[data.rindex(b"PK\x01\x02") + 10] = value


def set_version(data: bytearray, value: int) -> None:
    data[data.index(b"PK\x01\x02") + 6] = value


@pytest.mark.parametrize("change", [set_method, set_version])
def test_an_npz_of_an_unknown_kind_is_named(run: Run, tmp_path: Path, change: Callable[[bytearray, int], None]) -> None:
    path = tmp_path / "cell.npz"
    save_instance(path, two_devices())
    data = bytearray(path.read_bytes())
    change(data, 99)
    path.write_bytes(data)

    assert_one_sentence(run("edge", "solve", str(path)), "cell.npz", "cannot be read")


def test_an_npz_that_would_fill_the_memory_is_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "cell.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("gains.npy", np.zeros(20_000_000).tobytes())

    assert_one_sentence(run("edge", "solve", str(path)), "cell.npz", "holds 1 members of more than")


@pytest.mark.parametrize(
    "change",
    [
        {"time": "yesterday"}, {"tres": {"allocated": 3}}, {"tres": {"allocated": ["gpu"]}}, {"comment": ["a"]},
        {"allocation_nodes": float("inf")}, {"job_id": [1]}, {"job_id": None},
    ],
)  # fmt: skip
def test_a_row_of_accounting_with_an_odd_type_is_counted_and_the_others_are_read(change: dict[str, object]) -> None:
    rows = recorded(82)

    workload, skipped = past_workload([rows[0] | change, *rows], NODES, QosClasses(), BEGIN_S)

    assert workload.num_jobs == 1
    assert skipped["malformed"] == 1


def test_a_schedule_that_cannot_be_read_as_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe0F0")

    with pytest.raises(Exception, match=r"x\.csv"):
        load_schedule(tmp_path / "x.csv")


def test_a_parquet_file_with_more_rows_than_its_bytes_can_hold_is_refused(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet", reason="needs traces: pip install 'takeup[traces]'")
    import pyarrow as pa

    from takeup.core.trace import TraceColumn, read_table

    rows = pa.DictionaryArray.from_arrays(pa.array(np.zeros(3_000_000, np.int8)), pa.array(["a"]))
    pq.write_table(pa.table({"key": rows}), tmp_path / "keys.parquet")

    with pytest.raises(BadTrace, match="3000000 rows, more than 1000000"):
        read_table(tmp_path / "keys.parquet", [TraceColumn("key", "text")])


def test_an_encrypted_npz_is_named(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "cell.npz"
    save_instance(path, two_devices())
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)

    assert_one_sentence(run("edge", "solve", str(path)), "cell.npz", "encrypted")


BEYOND_FLOATS = "9" * 400  # an integer that JSON may hold and no float


def test_numbers_beyond_floats_in_a_journal_change_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal:
        notice = {"do": "notice", "job": "9", "for": "8", "until_s": 63.0}
        journal.write(notice | {"at_s": int(BEYOND_FLOATS)}, notice | {"job": "7", "at_s": 3.0})
    with Journal(tmp_path / "journal") as journal:
        assert list(SlurmLedger(journal).notices) == ["7"]


def test_numbers_beyond_floats_in_measured_costs_are_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    turns = 'takeup_serving_{}_total{{company="alone",rows="2"}} {}\n'
    path.write_text("# HELP x y\n" + turns.format("turns", 40) + turns.format("turn_seconds", BEYOND_FLOATS))

    with pytest.raises(BadScenario, match=f"cannot read costs {path}"):
        design_of("takeup", costs=str(path))


def test_numbers_beyond_floats_in_a_header_of_tensors_are_named(tmp_path: Path) -> None:
    header = b'{"a": {"shape": [1e999]}}'
    path = tmp_path / "lora.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)

    with pytest.raises(BadTrace, match="names a tensor without a shape"):
        tensor_shapes(path)


def test_numbers_beyond_floats_in_an_instance_are_named() -> None:
    with pytest.raises(BadInput, match="cannot be read as numbers"):
        replace(two_devices(), gains=[[int(BEYOND_FLOATS)] * 2] * 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [int(BEYOND_FLOATS), float("inf"), float("nan")])
def test_numbers_that_slurm_cannot_store_are_as_if_they_were_not_set(number: float) -> None:
    row = {"job_id": 7, "job_state": ["PENDING"], "restart_cnt": number, "node_count": number, "priority": number}

    (found,) = read_job(row)
    assert (found.id, found.num_restarts) == ("7", 0)
