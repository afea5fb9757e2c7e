"""Which way messages take: watched connections of the host, NCCL's own, or delegates where links are slow."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from takeup.training.pipelines.engine import transport as paths  # noqa: E402
from takeup.training.pipelines.engine.transport import Carrier, StageRoutes  # noqa: E402

TIMEOUT = timedelta(seconds=20)


class Stage:
    """The second of three stages, which names its operations."""

    stage_index = 1

    def __init__(self) -> None:
        for name in ("fwd", "bwd"):
            for verb in ("send", "recv"):
                setattr(self, f"get_{name}_{verb}_ops", lambda m, words=f"{name} {verb}": [f"{words} {m}"])


class Arrivals:
    """Notes which receives were begun by us."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, Any]] = []

    def posted(self, microbatch: int, works: Any) -> None:
        self.begun.append((microbatch, works))


class Way:
    """Notes what it is given."""

    failed = False

    def __init__(self, number: int) -> None:
        self.number = number
        self.delegated = False
        self.sent: list[Any] = []

    def send(self, microbatch: int, ops: Any) -> None:
        self.sent += ops

    def receive(self, microbatch: int, ops: Any) -> Any:
        return [f"began {op}" for op in ops]


class Made:
    """A stage with its paths, and all that they do."""

    def __init__(self, carrier: Carrier, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ways = {link: Way(link) for link in (0, 1)}
        monkeypatch.setattr(paths, "_connect", lambda stage, link, ranks, timeout: self.ways[link])
        self.stage: Any = Stage()
        self.arrivals = (Arrivals(), Arrivals())
        self.paths = StageRoutes(self.stage, [0, 1, 2], self.arrivals, TIMEOUT, carrier)  # type: ignore[arg-type]


@pytest.fixture
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(request.param, monkeypatch)


@pytest.mark.parametrize("made", ["gloo", "delegates"], indirect=True)
def test_without_nccl_pytorch_is_left_nothing_to_send_or_receive(made: Made) -> None:
    left = made.stage.get_fwd_send_ops(3), made.stage.get_bwd_send_ops(4), made.stage.get_bwd_recv_ops(5)

    assert left == ([], [], [])
    assert (made.ways[1].sent, made.ways[0].sent) == (["fwd send 3"], ["bwd send 4"])
    assert made.arrivals[1].begun == [(5, ["began bwd recv 5"])]


@pytest.mark.parametrize("made", ["nccl"], indirect=True)
def test_with_nccl_ordinary_messages_stay_with_pytorch(made: Made) -> None:
    assert made.stage.get_fwd_send_ops(3) == ["fwd send 3"]
    assert made.stage.get_fwd_recv_ops(3) == ["fwd recv 3"]
    assert made.arrivals[0].begun == []


@pytest.mark.parametrize("made", ["nccl"], indirect=True)
def test_with_nccl_only_a_slow_link_has_delegates_and_may_receive_early(made: Made) -> None:
    made.paths.use({1})

    assert (made.stage.get_fwd_send_ops(0), made.stage.get_bwd_recv_ops(0)) == ([], [])
    assert made.stage.get_bwd_send_ops(0) == ["bwd send 0"]
    assert [made.paths.may_receive_early(direction) for direction in range(2)] == [False, True]


@pytest.mark.parametrize("made", ["gloo", "delegates"], indirect=True)
def test_on_the_host_all_receives_may_be_early(made: Made) -> None:
    assert [made.paths.may_receive_early(direction) for direction in range(2)] == [True, True]


@pytest.mark.parametrize(("made", "wanted"), [("gloo", False), ("nccl", False), ("delegates", True)], indirect=["made"])
def test_an_accelerator_without_nccl_has_delegates_on_every_link(made: Made, wanted: bool) -> None:
    before = [way.delegated for way in made.ways.values()]
    made.paths.use({0})
    made.paths.use(())

    assert before == [way.delegated for way in made.ways.values()] == [wanted, wanted]
