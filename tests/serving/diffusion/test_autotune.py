"""Choosing by measuring: what is kept, what is not chosen, and when nothing is measured."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")

import torch

from serving.stock import ENGINE_MARKS
from takeup.serving.diffusion.execution import autotune as choices
from takeup.serving.diffusion.execution.autotune import NUM_CALLS, NUM_ROUNDS, Autotuner, Implementation, shape_key

pytestmark = ENGINE_MARKS


class Trials:
    """Stands in for a device on which each way takes as long as it is told."""

    def __init__(self, **times_us: float) -> None:
        self.times_us = times_us
        self.timed: list[str] = []

    def way(self, name: str, answer: Callable[[torch.Tensor], torch.Tensor]) -> Implementation:
        def compute(given: torch.Tensor) -> torch.Tensor:
            return answer(given)

        compute.__name__ = name
        return compute

    def time_us(self, way: Any, _given: Any) -> float:
        self.timed.append(way.__name__)
        return self.times_us[way.__name__]


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> Trials:
    made = Trials(usual=5.0, quick=3.0, slow=9.0)
    monkeypatch.setattr(choices, "_can_measure", lambda: True)
    monkeypatch.setattr(choices, "_time_us", made.time_us)
    return made


def same(given: torch.Tensor) -> torch.Tensor:
    return given * 2


def ways(trials: Trials, **others: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Implementation]:
    return {name: trials.way(name, answer) for name, answer in {"usual": same, **others}.items()}


GIVEN = torch.arange(1.0, 5.0)


def chosen(
    found: Autotuner, offered: dict[str, Implementation], operation: str = "double", shape: Any = "small"
) -> str:
    way = found.way(operation, shape, offered, lambda: (GIVEN.clone(),))
    return next(name for name, one in offered.items() if one is way)


def test_the_fastest_way_is_kept_and_measured_once_for_a_shape(trials: Trials) -> None:
    found, offered = Autotuner(), ways(trials, slow=same, quick=same)
    first, again = chosen(found, offered), chosen(found, offered)
    num_timed = len(trials.timed)
    chosen(found, offered, shape="large")

    assert (first, again) == ("quick", "quick")
    assert num_timed == 3
    assert len(trials.timed) == 6
    assert [(one.operation, one.shape, one.way) for one in found.made] == [
        ("double", "small", "quick"),
        ("double", "large", "quick"),
    ]
    assert dict(found.made[0].times_us) == {"usual": 5.0, "slow": 9.0, "quick": 3.0}


def test_a_way_that_fails_is_out(trials: Trials) -> None:
    def fail(_given: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no kernel for this shape")

    assert chosen(Autotuner(), ways(trials, quick=fail)) == "usual"
    assert trials.timed == ["usual"]


@pytest.mark.parametrize("wrong", [lambda given: given * 2.1, lambda given: given / 0 * 0, torch.zeros_like])
def test_a_way_that_answers_otherwise_is_out_and_said_so(
    trials: Trials, caplog: pytest.LogCaptureFixture, wrong: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    with caplog.at_level(logging.WARNING):
        assert chosen(Autotuner(), ways(trials, quick=wrong)) == "usual"

    assert "'quick' answers otherwise" in caplog.text


def test_rounding_to_sixteen_bits_is_no_other_answer(trials: Trials) -> None:
    rounding = ways(trials, quick=lambda given: (given.bfloat16() * 2).float() * 1.004)

    assert chosen(Autotuner(), rounding) == "quick"


def test_nothing_is_measured_while_a_graph_is_recorded_and_that_is_not_remembered(
    trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, offered = Autotuner(), ways(trials, quick=same)
    monkeypatch.setattr(choices, "_can_measure", lambda: False)
    while_recorded = chosen(found, offered)
    monkeypatch.setattr(choices, "_can_measure", lambda: True)

    assert while_recorded == "usual"
    assert chosen(found, offered) == "quick"


def test_an_operation_that_is_off_stays_with_the_usual_way_until_it_is_on_again(trials: Trials) -> None:
    found, offered = Autotuner(), ways(trials, quick=same)
    found.off = frozenset({"double"})
    names = [chosen(found, offered), chosen(found, offered, "other")]
    found.off = frozenset()

    assert names == ["usual", "quick"]
    assert chosen(found, offered) == "quick"


def test_forgotten_choices_are_made_again(trials: Trials) -> None:
    found, offered = Autotuner(), ways(trials, quick=same, slow=same)
    before = chosen(found, offered)
    trials.times_us = {"usual": 5.0, "quick": 8.0, "slow": 1.0}
    kept = chosen(found, offered)
    found.forget()

    assert (before, kept, chosen(found, offered)) == ("quick", "quick", "slow")


def test_ways_that_write_are_tried_on_tensors_of_their_own(trials: Trials) -> None:
    given = torch.ones(3)
    offered = ways(trials, quick=lambda one: one.mul_(2))
    way = Autotuner().way("double", "small", offered, lambda: (given.clone(),))
    way(given)

    assert way is offered["quick"]
    assert given.tolist() == [2.0, 2.0, 2.0]


def test_a_single_way_needs_no_measuring(trials: Trials) -> None:
    assert chosen(Autotuner(), ways(trials)) == "usual"
    assert trials.timed == []


def test_without_a_device_the_usual_way_stands() -> None:
    offered: dict[str, Implementation] = {"usual": same, "other": lambda given: given + given}

    assert Autotuner().way("double", "small", offered, lambda: (GIVEN,)) is same


def test_choices_depend_on_sizes_layout_and_precision() -> None:
    tensor = torch.zeros(2, 4)
    others = tensor[:1], tensor.T.contiguous().T, tensor.bfloat16()

    assert shape_key(tensor) == shape_key(torch.ones(2, 4))
    assert len({shape_key(one) for one in (tensor, *others)}) == 4


# On a device ----------------------------------------------------------------------------------------------------------


class PretendedCuda:
    """Writes down what a device would be told; a replay takes twenty microseconds a call."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def Stream(self) -> Any:  # noqa: N802  as in torch
        return self

    def Event(self, enable_timing: bool) -> Any:  # noqa: N802  as in torch
        return self

    def CUDAGraph(self) -> Any:  # noqa: N802  as in torch
        return self

    def current_stream(self) -> Any:
        return self

    @contextmanager
    def stream(self, _stream: Any) -> Iterator[None]:
        yield

    def wait_stream(self, _other: Any) -> None:
        """Streams are all the same here."""

    def synchronize(self) -> None:
        """Nothing runs."""

    def record(self) -> None:
        """Events have no time."""

    def elapsed_time(self, _other: Any) -> float:
        return 0.02 * NUM_CALLS

    def capture_begin(self, capture_error_mode: str) -> None:
        self.log.append("begin")

    def capture_end(self) -> None:
        self.log.append("end")

    def replay(self) -> None:
        self.log.append("replay")


def test_a_way_is_called_before_it_is_recorded_and_timed_by_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = PretendedCuda()
    monkeypatch.setattr(choices, "cuda", cuda)

    def way(_given: torch.Tensor) -> torch.Tensor:
        cuda.log.append("call")
        return GIVEN

    assert choices._time_us(way, (GIVEN,)) == pytest.approx(20.0)
    assert cuda.log == ["call", "begin", *["call"] * NUM_CALLS, "end", *["replay"] * (1 + NUM_ROUNDS)]


def test_a_recording_is_ended_when_a_way_fails_inside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = PretendedCuda()
    monkeypatch.setattr(choices, "cuda", cuda)

    def way(_given: torch.Tensor) -> torch.Tensor:
        if "begin" in cuda.log:
            raise RuntimeError("not while recording")
        return GIVEN

    with pytest.raises(RuntimeError, match="not while recording"):
        choices._time_us(way, (GIVEN,))
    assert cuda.log == ["begin", "end"]
