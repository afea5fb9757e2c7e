"""The parts of recorded calls one by one: seams, layouts, and the order in which graphs are recorded and played."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch
from torch.nn.functional import conv2d

from serving.stock import ENGINE_MARKS
from takeup.serving.diffusion.engine.tiny import build, tiny
from takeup.serving.diffusion.execution import convolutions as layout
from takeup.serving.diffusion.execution import cuda_graph as passes
from takeup.serving.diffusion.execution.convolutions import channels_last
from takeup.serving.diffusion.execution.cuda_graph import NUM_WARM_UPS, CudaGraphPass
from takeup.serving.diffusion.execution.executors import (
    MAX_STEPS_AHEAD,
    CudaGraphExecutor,
    num_residuals,
    residuals_added,
)

pytestmark = ENGINE_MARKS


class PretendedCuda:
    """Writes down what a device would be told."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.num_graphs = 0

    def graph_pool_handle(self) -> str:
        return "pool"

    def current_stream(self) -> Any:
        return self

    def wait_stream(self, other: Any) -> None:
        """Streams are all the same here."""

    def synchronize(self) -> None:
        """Nothing runs."""

    def Stream(self) -> Any:  # noqa: N802  as in torch
        return self

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        yield

    def CUDAGraph(self) -> Any:  # noqa: N802  as in torch
        self.num_graphs += 1
        return PretendedGraph(self.log, self.num_graphs)


class PretendedGraph:
    def __init__(self, log: list[str], number: int) -> None:
        self._log, self._number = log, number

    def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
        self._log.append(f"begin {self._number}")

    def capture_end(self) -> None:
        self._log.append(f"end {self._number}")

    def replay(self) -> None:
        self._log.append(f"play {self._number}")


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> PretendedCuda:
    cuda = PretendedCuda()
    monkeypatch.setattr(passes, "cuda", cuda)
    return cuda


def test_a_computation_is_tried_out_and_then_recorded_in_one_graph(pretended: PretendedCuda) -> None:
    def compute(at_seam: Any) -> Any:
        pretended.log.append("compute")
        return [torch.ones(1)]

    recording = CudaGraphPass(compute)
    recorded = list(pretended.log)
    result = recording.replay(lambda: pretended.log.append("seam"))

    assert recorded == ["compute"] * NUM_WARM_UPS + ["begin 1", "compute", "end 1"]
    assert pretended.log[len(recorded) :] == ["play 1"]
    assert [one.item() for one in result] == [1.0]


def test_a_seam_cuts_the_recording_in_two_and_is_passed_between_them(pretended: PretendedCuda) -> None:
    def compute(at_seam: Any) -> Any:
        pretended.log.append("first half")
        at_seam()
        pretended.log.append("second half")
        return ()

    one = CudaGraphPass(compute)
    recorded = list(pretended.log)
    one.replay(lambda: pretended.log.append("residuals"))

    assert recorded[-6:] == ["begin 1", "first half", "end 1", "begin 2", "second half", "end 2"]
    assert pretended.log[len(recorded) :] == ["play 1", "residuals", "play 2"]


def test_a_recording_is_ended_also_when_the_computation_fails(pretended: PretendedCuda) -> None:
    def compute(at_seam: Any) -> Any:
        if pretended.num_graphs:
            raise RuntimeError("not while recording")
        return ()

    with pytest.raises(RuntimeError, match="not while recording"):
        CudaGraphPass(compute)
    assert pretended.log == ["begin 1", "end 1"]


# Seams and layouts ----------------------------------------------------------------------------------------------------


def inputs() -> dict[str, Any]:
    random = torch.Generator().manual_seed(1)
    return {
        "sample": torch.randn(2, 4, 16, 16, generator=random),
        "timestep": torch.tensor([3.0, 500.0]),
        "encoder_hidden_states": torch.randn(2, 7, 64, generator=random),
        "added_cond_kwargs": {
            "text_embeds": torch.randn(2, 32, generator=random),
            "time_ids": torch.randn(2, 6, generator=random),
        },
        "return_dict": False,
    }


def test_residuals_enter_where_diffusers_adds_them() -> None:
    unet = tiny("takeup/tiny-sdxl").unet
    asked: dict[int, torch.Tensor] = {}

    def source(number: int, like: torch.Tensor) -> torch.Tensor:
        asked[number] = torch.randn(like.shape, generator=torch.Generator().manual_seed(number))
        return asked[number]

    with torch.no_grad():
        with residuals_added(unet, source):
            (ours,) = unet(**inputs())
        skips = [asked[number] for number in range(len(asked) - 1, 0, -1)]
        (theirs,) = unet(**inputs(), down_block_additional_residuals=skips, mid_block_additional_residual=asked[0])
        (plain,) = unet(**inputs())

    assert sorted(asked) == list(range(num_residuals(unet)))
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, plain)  # and the hooks are gone
    assert not any(block._forward_pre_hooks for block in unet.up_blocks)


def test_the_seam_is_passed_once_and_before_any_residual() -> None:
    unet = tiny("takeup/tiny-sdxl").unet
    order: list[object] = []

    def source(number: int, like: torch.Tensor) -> torch.Tensor:
        order.append(number)
        return torch.zeros_like(like)

    with torch.no_grad(), residuals_added(unet, source, lambda: order.append("seam")):
        unet(**inputs())

    assert order[0] == "seam"
    assert order.count("seam") == 1


@pytest.mark.parametrize("name", ["takeup/tiny-sd15", "takeup/tiny-sdxl"])
def test_blocks_keep_channels_last_and_their_numbers(name: str) -> None:
    plain, laid_out = (build(name).unet for _ in range(2))
    channels_last(laid_out)
    width = plain.config.cross_attention_dim
    given = {**inputs(), "encoder_hidden_states": inputs()["encoder_hidden_states"][..., :width]}
    seen: list[bool] = []
    for module in laid_out.modules():
        if type(module).__name__ == "Transformer2DModel":
            module.register_forward_hook(
                lambda _module, _args, out: seen.append(out[0].is_contiguous(memory_format=torch.channels_last))
            )
    with torch.no_grad():
        (ours,), (theirs,) = laid_out(**given), plain(**given)

    assert torch.allclose(ours, theirs, atol=1e-5)
    assert seen
    assert all(seen)


def first_convolution() -> Any:
    """Of a network that is laid out, with a bias that counts."""
    unet = build("takeup/tiny-sdxl").unet
    torch.nn.init.normal_(unet.conv_in.bias)
    return channels_last(unet).conv_in


@torch.no_grad()
def test_the_first_convolution_has_its_bias_among_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    biases: list[Any] = []

    def noting(image: torch.Tensor, weight: torch.Tensor, bias: Any = None, **others: Any) -> torch.Tensor:
        biases.append(bias)
        return conv2d(image, weight, bias, **others)

    monkeypatch.setattr(layout, "conv2d", noting)
    layer, image = first_convolution(), torch.randn(2, 4, 5, 6)
    ours = layer(image)

    torch.testing.assert_close(ours, conv2d(image, layer.weight, layer.bias, padding=1))
    assert biases == [None]
    assert ours.is_contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def test_a_first_convolution_that_is_patched_in_place_computes_with_the_patch() -> None:
    layer, image = first_convolution(), torch.randn(1, 4, 5, 6)
    before = layer(image)
    layer.weight.mul_(-2)
    after = layer(image)

    bias = layer.bias[:, None, None]
    torch.testing.assert_close(after - bias, -2 * (before - bias))


@pytest.mark.parametrize("odd", [{"padding": 0}, {"stride": 2}, {"bias": False}, {"padding_mode": "circular"}])
def test_a_first_convolution_of_another_kind_is_left_alone(odd: dict[str, Any]) -> None:
    network = torch.nn.Module()
    network.conv_in = torch.nn.Conv2d(4, 8, 3, **{"padding": 1} | odd)
    channels_last(network)

    assert "forward" not in vars(network.conv_in)


def test_the_device_is_never_more_than_two_steps_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []

    class Event:
        num_made = 0

        def __init__(self) -> None:
            Event.num_made += 1
            self._number = Event.num_made

        def record(self) -> None:
            """Sent."""

        def synchronize(self) -> None:
            waited.append(self._number)

    class Cuda:
        is_available = is_initialized = staticmethod(lambda: True)

    pretended = Cuda()
    pretended.Event = Event  # type: ignore[attr-defined]
    monkeypatch.setattr("takeup.serving.diffusion.execution.executors.cuda", pretended)
    compute = CudaGraphExecutor()
    for _ in range(5):
        compute.pace()

    assert waited == [1, 2, 3]
    assert MAX_STEPS_AHEAD == 2
