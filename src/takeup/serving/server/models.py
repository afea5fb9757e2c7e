"""Models by name, and a backend that serves one of them in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from takeup.errors import BadInput, UnknownName
from takeup.serving.engines.diffusers.addons import AddOn
from takeup.serving.engines.diffusers.controls.addon import Controls
from takeup.serving.engines.diffusers.device.compute import EagerExecutor, Executor
from takeup.serving.engines.diffusers.families import Family, family_of
from takeup.serving.engines.diffusers.lora.addon import Form, Loras
from takeup.serving.engines.diffusers.lora.loaders import ProcessLoader, ThreadLoader
from takeup.serving.engines.diffusers.lora.store import LoraStore
from takeup.serving.engines.diffusers.lora.targets import LoraTargets
from takeup.serving.engines.diffusers.placement import binds_edits, compute_for, stacks_for, workers_for
from takeup.serving.engines.diffusers.steps import StepEngine
from takeup.serving.engines.diffusers.tiny import TINY, build
from takeup.serving.policies.adapters import ADAPTER_POLICIES
from takeup.serving.policies.batching import one_by_one
from takeup.serving.policies.mask_batches import MaskGrouping
from takeup.serving.server.editing import NO_TEMPLATES, TemplateStorage, make_editor
from takeup.serving.server.jobs import ModelCard
from takeup.serving.server.local import LocalBackend

BUILTIN_PREFIX = "takeup/"


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """How to serve a model: enough for another process, or another machine, to do the same."""

    model: str
    device: str = "auto"
    controlnets: Mapping[str, str] = field(default_factory=dict)
    deterministic: bool = False
    max_rows: int = 16
    lora_form: Form = "auto"
    control_change: float = 0.0
    cache_bytes: int = 2 * 2**30
    cache_policy: str = "lerc"
    reads_in_process: bool = False
    num_cpu_threads: int | None = None
    templates: TemplateStorage = field(default_factory=TemplateStorage)

    def build(self) -> LocalBackend:
        """Load the model and start its step loop."""
        if self.num_cpu_threads is not None:
            torch.set_num_threads(self.num_cpu_threads)
        if self.cache_policy not in ADAPTER_POLICIES:
            raise UnknownName("policy of the adapter cache", self.cache_policy, ADAPTER_POLICIES)
        pipeline = open_model(self.model, self.device)
        family, targets = family_of(pipeline), LoraTargets.of(pipeline)
        nets = self._controlnets(pipeline)
        store = self._store(targets)
        compute = EagerExecutor() if self.deterministic else compute_for(pipeline.device)
        room = NO_TEMPLATES if self.deterministic else self.templates
        editor = make_editor(family, room, binds=binds_edits(compute, family))
        loras = Loras(family, store, self.lora_form, stacks=stacks_for(compute, family))
        controls = [self._controls(family, nets, compute)] if nets else []
        add_ons: list[AddOn] = [loras, *editor.add_ons, *controls]
        group = one_by_one if self.deterministic else MaskGrouping(self.max_rows)
        engine = StepEngine(pipeline, add_ons=add_ons, group=group, compute=compute)
        return LocalBackend(engine, editor, ModelCard(type(pipeline).__name__, targets, tuple(nets)), store)

    def _controls(self, family: Family, nets: Mapping[str, Any], compute: Executor) -> Controls:
        return Controls(family, nets, workers_for(compute, nets), max_change=self.control_change)

    def _store(self, targets: LoraTargets) -> LoraStore:
        read = ProcessLoader if self.reads_in_process else ThreadLoader
        return LoraStore(read(AdapterPaths(), targets), ADAPTER_POLICIES[self.cache_policy], self.cache_bytes)

    def _controlnets(self, pipeline: Any) -> dict[str, Any]:
        """Those of the pipeline itself, as `control-1` and so on, and those that were named."""
        own = getattr(pipeline, "controlnet", None)
        inside = [] if own is None else list(getattr(own, "nets", [own]))
        nets = {f"control-{number}": net for number, net in enumerate(inside, start=1)}
        for name, where in self.controlnets.items():
            nets[name] = _pretrained("ControlNetModel", where).to(pipeline.device, pipeline.dtype)
        return nets


class AdapterPaths(Mapping[str, Path]):
    """LoRAs named by their own paths. The API hands out such names itself, never a client."""

    def __getitem__(self, name: str) -> Path:
        return Path(name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and Path(name).is_file()

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def open_model(name: str, device: str = "auto") -> Any:
    """The pipeline of this name: one of ours, a folder that diffusers wrote, or one of the hub."""
    on = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    if name.startswith(BUILTIN_PREFIX):
        pipeline = build(name)  # an unknown one of ours is answered with the nearest
    elif Path(name).exists() or name.count("/") == 1:
        pipeline = _pretrained("DiffusionPipeline", name, torch_dtype=torch.float32 if on == "cpu" else torch.bfloat16)
    else:
        raise BadInput(
            f"no model {name!r}: there is no such folder; give one that diffusers wrote, a hub id such as "
            f"owner/name, or one of {', '.join(TINY)}"
        )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline.to(on)


def _pretrained(kind: str, where: str, **options: Any) -> Any:
    """From a folder or the hub; safetensors only, for other formats can run code."""
    diffusers = import_module("diffusers")
    offline = Path(where).exists() or os.environ.get("HF_HUB_OFFLINE") == "1"
    try:
        return getattr(diffusers, kind).from_pretrained(
            where, use_safetensors=True, local_files_only=offline, **options
        )
    except Exception as problem:  # hub, files, network: each has errors of its own
        reason = (str(problem).strip() or type(problem).__name__).splitlines()[0]
        raise BadInput(
            f"the model {where!r} could not be opened ({reason}); give a folder that diffusers wrote with "
            f"safetensors, connect to the hub, or try {BUILTIN_PREFIX}tiny-sdxl"
        ) from problem
