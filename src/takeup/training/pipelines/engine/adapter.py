"""The only module that uses private names of torch.distributed.pipelining, which may change with any version.

A schedule is converted to actions; PyTorch validates them and adds sends and receives. Replacing the actions between
two iterations changes the schedule of a running job, provided that all ranks do it.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from takeup.errors import BadInput, MissingEngine
from takeup.training.pipelines.engine.messages import PendingReceives
from takeup.training.pipelines.engine.stopwatch import RankStopwatch, record_event
from takeup.training.pipelines.engine.transport import Carrier, StageRoutes
from takeup.training.pipelines.schedule import OpKind, Schedule

NEEDED = "PyTorch 2.9 or newer, whose pipeline runtime this engine knows"
INSTALL = "run pip install 'takeup[torch]'"

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import schedules
    from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime
except ImportError as error:
    raise MissingEngine(f"the engine pytorch needs {NEEDED}; {INSTALL}") from error


INNER_NAMES = ("_maybe_compute_loss", "_prepare_schedule_with_comms", "_step_microbatches")
INNER_RECEIVES = ("fwd_recv_ops", "bwd_recv_ops")


def check_version(runtime: object = _PipelineScheduleRuntime, names: Sequence[str] = INNER_NAMES) -> None:
    """Raise if PyTorch's runtime (class or instance) lacks a private attribute that this module uses."""
    missing = [name for name in names if not hasattr(runtime, name)]
    if missing:
        raise MissingEngine(
            f"torch {torch.__version__} has no {', '.join(missing)} in its pipeline runtime; "
            f"the engine pytorch needs {NEEDED}: {INSTALL}"
        )


check_version()
# Parsed from text, because the text format is stable across versions.
KINDS = {kind: _Action.from_str(f"0{kind.letter}0").computation_type for kind in OpKind}
DIRECTIONS = {_ComputationType.RECV_F: 0, _ComputationType.RECV_B: 1}  # of received messages


def actions_of(schedule: Schedule) -> dict[int, list[_Action | None]]:
    """Convert the operation order of every rank to PyTorch actions."""
    return {
        rank: [_Action(op.stage, KINDS[op.kind], op.microbatch) for op in schedule.ops(rank)]
        for rank in range(len(schedule.codes))
    }


def receive_first(actions: Sequence[_Action], early: Collection[int] = (0, 1)) -> list[_Action]:
    """Post receives of these directions at the start of an iteration: each has its own buffer, so none is seen late."""
    return sorted(actions, key=lambda action: DIRECTIONS.get(action.computation_type) not in early)


def ranks_of(stage: Any) -> list[int]:
    """Global ranks of all stages."""
    return [*dist.get_process_group_ranks(stage.group)]


def carrier_of(stage: Any) -> Carrier:
    """The transport of ordinary messages between stages on this device."""
    if stage.device.type == "cpu":
        return "gloo"
    group: Any = stage.group or dist.group.WORLD
    return "nccl" if group._get_backend(stage.device).name() == "nccl" else "delegates"


class PipelineRuntime(_PipelineScheduleRuntime):
    """PyTorch's pipeline runtime with one stage per rank, per-operation timing and a replaceable schedule."""

    def __init__(
        self, stage: Any, num_microbatches: int, watch: RankStopwatch, timeout: timedelta, **options: Any
    ) -> None:
        super().__init__([stage], num_microbatches, **options)  # type: ignore[no-untyped-call]
        check_version(self, INNER_RECEIVES)
        self._watch = watch
        self._lowered: list[_Action] = []
        carrier, number = carrier_of(stage), stage.stage_index
        # Messages for an accelerator are copied there by the waiting thread, as soon as they have arrived.
        eager = (lambda: watch.is_on) if carrier == "gloo" else (lambda: True)
        marks = [_ArrivalEvents(watch, stage.device), _ArrivalEvents(watch, stage.device)]
        words = (
            f"what stage {number - 1} sends to stage {number}, the activations of micro-batch",
            f"what stage {number + 1} sends to stage {number}, the gradients of micro-batch",
        )
        self.fwd_recv_ops, self.bwd_recv_ops = (
            PendingReceives(partial(watch.note_arrival, direction), words[direction], timeout, eager, marks[direction])
            for direction in range(2)
        )
        self._paths = StageRoutes(stage, ranks_of(stage), (self.fwd_recv_ops, self.bwd_recv_ops), timeout, carrier)
        _time_stage(stage, watch)

    def delegate(self, links: Collection[int]) -> None:
        """Use delegates on these links from the next iteration on; both ranks of a link must call this."""
        self._paths.use(links)
        self._arrange()

    @property
    def failed(self) -> frozenset[int]:
        """Failed links of this rank, whose messages are carried by delegates."""
        return self._paths.failed

    def use(self, schedule: Schedule) -> None:
        """Use this schedule from the next iteration on; all ranks must call this before the same iteration."""
        expected = (tuple(range(self._num_stages)), self._n_microbatches)
        if (schedule.placement, schedule.num_microbatches) != expected:
            raise BadInput(
                f"the schedule places stages on ranks {schedule.placement} for {schedule.num_microbatches} "
                f"micro-batches; this pipeline has one stage on each of {expected[0][-1] + 1} ranks and {expected[1]}"
            )
        self._prepare_schedule_with_comms(actions_of(schedule), format="compute_only")
        self._lowered = self.pipeline_order_with_comms[self.rank]
        self._arrange()

    def _arrange(self) -> None:
        """Reorder the actions so that receives are posted early where that is allowed."""
        early = [direction for direction in range(2) if self._paths.may_receive_early(direction)]
        self.pipeline_order_with_comms[self.rank] = receive_first(self._lowered, early)

    def _step_microbatches(self, *arguments: Any, **named: Any) -> Any:
        self._paths.begin()
        result = super()._step_microbatches(*arguments, **named)
        self._paths.flush()
        return result

    def _maybe_compute_loss(self, stage: Any, *arguments: Any) -> None:
        compute = partial(super()._maybe_compute_loss, stage, *arguments)
        if stage.is_last:
            self._watch.prolong_forward(compute)


class _ArrivalEvents:
    """Arrival times of receives on device streams: a side stream waits for each and records an event after it."""

    def __init__(self, watch: RankStopwatch, device: torch.device) -> None:
        self._watch = watch
        self._device = device
        self._stream: Any = None

    def __call__(self, works: Sequence[Any]) -> Any:
        """Record an event after these receives; None if this iteration is not measured."""
        if not self._watch.is_on:
            return None
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            for work in works:
                work.wait()
            return record_event()


def _time_stage(stage: Any, watch: RankStopwatch) -> None:
    """Wrap the compute methods of the stage so that the stopwatch times them."""
    forward, backward, weight = stage.forward_one_chunk, stage.backward_one_chunk, stage.backward_weight_one_chunk

    def timed_backward(chunk: int, *arguments: Any, full_backward: bool = True, **named: Any) -> Any:
        kind = OpKind.FULL_BACKWARD if full_backward else OpKind.INPUT_GRADIENT
        return watch.timed(kind, chunk, partial(backward, chunk, *arguments, full_backward=full_backward, **named))

    stage.forward_one_chunk = _timed(watch, OpKind.FORWARD, forward)
    stage.backward_one_chunk = timed_backward
    stage.backward_weight_one_chunk = _timed(watch, OpKind.WEIGHT_GRADIENT, weight)


def _timed(watch: RankStopwatch, kind: OpKind, compute: Callable[..., Any]) -> Callable[..., Any]:
    def timed(chunk: int, *arguments: Any, **named: Any) -> Any:
        return watch.timed(kind, chunk, partial(compute, chunk, *arguments, **named))

    return timed


def register_by_name(adaptive: type) -> None:
    """Let PyTorch's `get_schedule_class` find a schedule by the name of its class, as it finds those of PyTorch."""
    plain: Callable[[str], type] = schedules.get_schedule_class

    def found(schedule_name: str) -> type:
        return adaptive if schedule_name.lower() == adaptive.__name__.lower() else plain(schedule_name)

    schedules.get_schedule_class = found
