"""ControlNets in the step loop: batched per call, residuals added just before the decoder needs them.

How it works. Nothing in the first half of the U-Net depends on a ControlNet. So when a call begins, every ControlNet
that one of its rows uses is started, for all those rows together; the U-Net starts too. Before each up block, the
residuals of that block are taken from the streams, scaled row by row, summed in the order of each request, and added to
the skips: the same numbers in the same order as in diffusers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from takeup.errors import BadInput, UnknownName
from takeup.serving.diffusion.addons.controlnet.workers import (
    ControlCall,
    ControlWorker,
    ResidualStream,
    ThreadWorker,
    control_image,
    scales_of,
)
from takeup.serving.diffusion.contract import AddOn, BatchRows, ControlResiduals, DenoisingRun, Family
from takeup.serving.diffusion.engine.sampling import size_of
from takeup.serving.diffusion.execution.executors import num_residuals
from takeup.serving.diffusion.execution.ops import weighted_sum
from takeup.serving.diffusion.policies import steps_to_reuse
from takeup.serving.model import ControlUse

# Opt-in reuse of ControlNet residuals over several steps: faster, but the image changes -------------------------------
#
# Residuals change little from one step to the next. After two computations the change between them is measured, and the
# residuals are reused as long as the predicted change since then stays within a bound (`steps_to_reuse`). This is
# off by default and must pass the quality gate.


class MemoizedResiduals:
    """Residuals of one step, memoized."""

    def __init__(self, source: ControlResiduals) -> None:
        self._source: ControlResiduals | None = source
        self._totals: dict[int, torch.Tensor] = {}

    def total(self, number: int, like: torch.Tensor) -> torch.Tensor:
        """The residual of this number, computed on first use."""
        if number not in self._totals:
            assert self._source is not None
            self._totals[number] = self._source.total(number, like)
        return self._totals[number]

    def write(self, into: Sequence[torch.Tensor]) -> None:
        """Write all residuals, computed on first use."""
        if self._totals:
            for number, tensor in enumerate(into):
                tensor.copy_(self._totals[number])
            return
        assert self._source is not None
        self._source.write(into)
        self._totals = {number: tensor.clone() for number, tensor in enumerate(into)}
        self._source = None  # its streams are reused by the next step

    def change_since(self, older: MemoizedResiduals) -> float:
        """Relative change since the older residuals: the maximum over rows and residuals."""
        changes = [_change(tensor, older._totals[number]) for number, tensor in self._totals.items()]
        return float(torch.stack(changes).max())


@dataclass(slots=True)
class _ReuseEntry:
    """Residuals of a step and of an earlier one, reused for `num_steps` more steps: None until first needed."""

    parts: object
    steps: tuple[int, ...]
    residuals: MemoizedResiduals
    before: MemoizedResiduals | None = None
    num_apart: int = 0
    num_steps: int | None = None


class ResidualReuse:
    """Decides when to recompute residuals. `largest_change` is the largest one measured after reused steps."""

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._asked: dict[tuple[int, ...], _ReuseEntry] = {}
        self.num_asked, self.num_reused, self.largest_change = 0, 0, 0.0

    def find(self, rows: BatchRows, parts: object) -> MemoizedResiduals | None:
        """Residuals that can be reused for these rows, or None."""
        asked = self._asked.get(_key(rows))
        if asked is None or asked.parts != parts:
            return None
        if asked.num_steps is None:
            asked.num_steps = self._steps_to_reuse(asked)
        if _since(rows, asked.steps) > asked.num_steps:
            return None
        self.num_reused += 1
        return asked.residuals

    def keep(self, rows: BatchRows, parts: object, residuals: ControlResiduals) -> ControlResiduals:
        """Cache these residuals for the next steps; returned unchanged if reuse is off."""
        self.num_asked += 1
        if self._bound == 0:
            return residuals
        last = self._asked.pop(_key(rows), None)
        asked = _ReuseEntry(parts, tuple(run.step for run in rows.runs), MemoizedResiduals(residuals))
        if last is not None and last.parts == parts:
            asked.before, asked.num_apart = last.residuals, _since(rows, last.steps)
        for run in rows.runs:  # cached residuals of other groups with this request are stale
            self.forget(run)
        self._asked[_key(rows)] = asked
        return asked.residuals

    def drop(self, rows: BatchRows) -> None:
        """The call failed: its residuals may be incomplete, so drop them."""
        self._asked.pop(_key(rows), None)

    def forget(self, run: DenoisingRun) -> None:
        """Drop all cached residuals of this request."""
        for key in [key for key in self._asked if id(run) in key]:
            del self._asked[key]

    def _steps_to_reuse(self, asked: _ReuseEntry) -> int:
        if asked.before is None:
            return 0
        change, num_apart = asked.residuals.change_since(asked.before), asked.num_apart
        asked.before = None
        if num_apart > 1:
            self.largest_change = max(self.largest_change, change)
        return steps_to_reuse(change, num_apart, self._bound)


def _change(now: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """The relative change of the row that changed most; 0 for a row without a residual."""
    moved, length = (
        torch.linalg.vector_norm(one.flatten(1), dim=1, dtype=torch.float32) for one in (now - before, now)
    )
    return torch.where(moved == 0, moved, moved / length).max()


def _key(rows: BatchRows) -> tuple[int, ...]:
    return tuple(id(run) for run in rows.runs)


def _since(rows: BatchRows, steps: tuple[int, ...]) -> int:
    """The number of steps made since: the maximum over requests, since they also make steps in other calls."""
    return max(run.step - step for run, step in zip(rows.runs, steps, strict=True))


SLOT = "controls"


@dataclass(frozen=True, slots=True)
class RegisteredImage:
    """An image registered with a worker under `key`, and the rows of its request that the ControlNet acts on."""

    use: ControlUse
    key: int
    image: torch.Tensor
    rows: slice
    guess_mode: bool


@dataclass(frozen=True, slots=True)
class ControlPart:
    """A ControlNet on one request in one call: rows in the call, rows in the stream, and the scale of each residual."""

    net: str
    rows: slice
    stream_rows: slice
    scales: Sequence[float | torch.Tensor]


class Controls(AddOn):
    """The add-on. `nets` are the ControlNets by name; `workers` compute them, in a thread each by default.

    With `max_change` above 0, residuals are reused while their predicted relative change stays below it, which changes
    images.
    """

    def __init__(
        self,
        family: Family,
        nets: Mapping[str, Any],
        workers: Mapping[str, ControlWorker] | None = None,
        *,
        max_change: float = 0.0,
    ) -> None:
        if not 0 <= max_change < 1:
            raise BadInput(f"residuals cannot be reused up to a change of {max_change:g}; give 0 for never, or below 1")
        if not hasattr(family.network, "up_blocks"):
            raise BadInput("ControlNets are served for U-Nets only; use a Stable Diffusion 1.5 or XL pipeline")
        self._family, self._nets = family, nets
        given = dict(workers or {})
        self._workers = given | {name: ThreadWorker(net) for name, net in nets.items() if name not in given}
        self._keys = itertools.count()
        self._picked: dict[str, tuple[Any, list[slice], dict[str, torch.Tensor]]] = {}
        self.reuse = ResidualReuse(max_change)

    def close(self) -> None:
        """Stop the workers."""
        for worker in self._workers.values():
            worker.close()

    # AddOn interface ------------------------------------------------------------------------------------------------

    def joined(self, run: DenoisingRun) -> None:
        run.extras[SLOT] = []
        for use in run.request.controls:
            told = self._tell(run, use)
            run.extras[SLOT].append(told)
            self._workers[use.net].remember(told.key, told.image)

    @contextmanager
    def around(self, rows: BatchRows) -> Iterator[None]:
        parts = _parts(rows, num_residuals(self._family.network))
        if not parts:
            yield
            return
        rows.addon_inputs.residuals = self.reuse.find(rows, parts) or self.reuse.keep(
            rows, parts, self._started(parts, rows)
        )
        try:
            yield
        except Exception:
            self.reuse.drop(rows)
            raise

    def left(self, run: DenoisingRun) -> None:
        self.reuse.forget(run)
        for told in run.extras.pop(SLOT, ()):
            self._workers[told.use.net].forget(told.key)

    def _started(self, parts: Sequence[ControlPart], rows: BatchRows) -> _SummedResiduals:
        calls = {net: self._call(net, rows) for net in dict.fromkeys(part.net for part in parts)}
        return _SummedResiduals(parts, {net: self._workers[net].start(call) for net, call in calls.items()})

    def _tell(self, run: DenoisingRun, use: ControlUse) -> RegisteredImage:
        if use.net not in self._nets:
            raise UnknownName("ControlNet", use.net, self._nets)
        net = self._nets[use.net]
        guess_mode = run.request.guess_mode or bool(net.config.global_pool_conditions)
        rows = slice(run.num_rows - 1, run.num_rows) if guess_mode else slice(0, run.num_rows)
        size = size_of(self._family.pipeline, run.request)
        image = control_image(use.image, size, self._family.pipeline.vae_scale_factor, net)
        repeated = torch.cat([image] * (rows.stop - rows.start))
        return RegisteredImage(use, next(self._keys), repeated, rows, guess_mode)

    def _call(self, net: str, rows: BatchRows) -> ControlCall:
        """The rows of this call that the ControlNet acts on."""
        chosen = [
            (told.key, slice(first + told.rows.start, first + told.rows.stop))
            for run, first in zip(rows.runs, _firsts(rows), strict=True)
            for told in _acting(run)
            if told.use.net == net
        ]
        spans = [span for _, span in chosen]
        changing = _picked({"sample": rows.sample, "timestep": rows.timestep}, spans)
        return ControlCall(changing | self._lasting(net, rows.inputs, spans), tuple(key for key, _ in chosen))

    def _lasting(self, net: str, inputs: dict[str, torch.Tensor], spans: list[slice]) -> dict[str, torch.Tensor]:
        """The inputs that are constant between steps, cached so that the same tensor objects are returned."""
        source, old_spans, picked = self._picked.get(net, (None, [], {}))
        if source is not inputs or old_spans != spans:
            picked = _picked(inputs, spans)
            self._picked[net] = inputs, spans, picked
        return picked


@dataclass(frozen=True, slots=True)
class _SummedResiduals:
    """The residuals of all ControlNets of one call."""

    parts: Sequence[ControlPart]
    streams: Mapping[str, ResidualStream]

    def total(self, number: int, like: torch.Tensor) -> torch.Tensor:
        """The sum over all ControlNets for every row, in the order in which its request lists them."""
        total = torch.zeros_like(like)
        for part in self.parts:
            residual = self.streams[part.net].take(number)[part.stream_rows].to(like.device)
            total[part.rows] += residual * _on(part.scales[number], like.device)
        return total

    def write(self, into: Sequence[torch.Tensor]) -> None:
        """The same sums, each in one pass over memory and rounded once."""
        for first, stop in itertools.pairwise(self._bounds(len(into[0]))):
            parts = [part for part in self.parts if part.rows.start <= first < part.rows.stop]
            for number, tensor in enumerate(into):
                residuals = [self._rows(part, number, first, stop).to(tensor.device) for part in parts]
                weighted_sum(tensor[first:stop], residuals, [float(part.scales[number]) for part in parts])

    def _bounds(self, num_rows: int) -> list[int]:
        """Row boundaries: between two consecutive ones, the same ControlNets act on all rows."""
        ends = [end for part in self.parts for end in (part.rows.start, part.rows.stop)]
        return sorted({0, num_rows, *ends})

    def _rows(self, part: ControlPart, number: int, first: int, stop: int) -> torch.Tensor:
        """The residual of a ControlNet for these rows of the call."""
        offset = part.stream_rows.start - part.rows.start
        return self.streams[part.net].take(number)[first + offset : stop + offset]


def _picked(tensors: Mapping[str, torch.Tensor], spans: Sequence[slice]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([tensor[span] for span in spans]) for name, tensor in tensors.items()}


def _on(scale: float | torch.Tensor, device: torch.device) -> float | torch.Tensor:
    return scale.to(device) if isinstance(scale, torch.Tensor) else scale


def _parts(rows: BatchRows, num_residuals: int) -> list[ControlPart]:
    parts = []
    used: dict[str, int] = {}
    for run, first in zip(rows.runs, _firsts(rows), strict=True):
        for told in _acting(run):
            net, num_rows = told.use.net, told.rows.stop - told.rows.start
            begin = used.get(net, 0)
            used[net] = begin + num_rows
            scales = scales_of(_scale(run, told.use), num_residuals, told.guess_mode)
            in_call = slice(first + told.rows.start, first + told.rows.stop)
            parts.append(ControlPart(net, in_call, slice(begin, begin + num_rows), scales))
    return parts


def _acting(run: DenoisingRun) -> list[RegisteredImage]:
    """The ControlNets of a request that have a non-zero scale in its next step."""
    return [told for told in run.extras[SLOT] if _scale(run, told.use)]


def _scale(run: DenoisingRun, use: ControlUse) -> float:
    return use.scale_at(run.step, len(run.timesteps))


def _firsts(rows: BatchRows) -> list[int]:
    """The index of the first row of every request in the call."""
    return list(itertools.accumulate(rows.sizes, initial=0))[:-1]
