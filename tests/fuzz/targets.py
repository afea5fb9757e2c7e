"""Everything that reads files or text from elsewhere: how it is called, and small valid inputs to damage."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from caching.traces.test_eventlog import complete, job, job_end, rdd, stage, submit, task, text, update
from edge.cells import two_devices
from takeup.caching.traces import read_trace as read_blocks
from takeup.cluster.engines.slurm import QosClasses
from takeup.cluster.engines.slurm.journal import Journal, SlurmLedger
from takeup.cluster.engines.slurm.rows import NodeRow, expand_hosts, past_workload, read_remarks
from takeup.cluster.traces import read_trace as read_jobs
from takeup.cluster.traces.records import nodes_from, read_records
from takeup.cluster.traces.workload import TraceOptions
from takeup.core.file_kinds import sample_of
from takeup.core.report import Column, Report, Table
from takeup.core.scenario import load_scenario
from takeup.edge.traces.files import load_instance, read_channel, save_instance
from takeup.errors import TakeupError
from takeup.serving.traces.arrivals import read_arrivals, read_gentd26
from takeup.streaming.traces import read_log
from takeup.training.pipelines.profile import Profile
from takeup.training.traces.flight_recorder import load_stuck_groups
from takeup.training.traces.operations import load_operations
from takeup.training.traces.profiler import load_calls
from takeup.training.traces.profiles import load_profile, load_schedule, save_profile
from takeup.tryfile import recognise

Read = Callable[[Path], object]


@dataclass(frozen=True, slots=True)
class Target:
    """A reader, the names of its files, and valid contents of the first of them; the others stay as they are."""

    read: Read
    name: str
    seeds: tuple[bytes, ...]
    others: tuple[tuple[str, bytes], ...] = ()


def saved(name: str, write: Callable[[Path], object]) -> bytes:
    """What `write` writes to a file of this name."""
    with TemporaryDirectory() as folder:
        write(Path(folder, name))
        return Path(folder, name).read_bytes()


def parquet(columns: Mapping[str, Sequence[object]]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def archive(name: str, data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as file:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        file.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _events() -> bytes:
    one = stage(0, rdd(0), rdd(1, 0, level="memory"))
    two = stage(1, rdd(1, level="memory"), rdd(2, 1), parents=(0,))
    runs = [event for number in (0, 1) for event in (task(number, 0, number), update(f"rdd_1_{number}", memory=99))]
    again = [task(number + 2, 1, number) for number in (0, 1)]
    return text(
        job(0, one, two), submit(one), *runs, complete(one), submit(two), *again, complete(two), job_end(0)
    ).encode()


def _operations() -> bytes:
    rows = [(s, d, p, m, k) for s in range(2) for d in range(2) for p in range(2) for m in range(3) for k in range(2)]
    kinds = ("forward-compute", "backward-compute")
    columns = {name: [row[place] for row in rows] for place, name in enumerate(("step", "dp_rank", "stage", "mb_id"))}
    times = {"start_ts": [100.0 * row[4] + row[3] for row in rows], "duration": [0.1] * len(rows)}
    return parquet({**columns, "optype": [kinds[row[4]] for row in rows], **times})


def _profiled() -> bytes:
    about = {"rank": 0, "pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}
    named = {"Collective name": "allreduce", "Process Group Name": "0", "In msg nelems": 8}
    at = [{"ph": "X", "ts": 9.5 + 3 * number, "dur": 1.5} for number in range(3)]
    calls = [{"name": "nccl", "cat": "kernel", "args": named, **each} for each in at]
    steps = [{"name": "ProfilerStep#1", "cat": "user_annotation", **each} for each in at]
    return json.dumps({"distributedInfo": about, "traceEvents": [*calls, *steps]}).encode()


PROFILED = _profiled()
CALLED = {"process_group": ("0", ""), "collective_seq_id": 1, "profiling_name": "nccl:all_reduce", "input_sizes": [[8]]}
DUMP = {"pg_config": {"0": {"name": "0", "desc": "", "ranks": "[0, 1]"}}, "entries": [CALLED, CALLED]}


def _past(path: Path) -> object:
    try:
        rows = json.loads(path.read_bytes())["jobs"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    nodes = {f"n{number}": NodeRow(f"n{number}", "a100", 8, is_fit=True) for number in range(4)}
    return past_workload(rows, nodes, QosClasses(), 1_794_755_800.0) if isinstance(rows, list) else None


def _records(path: Path) -> object:
    return read_records(path, {}, None, TraceOptions(spot_share=0.5), is_drawn=True)


def _comment(path: Path) -> object:
    words = path.read_bytes().decode("utf-8", "replace")
    return read_remarks((words,), 1e9), list(expand_hosts(words))


def _journal(path: Path) -> object:
    with Journal(path) as journal:
        return SlurmLedger(journal)


def _image(path: Path) -> object:
    from takeup.serving.server.errors import ApiError
    from takeup.serving.server.image_codec import image_from_bytes
    from takeup.serving.server.settings import ServerLimits

    try:
        return image_from_bytes(path.read_bytes(), ServerLimits(), "image")
    except ApiError:
        return None


def _images() -> tuple[bytes, ...]:
    def made(kind: str) -> bytes:
        buffer = io.BytesIO()
        Image.new("RGB", (8, 8), (200, 10, 40)).save(buffer, kind)
        return buffer.getvalue()

    return tuple(map(made, ("PNG", "JPEG", "WEBP")))


HELIOS = b"submit_time,duration,gpu_num,vc\n0,600,1,a\n2020-03-01 10:00:00,60,8,b\n60,3600,16,a\n"
PHILLY = b"submitted_time,start_time,finish_time,num_gpus,vc\n0,1,600,1,a\n60,70,3600,9,b\n"
V2025 = b"app_name,gpu_request,creation_time,scheduled_time,deletion_time\na,1,10,20,3000\nb,0.5,,5,\nc,8,7,9,20000\n"
V2026 = (
    b"organization,gpu_model,gpu_request,worker_num,submit_time,duration,job_type\n"
    b"a,A100,8,2,0,600,HP\nb,A100,1,1,60,99,Spot\n"
)
V2026_NODES = b"gpu_model,gpu_capacity_num\nA100,8\nA100,8\n"
PODS = (
    b"name,num_gpu,gpu_milli,gpu_spec,qos,creation_time,deletion_time,scheduled_time\n"
    b"p1,1,500,,BE,0,600,10\np2,8,1000,V100|T4,LS,5,900,20\n"
)
OPENB_NODES = b"sn,model,gpu\nn1,V100,8\nn2,T4,4\n"
TASKS = (
    b"task,job,stage,after,worker,compute_s,inputs,outputs,output_bytes,output_workers\n"
    b",,,,0,,,a,5,\nt1,0,0,-1,0,0.5,a,b c,5 6,0 1\nt2,0,1,0,1,1e-3,b c,d,7,\n"
)
ARRIVALS = (
    b"gmt_create,num_images_per_prompt,num_inference_steps,checkpoint_model_version_id,num_lora\n"
    b"2025-01-01 00:00:00,1,30,base,0\n2025-01-01 00:01:00,2,,other,1\n"
)
LORAS = (
    b"lora_args,checkpoint_model_version_id\n\"[{'modelVersionId': 1, 'scale': 0.5}]\",5\n[],6\n"
    b"\"[{'modelVersionId': 2, 'scale': 1}, {'modelVersionId': 1, 'scale': 1}]\",5\n"
)
LOGS = {
    "sabre.json": b'[{"duration_ms": 1000, "bandwidth_kbps": 3000, "latency_ms": 20},'
    b' {"duration_ms": 500, "bandwidth_kbps": 900}]',
    "cmcd.log": b"GET /a?CMCD=br%3D3200%2Cmtp%3D48100%2Cd%3D4000%2Csid%3D%22x%22\n"
    b"GET /b?CMCD=bs%2Cmtp%3D9100%2Cd%3D2000%2Csid%3D%22x%22\n",
    "cmcd.json": b'[{"cmcd": {"mtp": 4000, "ts": 1000, "sid": "a"}}, {"cmcd": {"mtp": 5000, "ts": 3000, "sid": "a"}}]',
    "pensieve.txt": b"0.0 3.5\n1.0 2.25\n2.5 4\n",
    "mahimahi.txt": b"0\n1\n5\n900\n1000\n2100\n",
    "table.csv": b"time_s,rate_bps\n0,3e6\n1,2e6\n2.5,4000000\n",
    "puffer.csv": b"time (ns GMT),session_id,delivery_rate\n1000000000,a,400000\n"
    b"3000000000,a,500000\n5000000000,b,1\n7000000000,b,9\n",
}
CHANNEL = b"Timestamp,SNR,CQI\n2019.12.16_13.40.04,12.5,9\n2019.12.16_13.40.05,-,7\n2019.12.16_13.40.06,3,-\n"
PAST = json.dumps(
    {
        "jobs": [
            {
                "job_id": 82, "qos": "hp", "account": "research", "allocation_nodes": 2,
                "comment": {"job": "takeup: gate"},
                "time": {"start": 1_794_755_900, "elapsed": 131, "submission": 1_794_755_850},
                "tres": {"allocated": [{"type": "gres", "name": "gpu", "count": 16}]},
            }
        ]
    }
).encode()  # fmt: skip
SACCT = (
    b"JobID|Account|QOS|Submit|Start|End|AllocTRES\n"
    b"1|lab|normal|2026-11-01T00:00:00|2026-11-01T00:10:00|2026-11-01T02:10:00|gres/gpu=8,gres/gpu:a100=8\n"
    b"2|web|spot|2026-11-01T01:00:00|2026-11-01T01:00:00|Unknown|gres/gpu=16\n"
)
SACCT_JSON = json.dumps(
    {
        "jobs": [
            {
                "job_id": 1, "account": "a", "qos": qos, "partition": "gpu",
                "time": {"submission": 100, "start": {"set": True, "number": 150}, "end": 900},
                "tres": {"allocated": [{"type": "gres", "name": "gpu:h100", "count": 8}]},
            }
            for qos in ("normal", "spot")
        ]
    }
).encode()  # fmt: skip
KUBE_PODS = json.dumps(
    {
        "items": [
            {
                "metadata": {"name": name, "namespace": "ml", "creationTimestamp": "2026-11-01T00:00:00Z"},
                "spec": {
                    "priorityClassName": "spot", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "8"}}}],
                },
                "status": {
                    "startTime": "2026-11-01T00:00:05Z",
                    "containerStatuses": [{"state": {"terminated": {"finishedAt": "2026-11-01T01:00:00Z"}}}],
                },
            }
            for name in ("a", "b")
        ]
    }
).encode()  # fmt: skip
SINFO = json.dumps(
    {"nodes": [{"name": "n0", "gres": "gpu:a100:8(S:0-1)"}, {"gres": {"total": "gpu:8"}, "nodes": {"nodes": ["n1"]}}]}
).encode()
JOURNAL = (
    b'{"do": "quota", "at_s": 1.0, "pool": "a", "gpus": [[1.0, 8.0]]}\n'
    b'{"do": "evict", "at_s": 2.0, "job": "7", "restarts": 0, "nodes": ["n1"], "for": "8", "reason": "x"}\n'
    b'[{"do": "evicted", "job": "7"}, {"do": "notice", "at_s": 3.0, "job": "9", "for": "8", "until_s": 63.0}]\n'
)
SCENARIO = (
    b'domain = "cluster"\nverb = "simulate"\npolicies = ["gfs"]\nseed = 3\n'
    b"probability = 0.9\n[a.b]\nc = [1, 2.5e3, 2020-01-01]\n"
)
REPORT = Report("A title", "caching", {"a": 1}, 1, tables=(Table("t", (Column("x"),), ((1.5,),)),)).to_json().encode()
PROFILE = saved("profile.toml", lambda path: save_profile(Profile.uniform(3, 4, 0.01), path))
CELLS = {end: saved(f"cell{end}", lambda path: save_instance(path, two_devices())) for end in (".json", ".npz")}
NODES_OF_OPENB = ("openb_node_list_gpu_node.csv", OPENB_NODES)

TARGETS: dict[str, Target] = {
    "Spark event log": Target(read_blocks, "log", (_events(),)),
    "Spark event log, gzip": Target(read_blocks, "log.gz", (gzip.compress(_events(), 1),)),
    "job graph": Target(read_blocks, "tasks.csv", (TASKS,)),
    "Helios and Philly": Target(read_jobs, "jobs.csv", (HELIOS, PHILLY)),
    "Helios, gzip": Target(read_jobs, "jobs.csv.gz", (gzip.compress(HELIOS, 1),)),
    "Alibaba v2025": Target(read_jobs, "jobs.csv", (V2025,)),
    "Alibaba v2026": Target(read_jobs, "job_info_df.csv", (V2026,), (("node_info_df.csv", V2026_NODES),)),
    "Alibaba v2026, nodes": Target(
        lambda path: read_jobs(path.with_name("job_info_df.csv")),
        "node_info_df.csv",
        (V2026_NODES,),
        (("job_info_df.csv", V2026),),
    ),
    "openb": Target(read_jobs, "pods.csv", (PODS,), (NODES_OF_OPENB,)),
    "GenTD26": Target(read_gentd26, "data_trace_processed.csv", (LORAS,)),
    "GenTD26, archive": Target(read_gentd26, "x.tar.gz", (archive("data_trace_processed.csv", LORAS),)),
    "GenTD26, times": Target(lambda path: read_arrivals(path, []), "lora_request_trace.csv", (ARRIVALS,)),
    **{f"throughput, {name}": Target(read_log, name, (data,)) for name, data in LOGS.items()},
    "edge instance, JSON": Target(load_instance, "cell.json", (CELLS[".json"],)),
    "edge instance, npz": Target(load_instance, "cell.npz", (CELLS[".npz"],)),
    "measured channel": Target(read_channel, "channel.csv", (CHANNEL,)),
    "training operations": Target(load_operations, "ops.parquet", (_operations(),)),
    "training profiles": Target(load_calls, "trace.json", (PROFILED,)),
    "training dumps": Target(load_stuck_groups, "rank_0", (pickle.dumps(DUMP), json.dumps(DUMP).encode())),
    "training schedule": Target(load_schedule, "schedule.csv", (b"0F0,0F1,0I0,0W0,0B1\n1F0,1B0,1F1,1B1\n",)),
    "training profile": Target(load_profile, "profile.toml", (PROFILE,)),
    "scenario": Target(load_scenario, "scenario.toml", (SCENARIO,)),
    "report": Target(Report.load, "report.json", (REPORT,)),
    "Slurm accounting": Target(_past, "sacct.json", (PAST,)),
    "records: sacct and tables": Target(_records, "sacct.txt", (SACCT, HELIOS)),
    "records: sacct, JSON": Target(_records, "sacct.json", (SACCT_JSON,)),
    "records: pods": Target(_records, "pods.json", (KUBE_PODS,)),
    "records: nodes": Target(lambda path: nodes_from(str(path)), "sinfo.json", (SINFO,)),
    "Slurm comment": Target(_comment, "comment", (b"takeup: notice=USR1 saved_s=3 only=n[01-03,7] guarantee_h=2",)),
    "Slurm journal": Target(_journal, "journal", (JOURNAL,)),
    "uploaded image": Target(_image, "image", _images()),
    "any file (takeup try)": Target(
        lambda path: recognise(sample_of(path)), "file", (HELIOS, _events(), CELLS[".npz"], *LOGS.values())
    ),
}


def run(target: Target, path: Path) -> bool:
    """Whether the reader accepts the file; whatever it raises but an error for users is its fault."""
    try:
        target.read(path)
    except TakeupError:
        return False
    return True
