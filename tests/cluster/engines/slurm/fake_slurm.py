"""A Slurm in memory that speaks as the real one does: rows of 22.05, and the few commands that an engine uses.

It can be made to die, or to kill whoever called, at the n-th command that changes something.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from takeup.cluster.engines.slurm.commands import CommandResult


class Killed(BaseException):
    """The controller was killed: nothing may catch this."""


Row = dict[str, Any]


@dataclass
class FakeSlurm:
    """`num_nodes` nodes of eight GPUs; times are whole seconds of `now_s`."""

    num_nodes: int = 4
    now_s: float = 1000.0
    jobs: dict[str, Row] = field(default_factory=dict)
    node_states: dict[str, str] = field(default_factory=dict)
    node_models: dict[str, str] = field(default_factory=dict)
    partitions: dict[str, list[str]] = field(default_factory=dict)
    features: dict[str, str] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)  # of one job each, where a command names several
    kill_at: int = -1
    kill_before: bool = True
    is_down: bool = False

    def submit(self, qos: str, gpus: int, num_nodes: int = 1, **fields: Any) -> str:
        """A job as the gate leaves it: held."""
        name = str(len(self.jobs) + 1)
        self.jobs[name] = {
            "job_id": int(name),
            "array_job_id": 0,
            "qos": qos,
            "account": "research",
            "job_state": "PENDING",
            "priority": 0,
            "node_count": num_nodes,
            "tasks": num_nodes,
            "tres_per_node": f"gres:gpu:a100:{gpus}",
            "submit_time": int(self.now_s),
            "start_time": 0,
            "eligible_time": 0,
            "restart_cnt": 0,
            "nodes": "",
            "required_nodes": "",
            "gres_detail": [],
            "comment": "",
            "admin_comment": "takeup gate",
            "state_reason": "JobHeldUser",
            **fields,
        }
        return name

    def run(self, qos: str, gpus: int, node: str, **fields: Any) -> str:
        """A job that runs since now."""
        name = self.submit(qos, gpus, **fields)
        self.jobs[name].update(required_nodes=node, priority=1)
        self._begin(self.jobs[name], [node])
        return name

    def tick(self, seconds: float = 1.0) -> None:
        """Jobs leave that are leaving, and released jobs start where there is room and the limit allows it."""
        self.now_s += seconds
        for row in self.jobs.values():
            if row["job_state"] == "COMPLETING":
                row.update(job_state="PENDING", nodes="", gres_detail=[], submit_time=int(self.now_s))
        for row in self.jobs.values():
            if row["job_state"] == "PENDING" and row["priority"] and row["required_nodes"]:
                names = row["required_nodes"].split(",")
                if all(self.free(name) >= self.ask(row) for name in names) and self._is_allowed(row):
                    self._begin(row, names)

    def free(self, node: str) -> int:
        """GPUs of a node that no job holds."""
        return 8 - sum(self.ask(row) for row in self.jobs.values() if node in row["nodes"].split(","))

    def ask(self, row: Row) -> int:
        """GPUs for each node."""
        return int(row["tres_per_node"].rpartition(":")[2])

    def held_gpus(self, qos: str) -> int:
        """GPUs of all running jobs of a quality of service."""
        running = [row for row in self.jobs.values() if row["qos"] == qos and row["job_state"] == "RUNNING"]
        return sum(self.ask(row) * row["node_count"] for row in running)

    def __call__(self, arguments: Sequence[str]) -> CommandResult:
        program, *rest = arguments
        if self.is_down:
            problem = {"errors": [{"error": "Unable to contact slurm controller"}], "jobs": [], "nodes": []}
            return (
                CommandResult(0, json.dumps(problem))
                if "--json" in rest
                else CommandResult(1, "", "Unable to contact slurm")
            )
        if program == "sinfo":
            return CommandResult(0, json.dumps({"errors": [], "nodes": [self._node(n) for n in range(self.num_nodes)]}))
        if program == "squeue":
            return CommandResult(0, json.dumps({"errors": [], "jobs": list(self.jobs.values())}))
        if program == "sacctmgr" and "show" in rest:
            return CommandResult(0, "normal\nhp\nspot\nspot_idle\n")
        self.commands.append(" ".join(arguments))
        if rest[0] == "requeuehold":
            return [self._change(program, [*rest[:2], name]) for name in rest[2:]][-1]
        return self._change(program, rest)

    def _change(self, program: str, rest: list[str]) -> CommandResult:
        is_last = len(self.changes) == self.kill_at
        if is_last and self.kill_before:
            raise Killed
        actions: dict[str, Callable[[list[str]], CommandResult]] = {
            "update": self._update,
            "release": self._release,
            "hold": self._hold,
            "uhold": self._hold,
            "requeuehold": self._requeue,
        }
        self.changes.append(" ".join((program, *rest)))
        if program == "scontrol":
            answer = actions[rest[0]](rest)
        elif program == "sacctmgr":
            self.limits[rest[4]] = float(rest[-1].rpartition("=")[2])
            answer = CommandResult(0, "")
        else:
            answer = CommandResult(0, "")
        if is_last:
            raise Killed
        return answer

    def _update(self, rest: list[str]) -> CommandResult:
        settings = dict(word.split("=", 1) for word in rest[1:])
        row = self.jobs.get(settings["JobId"])
        if row is None:
            return CommandResult(1, "", "Invalid job id specified")
        row.update(required_nodes=settings["ReqNodeList"], qos=settings.get("QOS", row["qos"]))
        row.update(eligible_time=int(self.now_s), admin_comment=settings.get("AdminComment", ""))
        return CommandResult(0, "")

    def _release(self, rest: list[str]) -> CommandResult:
        self.jobs[rest[1]]["priority"] = 1
        return CommandResult(0, "")

    def _hold(self, rest: list[str]) -> CommandResult:
        if self.jobs[rest[1]]["job_state"] != "PENDING":
            return CommandResult(1, "", "Job has already finished")
        reason = "JobHeldAdmin" if rest[0] == "hold" else "JobHeldUser"
        self.jobs[rest[1]].update(priority=0, state_reason=reason)
        return CommandResult(0, "")

    def _requeue(self, rest: list[str]) -> CommandResult:
        row = self.jobs[rest[2]]
        if row["job_state"] == "RUNNING":
            row.update(job_state="COMPLETING", priority=0, state_reason="JobHeldUser")
            row["restart_cnt"] += 1
            row["eligible_time"] = int(self.now_s) + 121
        return CommandResult(0, "")

    def _begin(self, row: Row, names: list[str]) -> None:
        row.update(job_state="RUNNING", nodes=",".join(names), start_time=int(self.now_s))
        row["gres_detail"] = [f"gpu:a100:{self.ask(row)}(IDX:0)" for _ in names]

    def _is_allowed(self, row: Row) -> bool:
        limit = self.limits.get(row["qos"], -1.0)
        return limit < 0 or self.held_gpus(row["qos"]) + self.ask(row) * row["node_count"] <= limit

    def _node(self, number: int) -> Row:
        name = f"n{number}"
        gres = f"gpu:{self.node_models.get(name, 'a100')}:8"
        row = {"name": name, "gres": gres, "state": self.node_states.get(name, "idle"), "state_flags": []}
        return row | {"partitions": self.partitions.get(name, ["all"]), "active_features": self.features.get(name, "")}
