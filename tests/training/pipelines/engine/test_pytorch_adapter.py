"""The adapter: our schedules as PyTorch's actions, a missing or strange PyTorch, and pipelines that do not fit."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from takeup.errors import BadInput, MissingEngine
from takeup.training.pipelines.planners import POLICIES, find_policy
from takeup.training.pipelines.profile import Link
from training.pipeline_profiles import slow

torch = pytest.importorskip("torch")
schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
from takeup.training.pipelines.engine.adapter import (  # noqa: E402
    INNER_RECEIVES,
    actions_of,
    carrier_of,
    check_version,
    receive_first,
)
from takeup.training.pipelines.engine.adaptive import (  # noqa: E402
    AdaptiveSchedule,
    SmoothedLinks,
    estimate_links,
)

PROFILE = slow(4, 8, {1: 25})


@dataclass
class FakeStage:
    """As much of a stage as is looked at before anything is started."""

    device: object
    group_size: int = 4
    num_stages: int = 4
    stage_index: int = 1
    group_rank: int = 1
    group: object = None


@pytest.mark.parametrize("name", POLICIES)
def test_actions_are_written_as_our_operations(name: str) -> None:
    schedule = find_policy(name).plan(PROFILE).schedule

    actions = actions_of(schedule)

    assert "".join(",".join(map(str, actions[rank])) + "\n" for rank in range(4)) == schedule.to_csv()


def test_receives_come_first_and_all_else_stays_in_order() -> None:
    texts = ["1RECV_F0", "1F0", "1SEND_F0", "1RECV_B0", "1RECV_F1", "1F1", "1B0"]
    actions = [schedules._Action.from_str(text) for text in texts]

    found = [*map(str, receive_first(actions))]

    assert found == ["1RECV_F0", "1RECV_B0", "1RECV_F1", "1F0", "1SEND_F0", "1F1", "1B0"]


def test_receives_of_one_direction_can_keep_their_turn() -> None:
    texts = ["1RECV_F0", "1F0", "1SEND_F0", "1RECV_B0", "1RECV_F1", "1F1", "1B0"]
    actions = [schedules._Action.from_str(text) for text in texts]

    found = [*map(str, receive_first(actions, early=[1]))]

    assert found == ["1RECV_B0", "1RECV_F0", "1F0", "1SEND_F0", "1RECV_F1", "1F1", "1B0"]


@pytest.mark.parametrize(
    ("device", "backend", "carrier"),
    [("cpu", "gloo", "gloo"), ("cuda:1", "nccl", "nccl"), ("cuda:1", "gloo", "delegates")],
)
def test_what_carries_messages_follows_from_device_and_backend(device: str, backend: str, carrier: str) -> None:
    class Named:
        def name(self) -> str:
            return backend

    class Group:
        def _get_backend(self, asked: object) -> Named:
            assert str(asked) == device
            return Named()

    assert carrier_of(FakeStage(torch.device(device), group=Group())) == carrier


def test_without_torch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "takeup.training.pipelines.engine.adapter"
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(MissingEngine, match=r"needs PyTorch .* run pip install 'takeup\[torch\]'"):
        import_module(name)


def test_without_torch_the_public_names_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("takeup.training.pipelines.engine.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)

    with pytest.raises(MissingEngine, match=r"needs the package 'torch'; run pip install 'takeup\[torch\]'"):
        import_module("takeup.training.pipelines.engine").AdaptiveSchedule  # noqa: B018


def test_a_runtime_without_what_we_need_is_refused_with_its_version() -> None:
    class Other:
        def _step_microbatches(self) -> None: ...

    with pytest.raises(MissingEngine, match="has no _maybe_compute_loss, _prepare_schedule_with_comms in its"):
        check_version(Other)
    with pytest.raises(MissingEngine, match="has no fwd_recv_ops, bwd_recv_ops in its"):
        check_version(Other(), INNER_RECEIVES)


def test_a_stage_on_a_device_without_events_is_refused() -> None:
    with pytest.raises(BadInput, match="the stage is on mps:0, and operations are timed on the CPU and on CUDA only"):
        AdaptiveSchedule(FakeStage(torch.device("mps:0")), 8, None)


def test_several_stages_on_a_rank_are_refused() -> None:
    with pytest.raises(BadInput, match="found 8 stages on 4 ranks"):
        AdaptiveSchedule(FakeStage(torch.device("cpu"), num_stages=8), 8, None)


def test_stages_that_are_not_in_the_order_of_ranks_are_refused() -> None:
    with pytest.raises(BadInput, match="stage 1 is on rank 2 of its group"):
        AdaptiveSchedule(FakeStage(torch.device("cpu"), group_rank=2), 8, None)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan"), float("inf")])
def test_a_timeout_that_is_none_is_refused(timeout_s: float) -> None:
    with pytest.raises(BadInput, match="timeout_s is"):
        AdaptiveSchedule(FakeStage(torch.device("cpu")), 8, None, timeout_s=timeout_s)


def test_memory_for_no_micro_batch_at_all_is_refused() -> None:
    with pytest.raises(BadInput, match="too little memory for the activations of one micro-batch"):
        AdaptiveSchedule(FakeStage(torch.device("cpu")), 8, None, max_live=0)


@pytest.mark.parametrize("planner", ["zbv", "interleaved_1f1b"])
def test_planners_that_cut_stages_are_refused(planner: str) -> None:
    with pytest.raises(BadInput, match=f"the planner '{planner}' cuts stages into chunks"):
        AdaptiveSchedule(FakeStage(torch.device("cpu")), 8, None, planner=planner)


def test_no_micro_batches_are_refused() -> None:
    with pytest.raises(BadInput, match="num_microbatches is 0"):
        AdaptiveSchedule(FakeStage(torch.device("cpu")), 0, None)


def test_planning_after_no_iteration_is_refused() -> None:
    with pytest.raises(BadInput, match="every is 0"):
        AdaptiveSchedule(FakeStage(torch.device("cpu")), 8, None, every=0)


def test_links_are_estimated_from_the_stamps_of_both_ends() -> None:
    handed_ns = 10_000_000 * np.arange(1, 7)

    (link,) = estimate_links(stamped_rows(handed_ns, handed_ns + 3_000_000, handed_ns + 3_000_000))

    assert link.delay_s == pytest.approx(0.003, abs=1e-6)


def test_a_latency_with_a_little_jitter_is_not_taken_for_a_service() -> None:
    """Messages that follow a short gap are late by chance, by as much as if they had queued for 31 ms."""
    handed_ns = 1e6 * np.cumsum([32, 32, 32, 32, 30, 32, 62, 247, 123, 92])
    usable_ns = handed_ns + 1e6 * np.array([60.4, 60.5, 60.4, 60.3, 61.4, 60.4, 60.5, 60.3, 60.4, 60.4])

    (link,) = estimate_links(stamped_rows(handed_ns, usable_ns, usable_ns))

    assert link.service_s == 0
    assert link.latency_s == pytest.approx(0.0604, abs=0.0005)


def stamped_rows(
    handed_ns: npt.NDArray[Any], there_ns: npt.NDArray[Any], back_ns: npt.NDArray[Any]
) -> npt.NDArray[np.int64]:
    """What two ranks note that send at the same moments, with clocks that are seven seconds apart."""
    nothing, ahead_ns = np.zeros(handed_ns.size), 7_000_000_000
    first = np.concatenate([[1, 2, 3], handed_ns, nothing, nothing, back_ns])
    last = np.concatenate([[4, 5, 6], nothing, handed_ns + ahead_ns, there_ns + ahead_ns, nothing])
    return np.stack([first, last]).astype(np.int64)


def test_links_to_plan_for_are_chosen_from_the_recent_ones() -> None:
    links = SmoothedLinks(max)
    chosen = [links.after([Link(latency_s, 1e-3), Link()])[0] for latency_s in (9.0, 1.0, 2.0, 3.0, 1.0)]

    assert [link.latency_s for link in chosen] == [9.0, 9.0, 9.0, 9.0, 3.0]
    assert chosen[-1].service_s == 1e-3


def test_latency_and_service_to_plan_for_were_measured_together() -> None:
    links = SmoothedLinks(lambda delays_s: sum(delays_s) / len(delays_s))
    measured = [Link(0.060, 0.0), Link(0.030, 0.031)]

    chosen = [links.after([link])[0] for link in measured][-1]

    assert chosen in measured


def test_the_adaptive_schedule_is_found_by_its_name_as_those_of_pytorch_are() -> None:
    from torch.distributed.pipelining import schedules

    from takeup.training.pipelines.engine import AdaptiveSchedule

    assert schedules.get_schedule_class("adaptiveschedule") is AdaptiveSchedule
    assert schedules.get_schedule_class("1F1B") is schedules.Schedule1F1B
    with pytest.raises(ValueError, match="Unknown schedule name"):
        schedules.get_schedule_class("none")
