"""Every writer of the package, as the laboratory runs it: what it writes, and what must be on the disk afterwards."""

from __future__ import annotations

import io
import random
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from edge.cells import two_devices
from support.faults.journals import BufferedWriter, ControllerWriter, DatabaseWriter, JournalWriter
from support.faults.lab import Attempt, Outcome, Writer
from support.trace_tables import write_table
from takeup.caching.engines.local import LocalStore
from takeup.caching.groups import GroupTable
from takeup.caching.policies import find_policy
from takeup.core.render.folder import write as write_report
from takeup.core.report import Column, Report, Table
from takeup.edge.traces.files import save_instance
from takeup.training.pipelines.planners import find_policy as find_planner
from takeup.training.pipelines.profile import Profile
from takeup.training.stragglers.contract import Finding, SlowdownEvent
from takeup.training.stragglers.watch.launch import write_rank_order
from takeup.training.stragglers.watch.reports import write_finding
from takeup.training.traces.profiles import save_profile, save_schedule

Operation = Callable[[Path], object]
NUM_VERSIONS = 2


@dataclass(slots=True)
class FileWriter:
    """Operations that write files: each path holds, whole, what its last acknowledged operation wrote.

    Unless it `is_durable`, a power failure may bring an older state back.
    """

    name: str
    operations: list[Operation]
    refusals: tuple[type[BaseException], ...] = ()
    is_durable: bool = True
    expected: list[Mapping[str, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            for operation in self.operations:
                before = _files(Path(name))
                operation(Path(name))
                after = _files(Path(name))
                self.expected.append({path: data for path, data in after.items() if before.get(path) != data})

    def prepare(self, folder: Path) -> None:
        """An empty folder."""

    def work(self, folder: Path, attempt: Attempt) -> None:
        """All operations, one after the other."""
        for number, operation in enumerate(self.operations):
            attempt(number, lambda run=operation: run(folder), *self.refusals)  # type: ignore[misc]

    def check(self, folder: Path, outcome: Outcome) -> list[str]:
        """No file is torn, none that was acknowledged is lost, and none that was refused is there."""
        found, problems = _files(folder), []
        for path in sorted({path for expected in self.expected for path in expected}):
            if found.pop(path, None) not in self._allowed(path, outcome):
                problems.append(f"{path} holds neither the old nor the new content")
        visible = [path for path in found if not Path(path).name.startswith(".")]
        problems += [f"{path} should not be there" for path in visible]
        if outcome.begun is None and not outcome.is_broken and (left := sorted(set(found) - set(visible))):
            problems.append(f"{left} were left behind")
        return problems

    def _allowed(self, path: str, outcome: Outcome) -> list[bytes | None]:
        """The content of the last acknowledged operation, and what failed operations on several files did before."""
        allowed: list[bytes | None] = [None]
        for number, expected in enumerate(self.expected):
            is_open = number == outcome.begun or number in outcome.unknown or len(expected) > 1
            if path in expected and number in outcome.done:
                allowed = [*(allowed if outcome.is_power_lost and not self.is_durable else []), expected[path]]
            elif path in expected and is_open:
                allowed.append(expected[path])
        return allowed


def _files(folder: Path) -> dict[str, bytes]:
    return {str(it.relative_to(folder)): it.read_bytes() for it in sorted(folder.rglob("*")) if it.is_file()}


def _reports(seed: int) -> list[Operation]:
    def report(version: int) -> Report:
        rows = tuple((f"row {number}", (seed + version) * number) for number in range(30))
        return Report(
            "A title",
            "caching",
            {},
            seed,
            created="2030-01-02T03:04:05Z",
            tables=(Table("A table", (Column("name"), Column("value")), rows),),
            notes=(f"version {version}",),
        )

    made = [report(version) for version in range(NUM_VERSIONS)]
    return [lambda folder, it=it: write_report(it, folder, ("json", "html")) for it in made]  # type: ignore[misc]


def _cells(seed: int) -> list[Operation]:
    made = [replace(two_devices(), bits=np.array([2.0 + seed, 2.0 + version])) for version in range(NUM_VERSIONS)]
    return [
        lambda folder, it=it, end=end: save_instance(folder / f"cell{end}", it)  # type: ignore[misc]
        for end in (".json", ".npz")
        for it in made
    ]


def _tables(seed: int) -> list[Operation]:
    draw = np.random.default_rng(seed)
    made = [{"a": draw.integers(0, 99, 500), "b": draw.random(500)} for _ in range(NUM_VERSIONS)]
    return [
        lambda folder, it=it, end=end: write_table(folder / f"table{end}", it)  # type: ignore[misc]
        for end in (".csv", ".csv.gz", ".parquet")
        for it in made
    ]


def _plans(seed: int) -> list[Operation]:
    made = [Profile.uniform(3, 4 + version, 0.01 * (1 + seed)) for version in range(NUM_VERSIONS)]
    schedules = [find_planner("one_f_one_b").plan(it).schedule for it in made]
    return [
        *(lambda folder, it=it: save_profile(it, folder / "profile.toml") for it in made),
        *(lambda folder, it=it: save_schedule(it, folder / "schedule.csv") for it in schedules),
    ]


def _records(seed: int) -> list[Operation]:
    """Findings of a watched job, and the order of ranks for its next restart."""
    session = cast(Any, SimpleNamespace(watcher=SimpleNamespace(logs=tuple)))
    event = SlowdownEvent(began=seed, declared=seed + 3, is_slow=True, factor=1.5, lost_share=0.3)
    found = [Finding(number, event, "none") for number in range(NUM_VERSIONS)]
    orders = [(0, 1, 2), (2, 1, 0)]
    return [
        *(lambda folder, it=it: write_finding(folder / "out", it, session) for it in found),
        *(lambda folder, it=it: write_rank_order(folder, it) for it in orders),
    ]


def _spilled(seed: int) -> list[Operation]:
    draw = random.Random(seed)
    blocks = [draw.randbytes(3000) for _ in range(5)]

    def put(store: LocalStore, number: int) -> None:
        store.put(number, blocks[number])

    def fill(folder: Path) -> None:
        table = GroupTable()
        store = LocalStore(find_policy("lru").make(table, 6000), table, 6000, folder)
        for number in range(len(blocks)):
            put(store, number)

    return [fill]


def _templates(seed: int) -> list[Operation]:
    import torch

    from takeup.serving.editing.templates.disk import write_template
    from takeup.serving.editing.templates.packing import PackedTensor
    from takeup.serving.editing.templates.template import Template

    def template(version: int) -> Template:
        random_numbers = torch.Generator().manual_seed(seed + version)
        values = torch.randn(3, 40, generator=random_numbers)
        pages = tuple({"out": PackedTensor(values + step, None, (3, 40), torch.float32)} for step in range(2))
        return Template(pages, torch.ones(4, 4, dtype=torch.bool), 0.0, 960)

    made = [template(version) for version in range(NUM_VERSIONS)]
    return [lambda folder, it=it: write_template(folder / "a" / "1.template", it, "key") for it in made]  # type: ignore[misc]


def _adapters(seed: int) -> list[Operation]:
    import torch
    from safetensors.torch import save

    from takeup.serving.diffusion.addons.lora.targets import LoraTargets
    from takeup.serving.server.adapter_registry import AdapterRegistry

    layer = ("unet", "mid.to_q")
    targets = LoraTargets("Tiny", {layer: (4, 4)}, {"unet.mid.to_q": layer})
    part = torch.full((2, 4), 0.5 + seed)
    data = save({"unet.mid.to_q.lora_A.weight": part, "unet.mid.to_q.lora_B.weight": part.T.contiguous()})

    def add(folder: Path, name: str) -> None:
        AdapterRegistry(folder, None, targets, lambda _: None).add("tenant", name, io.BytesIO(data))

    return [lambda folder, name=name: add(folder, name) for name in ("one", "two")]  # type: ignore[misc]


FILES: Mapping[str, tuple[Callable[[int], list[Operation]], dict[str, Any]]] = {
    "report": (_reports, {}),
    "table": (_tables, {}),
    "cell": (_cells, {}),
    "plan": (_plans, {}),
    "record": (_records, {}),
    "spilled": (_spilled, {}),
    "template": (_templates, {"is_durable": False}),
    "adapter": (_adapters, {"refusals": (OSError,)}),
}
OTHERS: Mapping[str, Callable[[int], Writer]] = {"journal": JournalWriter, "slurm": ControllerWriter}
PEERS: Mapping[str, Callable[[int], Writer]] = {
    "sqlite": DatabaseWriter,
    "buffered": BufferedWriter,
}  # run only when named


def writers(seed: int, names: tuple[str, ...]) -> list[Writer]:
    """The writers of these names, all of ours without one; each seed gives other content."""
    found: list[Writer] = [
        make(seed) for name, make in {**OTHERS, **PEERS}.items() if name in names or (not any(names) and name in OTHERS)
    ]
    for name, (make, options) in FILES.items():
        if name in names or not any(names):
            found.append(FileWriter(f"{name} {seed}", make(seed), **options))
    return found
