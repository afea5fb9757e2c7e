"""Task tables: what a file says, what is written comes back, and the spot of every mistake."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.task_tables import write_tasks
from support.trace_tables import write_table
from takeup.caching.model import Workload
from takeup.caching.traces.job_graph import WorkloadBuilder, read_tasks
from takeup.errors import BadTrace

FULL = """task,job,stage,after,worker,compute_s,inputs,outputs,output_bytes,output_workers
,,,,2,,,source other,100 50,
load,0,10,,1,0.5,source,left right,10 20,
zip,1,20,10,1,2.5,left right,out,5,3
"""


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# Reading --------------------------------------------------------------------------------------------------------------


def test_a_table_becomes_a_workload(tmp_path: Path) -> None:
    workload = read_tasks(write(tmp_path, FULL, "zip.day1.csv"))

    assert workload.name == "zip"
    assert workload.block_bytes.tolist() == [100, 50, 10, 20, 5]
    assert workload.block_worker.tolist() == [2, 2, 1, 1, 3]
    assert workload.block_producer.tolist() == [-1, -1, 0, 0, 1]
    assert workload.stage_after.tolist() == [-1, 0]
    assert workload.task_job.tolist() == [0, 1]
    assert workload.task_worker.tolist() == [1, 1]
    assert workload.task_compute_s.tolist() == [0.5, 2.5]
    assert [(task.inputs, task.outputs) for task in workload.tasks()] == [((0,), (2, 3)), ((2, 3), (4,))]


def test_all_but_names_and_blocks_may_be_missing(tmp_path: Path) -> None:
    path = write(tmp_path, "task,inputs,outputs,output_bytes\nload,,a b,1 2\nread,a  b,,\n")

    workload = read_tasks(path)

    assert workload.task_stage.tolist() == [0, 1]
    assert workload.stage_after.tolist() == [-1, -1]
    assert workload.task_job.tolist() == workload.task_worker.tolist() == [0, 0]
    assert workload.task_compute_s.tolist() == [0.0, 0.0]
    assert workload.inputs(1) == (0, 1)


# Round trip -----------------------------------------------------------------------------------------------------------


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Some stages, some source blocks, and tasks that read earlier blocks and write new ones."""
    builder = WorkloadBuilder("drawn")
    num_stages = draw(st.integers(1, 4))
    for stage in range(num_stages):
        builder.stage(after=draw(st.integers(-1, stage - 1)))
    names = list(range(draw(st.integers(0, 3))))
    tasks = []
    for _ in range(draw(st.integers(1, 6))):
        inputs = draw(st.lists(st.sampled_from(names), unique=True, max_size=3)) if names else []
        outputs = list(range(len(names), len(names) + draw(st.integers(0, 2))))
        names += outputs
        tasks.append((inputs, outputs))
    for name in draw(st.permutations(names)):
        builder.block(name, draw(st.integers(1, 2**50)), draw(st.integers(0, 2)))
    for inputs, outputs in tasks:
        builder.task(
            inputs=inputs,
            outputs=outputs,
            job=draw(st.integers(-2, 2)),
            stage=draw(st.none() | st.integers(0, num_stages - 1)),
            worker=draw(st.none() | st.integers(0, 2)),
            compute_s=draw(st.floats(0, 1e300)),
        )
    return builder.build()


def renumbered(workload: Workload) -> dict[str, object]:
    """A workload without the numbers of its blocks and without stages that have no task: all that a table keeps."""
    stages = sorted(set(workload.task_stage.tolist()))
    sources = np.flatnonzero(workload.block_producer == -1).tolist()
    order = [*sources, *workload.output_blocks.tolist()]
    number = {block: index for index, block in enumerate(order)}

    def after(stage: int) -> int:
        before = int(workload.stage_after[stage])
        return before if before == -1 or before in stages else after(before)

    return {
        "blocks": [(int(workload.block_bytes[b]), int(workload.block_worker[b]), b in sources) for b in order],
        "tasks": [
            (
                t.job,
                stages.index(t.stage),
                t.worker,
                t.compute_s,
                *([number[b] for b in bs] for bs in (t.inputs, t.outputs)),
            )
            for t in workload.tasks()
        ],
        "after": [-1 if after(stage) == -1 else stages.index(after(stage)) for stage in stages],
    }


@settings(max_examples=60, deadline=None)
@given(workloads(), st.sampled_from([".csv", ".csv.gz", ".parquet"]))
def test_what_is_written_comes_back(workload: Workload, suffix: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"trace{suffix}"
        write_tasks(path, workload)
        again = read_tasks(path)

    assert renumbered(again) == renumbered(workload)


# Mistakes -------------------------------------------------------------------------------------------------------------

HEADER = "task,stage,after,inputs,outputs,output_bytes,output_workers\n"


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ("load,,,,a,5,\nread,,,a ghost,,,\n", ["line 3", "'inputs'", "'ghost' is no output of any row"]),
        (",,,,a,5,\n,,,a,b,5,\nt,,,,,,\n", ["line 3", "'task'", "needs the name of its task"]),
        (",,,,a,5,\n", ["names no task"]),
        ("load,,,,a b,5,\n", ["line 2", "'output_bytes'", "found 1 numbers for 2 outputs"]),
        ("load,,,,,5,\n", ["line 2", "'output_bytes'", "found 1 numbers for 0 outputs"]),
        ("load,,,,a b,5 many,\n", ["line 2", "'output_bytes'", "'many' is not a whole number of at least 1"]),
        ("load,,,,a,0,\n", ["line 2", "'output_bytes'", "'0' is not"]),
        ("load,,,,a,-1,\n", ["line 2", "'output_bytes'", "'-1' is not"]),
        (f"load,,,,a,{2**63},\n", ["line 2", "'output_bytes'", f"'{2**63}' is not"]),
        (f"load,,,,a,{'9' * 5000},\n", ["line 2", "'output_bytes'", "is not a whole number"]),
        ("load,,,,a,²,\n", ["line 2", "'output_bytes'", "'²' is not"]),
        ("load,,,,a b,5 5,1\n", ["line 2", "'output_workers'", "found 1 numbers for 2 outputs"]),
        ("load,,,,a,5,-1\n", ["line 2", "'output_workers'", "'-1' is not a whole number of at least 0"]),
        ("x,2,,,,,\ny,2,1,,,,\n", ["line 3", "'after'", "stage 2 waits for 1 here and for -1 above"]),
        ("x,2,3,,,,\ny,3,,,,,\n", ["'after'", "stage 2 waits for stage 3, which is no smaller number"]),
        ("x,2,1,,,,\n", ["'after'", "stage 2 waits for stage 1"]),
        ("x,-2,,,,,\n", ["line 2", "'stage'", "below -1"]),
        ("x,,,,a,5,\ny,,,,a,5,\n", ["'a' is written by task 'x' and task 'y'"]),
        ("x,,,,a,5,\ny,,,,a,6,\n", ["line 3", "'outputs'", "'a' is declared as 5 bytes"]),
        ("x,,,b,a,5,\ny,,,a,b,5,\n", ["task 'x' reads block 'b'", "task 'y' writes only then"]),
    ],
)
def test_a_mistake_is_named_with_its_spot(tmp_path: Path, rows: str, parts: list[str]) -> None:
    path = write(tmp_path, HEADER + rows)

    with pytest.raises(BadTrace) as caught:
        read_tasks(path)

    for part in (str(path), *parts):
        assert part in str(caught.value)


def test_a_mistake_in_parquet_is_named_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    write_table(path, {"task": np.array(["a", "b"], object), "inputs": np.array(["", "ghost"], object)})

    with pytest.raises(BadTrace, match=r"column 'inputs': row 2: block 'ghost'"):
        read_tasks(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"none\.csv: cannot be opened"):
        read_tasks(tmp_path / "none.csv")
