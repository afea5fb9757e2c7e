"""LoRAs in the step loop: bounded asynchronous loading, merged or unmerged (sidecar), text encoders included.

How it works. A request with LoRAs joins immediately, while they are loaded. It can make at most `late_steps` steps
without them (0: none, so its image is exact); then it stalls until they are loaded, while other requests continue. When
all its LoRAs are loaded, the patched weights are computed, and its prompt is encoded again if they change a text
encoder, both off the loop; from the next step boundary on it is computed with all of them. A LoRA that cannot be loaded
fails its request.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

import torch

from takeup.errors import TakeupError
from takeup.serving.diffusion.addons.lora.loading import LoraLoader
from takeup.serving.diffusion.addons.lora.stacked_merge import StackedWeights
from takeup.serving.diffusion.addons.lora.targets import DENOISERS, Layer, LayerId, layers_of
from takeup.serving.diffusion.addons.lora.weights import (
    Lora,
    LoraSet,
    LoraSetKey,
    PatchedWeights,
    Sidecar,
    StagedWeights,
    key_of,
)
from takeup.serving.diffusion.contract import BatchRows, DenoisingRun
from takeup.serving.diffusion.engine.families import Family
from takeup.serving.diffusion.execution.weight_stacks import WeightStacks
from takeup.serving.diffusion.policies import FormCosts, LoraGroup, choose_form, extra_share

SLOT = "loras"
Form = Literal["merged", "sidecar", "auto"]


@dataclass(slots=True)
class RequestedLoras:
    """The LoRAs of one request: loading, then prepared (weights and prompt), then active."""

    asked: list[str]
    loading: list[Future[Lora]]
    ready: Future[dict[str, torch.Tensor]] | None = None
    staged: StagedWeights | None = None
    loras: LoraSet = ()
    arrived_at_step: int | None = None
    key: LoraSetKey = ()

    @property
    def is_felt(self) -> bool:
        return self.arrived_at_step is not None


class Loras:
    """The add-on. `form` merges LoRAs into the weights, computes them as a sidecar, or chooses the cheaper one.

    With `stacks`, those of the denoiser prepared for a device, whole stacks are merged at once. That takes a few
    milliseconds, and CUDA graphs do not support sidecar layers: then `auto` means `merged`. `agree` receives whether
    the LoRAs are loaded here and returns whether they become active now, because other ranks may still be loading them;
    it receives None if loading failed.
    """

    def __init__(
        self,
        family: Family,
        loader: LoraLoader,
        form: Form = "auto",
        max_staged: int = 4,
        *,
        stacks: WeightStacks | None = None,
        agree: Callable[[bool | None], bool] = bool,
    ) -> None:
        self._family, self._loader, self._agree = family, loader, agree
        self._form: Form = "merged" if stacks is not None and form == "auto" else form
        layers = layers_of(family.pipeline)
        denoiser = {layer: module for layer, module in layers.items() if layer[0] in DENOISERS}
        text = {layer: module for layer, module in layers.items() if layer[0] not in DENOISERS}
        self.weights, self._text = _weights(denoiser, stacks), PatchedWeights(text)
        self._sidecar = Sidecar(denoiser)
        self._staged: OrderedDict[Hashable, StagedWeights] = OrderedDict()
        self._max_staged = max_staged
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="make-ready")
        self._now: Literal["merged", "sidecar"] = "sidecar" if self._form == "sidecar" else "merged"

    def close(self) -> None:
        """Restore the original weights, and stop loading."""
        self.weights.use()
        self._beside.shutdown(cancel_futures=True)
        self._loader.close()

    # AddOn interface ------------------------------------------------------------------------------------------------

    def joined(self, run: DenoisingRun) -> None:
        wanted = run.extras[SLOT] = RequestedLoras([], [])
        for use in run.request.loras:
            wanted.loading.append(self._loader.load(use.name))
            wanted.asked.append(use.name)

    def is_ready(self, run: DenoisingRun) -> bool:
        wanted: RequestedLoras = run.extras[SLOT]
        if wanted.is_felt or not wanted.loading or run.step < run.request.plain_steps:
            return True
        if self._have_all_arrived(run, wanted):
            wanted.arrived_at_step = run.step
            return True
        return run.step < run.request.late_steps

    def plan(self, runs: Sequence[DenoisingRun]) -> None:
        """Choose the form of the next step, once the set of ready requests is known."""
        if self._form == "auto":
            self._now = choose_form(_lora_groups(runs), self.weights.key, FormCosts())

    def bucket(self, run: DenoisingRun) -> Hashable:
        return self._key(run) if self._now == "merged" else None

    @contextmanager
    def around(self, rows: BatchRows) -> Iterator[None]:
        if self._now == "merged":
            self.weights.use(self._stage(rows.runs[0]))
            rows.addon_inputs.weights = self.weights.key
            yield
            return
        self.weights.use()
        rows.addon_inputs.has_hooks = True
        sets = [_active_loras(run) for run in rows.runs for _ in range(run.num_rows)]
        with self._sidecar.applied(sets):
            yield

    def left(self, run: DenoisingRun) -> None:
        wanted: RequestedLoras | None = run.extras.pop(SLOT, None)
        for name in wanted.asked if wanted else ():
            self._loader.release(name)

    # ---------------------------------------------------------------------------------------------------------------

    def _have_all_arrived(self, run: DenoisingRun, wanted: RequestedLoras) -> bool:
        """Whether the LoRAs are loaded on all ranks."""
        try:
            arrived = self._arrives(run, wanted)
        except Exception:
            with suppress(TakeupError):
                self._agree(None)
            raise
        return self._agree(arrived)

    def _arrives(self, run: DenoisingRun, wanted: RequestedLoras) -> bool:
        """Whether the request can be computed with its LoRAs from now on; raises if loading failed."""
        if wanted.ready is None:
            if not all(loading.done() for loading in wanted.loading):
                return False
            loaded = [loading.result() for loading in wanted.loading]
            wanted.loras = tuple((lora, use.scale) for lora, use in zip(loaded, run.request.loras, strict=True))
            wanted.key = key_of(wanted.loras)
            wanted.ready = self._beside.submit(self._make_ready, run, wanted)
        if not wanted.ready.done():
            return False
        run.inputs.update(wanted.ready.result())
        return True

    def _make_ready(self, run: DenoisingRun, wanted: RequestedLoras) -> dict[str, torch.Tensor]:
        """Off the loop: compute the patched weights, and encode the prompt again if text encoders change."""
        if self._form == "merged" and wanted.key not in self._staged:
            wanted.staged = self.weights.stage(wanted.loras)
        if all(lora.components <= set(DENOISERS) for lora, _ in wanted.loras):
            return {}
        with self._family.encoding, self._text.using(wanted.loras):
            return self._family.encode(run.request)

    def _stage(self, run: DenoisingRun) -> StagedWeights:
        key = self._key(run)
        if key not in self._staged:
            self._staged[key] = run.extras[SLOT].staged or self.weights.stage(_active_loras(run))
        self._staged.move_to_end(key)
        while len(self._staged) > self._max_staged:
            self._staged.popitem(last=False)
        return self._staged[key]

    def _key(self, run: DenoisingRun) -> LoraSetKey:
        wanted: RequestedLoras = run.extras[SLOT]
        return wanted.key if wanted.is_felt else ()


def _weights(layers: dict[LayerId, Layer], stacks: WeightStacks | None) -> PatchedWeights:
    if stacks is None:
        return PatchedWeights(layers)
    (component,) = {layer[0] for layer in layers}
    return StackedWeights(layers, stacks, component)


def _active_loras(run: DenoisingRun) -> LoraSet:
    wanted: RequestedLoras = run.extras[SLOT]
    return wanted.loras if wanted.is_felt else ()


def _lora_groups(runs: Sequence[DenoisingRun]) -> list[LoraGroup]:
    """The rows of the next step, grouped by their LoRAs."""
    by_key: dict[Hashable, list[DenoisingRun]] = {}
    for run in runs:
        wanted: RequestedLoras = run.extras[SLOT]
        by_key.setdefault(wanted.key if wanted.is_felt else (), []).append(run)
    return [
        LoraGroup(key, sum(run.num_rows for run in members), _extra(members[0]), _is_low_rank(members[0]))
        for key, members in by_key.items()
    ]


def _is_low_rank(run: DenoisingRun) -> bool:
    return all(change.is_low_rank for lora, _ in _active_loras(run) for change in lora.changes.values())


def _extra(run: DenoisingRun) -> float:
    """The cost of its LoRAs as a sidecar, as a share of the layers they change."""
    extras = [
        extra_share(change.rank, change.shape[1], change.shape[0])
        for lora, _ in _active_loras(run)
        for change in lora.changes.values()
        if change.is_low_rank
    ]
    return sum(extras) / max(1, len(extras))
