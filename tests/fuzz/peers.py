"""What users, peers and engines send, and files that are read only in part: how it is read, and small valid inputs."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors.numpy import save

from cluster.engines.slurm.fake_slurm import FakeSlurm
from fuzz.targets import LOGS, TARGETS, Target
from takeup.caching.engines.spark.session import SparkCounts
from takeup.cluster.engines.kubernetes.client import find_access
from takeup.cluster.engines.kubernetes.objects import Dialect, read_pod
from takeup.cluster.engines.kubernetes.writer import _quota
from takeup.cluster.engines.slurm import Slurm
from takeup.cluster.engines.slurm.commands import CommandResult
from takeup.cluster.engines.slurm.rows import read_job, read_node
from takeup.cluster.experiment import ClusterScenario
from takeup.cluster.experiment.replays import _demand
from takeup.serving.file_kinds import class_name, request_hours, tensor_shapes
from takeup.serving.server.access import load_keys
from takeup.serving.simulate.designs import design_of
from takeup.streaming.traces import read_log, read_logs
from takeup.training.stragglers.contract import CALL
from takeup.training.stragglers.watch.agent import INVALID, Listener
from takeup.training.stragglers.watch.channel import Channel
from takeup.training.stragglers.watch.ring import HEADER_WORDS

LAYER = ("unet", "mid.to_q")


def _lora() -> tuple[bytes, ...]:
    part = np.full((2, 4), 0.5, np.float32)
    peft = {"unet.mid.to_q.lora_A.weight": part, "unet.mid.to_q.lora_B.weight": part.T.copy()}
    kohya = {"lora_unet_mid_to_q.lora_down.weight": part, "lora_unet_mid_to_q.lora_up.weight": part.T.copy()}
    told = {"unet.r": 2, "unet.lora_alpha": 6, "unet.alpha_pattern": {"mid.to_q": 2}}
    about = {"lora_adapter_metadata": json.dumps(told), "format": "pt"}
    return save(peft, about), save(kohya | {"lora_unet_mid_to_q.alpha": np.full(1, 4.0, np.float32)})


def _read_lora(path: Path) -> object:
    from takeup.serving.diffusion.addons.lora.file_format import read_lora
    from takeup.serving.diffusion.addons.lora.targets import LoraTargets

    names = {"unet.mid.to_q": LAYER, "lora_unet_mid_to_q": LAYER}
    return read_lora(path, LoraTargets("Tiny", {LAYER: (4, 4)}, names))


def _cluster(path: Path) -> object:
    """One answer of Slurm as that of squeue and of sinfo."""
    text = path.read_bytes().decode("utf-8", "replace")
    slurm = Slurm(lambda _: CommandResult(0, text))
    return [job for row in slurm.jobs() for job in read_job(row)], [read_node(row) for row in slurm.nodes()]


def _slurm() -> bytes:
    fake = FakeSlurm()
    fake.run("spot", 2, "n0", comment="takeup notice=USR1 only=n[0-1]")
    fake.submit("hp", 8, num_nodes=2, dependency="afterok:7(unfulfilled)")
    answers = [json.loads(fake((program, "--json")).out) for program in ("squeue", "sinfo")]
    return json.dumps(answers[0] | answers[1]).encode()


def _texts(path: Path) -> object:
    """Labels and annotations of a pod, which the API server keeps as pairs of texts; and quotas."""
    try:
        texts = {str(key): str(value) for key, value in json.loads(path.read_bytes()).items()}
    except (ValueError, AttributeError, RecursionError):
        return None
    meta = {"name": "a", "namespace": "ml", "creationTimestamp": "2026-11-01T00:00:00Z"}
    pod = {"metadata": meta | {"labels": texts, "annotations": texts}, "spec": {"containers": []}}
    return read_pod(pod, Dialect()), [_quota(pool, text) for pool, text in texts.items()]


def _frame(path: Path) -> object:
    """What an agent reports once it has proved that it knows the token."""
    line, _, rows = path.read_bytes().partition(b"\n")
    try:
        values: Any = json.loads(line)
        LISTENER._take(CHANNEL, values, rows)
    except (RecursionError, *INVALID):
        return None
    return LISTENER.ranks.popitem()


def _calls() -> bytes:
    calls = np.zeros(3, CALL)
    calls["operation"], calls["began_ns"], calls["ended_ns"] = 1, 5, 6
    values = {"rank": 0, "host": "node-1", "places": [[1, 0, 2]], "header": [0] * HEADER_WORDS}
    return json.dumps(values).encode() + b"\n" + calls.tobytes()


LISTENER, CHANNEL = Listener(("127.0.0.1", 0), "a secret"), cast(Channel, object())
METRICS = (
    b"# HELP takeup_serving_turns_total Turns.\n# TYPE takeup_serving_turns_total counter\n"
    b'takeup_serving_turns_total{company="alone",rows="2"} 40.0\n'
    b"# HELP takeup_serving_turn_seconds_total Seconds.\n# TYPE takeup_serving_turn_seconds_total counter\n"
    b'takeup_serving_turn_seconds_total{company="alone",rows="2"} 2.0\n'
)
KUBECONFIG = (
    b"current-context: a\ncontexts:\n- name: a\n  context: {cluster: b, user: c}\nclusters:\n- name: b\n  cluster:\n"
    b"    server: https://10.0.0.1:6443\n    certificate-authority-data: LS0t\n    insecure-skip-tls-verify: true\n"
    b"users:\n- name: c\n  user: {token: secret, tokenFile: t}\n"
)
PLAIN_KUBECONFIG = KUBECONFIG.replace(b"https", b"http")
POD = {
    "takeup/gang": "g", "takeup/workers": "2", "takeup/guarantee-hours": "1.5", "takeup/grade": "guaranteed",
    "takeup/last-checkpoint": "2026-11-01T00:00:00Z", "takeup/gang-nodes": "n1,n2", "gpu": '{"1": "8", "4": "2.5"}',
}  # fmt: skip
COUNTERS = json.dumps({each.name: "lrc" if each.name == "policy" else 3 for each in fields(SparkCounts)}).encode()
REQUESTS = b"gmt_create,num_lora\n2025-01-01 00:00:00,1\n2025-01-01 00:01:00,\n"
DEMAND = b"hour,A100,H100\n0,8,16\n1,16,8.5\n2,0,-1e-12\n"
EVENTS = {
    "hls.json": b'[{"frag": {"stats": {"loading": {"start": 0, "end": 900}, "loaded": 400000}, "duration": 4}},'
    b' {"frag": {"stats": {"loading": {"start": 4000, "end": 4700}, "loaded": 500000}, "duration": 4}}]',
    "dash.json": b'[{"type": "MediaSegment", "trequest": "2026-01-01T00:00:00Z", "_tfinish": "2026-01-01T00:00:01Z",'
    b' "trace": [{"b": [500000]}], "_mediaduration": 4}, {"type": "MediaSegment", "trequest":'
    b' "2026-01-01T00:00:04Z", "_tfinish": "2026-01-01T00:00:05Z", "trace": [{"b": [400000]}], "_mediaduration": 4}]',
    "shaka.json": b'{"t": 1000, "timeMs": 900, "bytes": 500000, "duration": 4}\n'
    b'{"t": 5000, "timeMs": 800, "bytes": 500000, "duration": 4}\n{"event": "buffering"}\n',
    "phone.csv": b"Timestamp,DL_bitrate,State\n2019.12.16_13.40.04,9000,D\n2019.12.16_13.40.05,8000,D\n"
    b"2019.12.16_13.40.06,1,I\n2019.12.16_13.40.07,7000,D\n",
    "unit.csv": b"unit_id,dtime,fetch_time,bytes_sec\n1,a,500000,400000\n1,a,900000,500000\n2,b,700000,300000\n",
}
BUFFER = b"session_id,event,cum_rebuf\na,rebuffer,0.5\na,play,0.5\nb,startup,0\n"
ALL_TARGETS: dict[str, Target] = {
    **TARGETS,
    **{f"throughput, {name}": Target(read_log, name, (data,)) for name, data in EVENTS.items()},
    "throughput, client_buffer": Target(
        lambda path: read_logs([path.with_name("puffer.csv"), path], "x"),
        "buffer.csv",
        (BUFFER,),
        (("puffer.csv", LOGS["puffer.csv"]),),
    ),
    "hourly demand": Target(
        lambda path: _demand(ClusterScenario(verb="forecast", demand=str(path))), "d.csv", (DEMAND,)
    ),
    "LoRA": Target(_read_lora, "lora.safetensors", _lora()),
    "LoRA, header": Target(tensor_shapes, "lora.safetensors", _lora()),
    "model_index.json": Target(
        class_name, "model_index.json", (b'{"_class_name": "FluxPipeline", "unet": ["a", "b"]}',)
    ),
    "image requests": Target(request_hours, "requests.csv", (REQUESTS,)),
    "costs of a design": Target(
        lambda path: design_of("takeup", costs=str(path)), "costs", (b"step = [[2, 0.04], [4, 0.07]]\n", METRICS)
    ),
    "keys of tenants": Target(lambda path: load_keys(path, {}), "keys", (b"# ours\nalice:" + b"a" * 20 + b"\n",)),
    "counters of Spark": Target(
        lambda path: SparkCounts.from_json(path.read_text("utf-8", "replace")),
        "counts",
        (COUNTERS,),
    ),
    "Slurm's answers": Target(_cluster, "answer", (_slurm(),)),
    "kubeconfig": Target(find_access, "config", (PLAIN_KUBECONFIG, KUBECONFIG)),
    "texts of a pod": Target(_texts, "pod", (json.dumps(POD).encode(),)),
    "frame of an agent": Target(_frame, "frame", (_calls(),)),
}
