"""First steps without LoRAs are shared by edits with any LoRAs, and change nothing but when the LoRAs begin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

from serving.lora_cases import write_loras
from serving.stock import ENGINE_MARKS, gap
from takeup.errors import BadInput
from takeup.serving.diffusion.addons.lora.addon import Loras
from takeup.serving.diffusion.addons.lora.loading import ThreadLoader
from takeup.serving.diffusion.addons.lora.targets import LoraTargets
from takeup.serving.diffusion.contract import DenoisingRun
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine, Ticket
from takeup.serving.diffusion.engine.tiny import build
from takeup.serving.editing.contract import EditRequest
from takeup.serving.editing.masked.edit_state import EditState, ErrorChecks
from takeup.serving.editing.masked.editor import MaskedEditor, report_of
from takeup.serving.editing.templates.store import TemplateStore, TierCapacities
from takeup.serving.model import LoraUse, Request
from takeup.serving.scheduling.adapters import AdapterLRU, usual_bound

pytestmark = ENGINE_MARKS

EXACT = 1e-5
NUM_STEPS, NUM_SHARED = 4, 2
IMAGE = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
MASK = np.zeros((32, 32), np.float32)
MASK[8:20, 8:20] = 1
PLAIN = Request("a cat", num_steps=NUM_STEPS, guidance=4.0, seed=5)
PAPER, FILM = (replace(PLAIN, loras=(LoraUse(name, 0.9),)) for name in ("paper", "film"))


class Session:
    """An engine with LoRAs and an editor."""

    def __init__(self, files: dict[str, Path], **options: Any) -> None:
        pipeline = build("takeup/tiny-sdxl")
        family = family_of(pipeline)
        self.editor = MaskedEditor(family, grow=0, checks=ErrorChecks(0), identity=str, **options)
        self.loras = Loras(family, ThreadLoader(files, LoraTargets.of(pipeline)))
        self.engine = StepEngine(pipeline, add_ons=[self.loras, *self.editor.add_ons])

    def begin(self, request: Request, num_shared: int = NUM_SHARED, **options: Any) -> Ticket:
        asked = EditRequest(IMAGE, MASK, shared_steps=num_shared, **options)
        return self.engine.enter(self.editor.prepare(request, asked))

    def edit(self, request: Request, num_shared: int = NUM_SHARED, **options: Any) -> Ticket:
        ticket = self.begin(request, num_shared, **options)
        self.engine.run()
        assert ticket.state == "done"
        return ticket

    def close(self) -> None:
        self.loras.close()
        self.editor.close()


Start = Callable[..., Session]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_loras(tmp_path_factory.mktemp("loras"))


@pytest.fixture
def start(files: dict[str, Path]) -> Iterator[Start]:
    opened: list[Session] = []

    def open_one(**options: Any) -> Session:
        opened.append(Session(files, **options))
        return opened[-1]

    yield open_one
    for session in opened:
        session.close()


def editing_of(run: DenoisingRun) -> EditState:
    editing: EditState = run.extras["edit"]
    return editing


def masked_steps(ticket: Ticket) -> list[bool]:
    """Of every step, whether only a part was computed."""
    return [share < 1 for share in editing_of(ticket.run).computed_shares]


@pytest.mark.parametrize("before", [PLAIN, FILM])
def test_the_first_steps_are_those_of_edits_without_or_with_other_loras(start: Start, before: Request) -> None:
    alone, session = start().edit(PAPER), start()
    session.edit(before)
    first, second = session.edit(PAPER), session.edit(PAPER)

    assert masked_steps(alone) == [False] * NUM_STEPS
    assert masked_steps(first) == [True] * NUM_SHARED + [False] * (NUM_STEPS - NUM_SHARED)
    assert masked_steps(second) == [True] * NUM_STEPS
    for ticket in (first, second):
        assert gap(ticket.result().latents, alone.result().latents) < EXACT
        assert report_of(ticket.run).plain_steps == NUM_SHARED


def test_loras_are_felt_after_the_shared_steps_only(start: Start) -> None:
    plain, none = start().edit(PLAIN), start().edit(PAPER, 0)
    some, most = start().edit(PAPER, 2), start().edit(PAPER, NUM_STEPS)

    distances = [gap(one.result().latents, plain.result().latents) for one in (none, some, most)]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] > 1e-4  # at least the last step has its LoRAs
    assert report_of(most.run).plain_steps == NUM_STEPS - 1


def test_nothing_is_shared_between_other_numbers_of_steps_or_with_exact_edits(start: Start) -> None:
    session = start()
    session.edit(FILM, 2)
    other, exact = session.edit(PAPER, 1), session.edit(PAPER, 2, exact=True)

    assert masked_steps(other) == masked_steps(exact) == [False] * NUM_STEPS
    assert report_of(exact.run).plain_steps == 0
    assert gap(exact.result().latents, start().edit(PAPER, 0).result().latents) < EXACT


def test_edits_without_loras_share_all_there_is(start: Start) -> None:
    session = start()
    session.edit(PLAIN)

    assert masked_steps(session.edit(PLAIN)) == [True] * NUM_STEPS
    assert report_of(session.edit(PLAIN).run).plain_steps == 0


def test_what_is_forgotten_in_the_middle_is_not_shared(start: Start) -> None:
    session = start()
    ticket = session.begin(FILM)
    while not ticket.run.step:
        session.engine.advance()
    key = editing_of(ticket.run).shared_key
    assert key is not None
    session.editor.forget(key.template)
    session.engine.run()

    assert masked_steps(session.edit(PAPER)) == [False] * NUM_STEPS


def test_where_there_is_room_for_shared_steps_only_the_rest_is_made_whole(start: Start) -> None:
    usual = start()
    usual.edit(FILM)
    usual.edit(FILM)
    size_bytes = usual.editor.store.size_bytes["host"] // (NUM_STEPS + NUM_SHARED)
    session = start(store=TemplateStore(AdapterLRU, TierCapacities(host_bytes=size_bytes * (NUM_STEPS - 1))))
    key = editing_of(session.editor.prepare(PAPER, EditRequest(IMAGE, MASK, shared_steps=NUM_SHARED))).shared_key
    shared = editing_of(usual.editor.prepare(PAPER, EditRequest(IMAGE, MASK, shared_steps=NUM_SHARED))).shared
    assert key is not None
    assert shared is not None
    session.editor.store.put(key, shared)
    for _ in range(2):
        assert masked_steps(session.edit(PAPER)) == [True] * NUM_SHARED + [False] * (NUM_STEPS - NUM_SHARED)


def test_packed_templates_share_their_first_steps_too(start: Start) -> None:
    session = start(budget=0.05)
    session.edit(PLAIN)
    first, second = session.edit(PAPER), session.edit(PAPER)
    right = start().edit(PAPER).result().latents

    assert masked_steps(second) == [True] * NUM_STEPS
    assert all(gap(one.result().latents, right) < 0.05 for one in (first, second))


def test_bounds_of_loras_nobody_measured_are_those_of_late_ones() -> None:
    assert [usual_bound(steps) for steps in (4, 8, 20, 50)] == [0, 0, 4, 10]
    assert usual_bound(50, strength=0.9) == 5


@pytest.mark.parametrize(
    "make", [lambda: EditRequest(IMAGE, MASK, shared_steps=-1), lambda: replace(PLAIN, plain_steps=-1)]
)
def test_fewer_than_no_steps_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(BadInput, match="from 0 up"):
        make()
