"""Edits through the engine: those of stock diffusers where nothing is kept, exact where the context is the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

import torch
from PIL import Image

from serving.editing.networks import FAMILY_NAMES
from serving.stock import ENGINE_MARKS, gap
from takeup.errors import BadInput
from takeup.serving.diffusion.contract import DenoisingRun
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine, Ticket
from takeup.serving.diffusion.engine.tiny import tiny
from takeup.serving.editing.contract import EditRequest
from takeup.serving.editing.masked.edit_state import ErrorChecks, active_edit
from takeup.serving.editing.masked.editor import MaskedEditor, report_of
from takeup.serving.editing.templates.store import TemplateStore, TierCapacities
from takeup.serving.editing.templates.template import Template
from takeup.serving.model import LoraUse, Request
from takeup.serving.scheduling.adapters import AdapterLRU

pytestmark = ENGINE_MARKS

SIDE = 32
NO_CHECKS = ErrorChecks(0)
STOCK = {
    "takeup/tiny-sd15": "StableDiffusionInpaintPipeline",
    "takeup/tiny-sdxl": "StableDiffusionXLInpaintPipeline",
    "takeup/tiny-flux": "FluxInpaintPipeline",
}
Floats = npt.NDArray[np.float32]
Start = Callable[..., "Session"]


def image(seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)


def square(share: float = 0.25, first: int = 8) -> Floats:
    mask = np.zeros((SIDE, SIDE), np.float32)
    side = round(SIDE * share**0.5)
    mask[first : first + side, first : first + side] = 1
    return mask


def request(**others: Any) -> Request:
    return replace(Request("a cat", num_steps=3, guidance=4.0, seed=5), **others)


class Session:
    """An engine with an editor."""

    def __init__(self, name: str, **options: Any) -> None:
        pipeline = tiny(name)
        self.family = family_of(pipeline)
        self.editor = MaskedEditor(self.family, **{"grow": 0, "checks": NO_CHECKS, **options})
        self.engine = StepEngine(pipeline, add_ons=self.editor.add_ons)

    def edit(self, asked: EditRequest, one: Request | None = None, **options: Any) -> Ticket:
        ticket = self.engine.enter(self.editor.prepare(one or request(), replace(asked, **options)))
        self.engine.run()
        return ticket


@pytest.fixture
def start() -> Iterator[Start]:
    opened: list[Session] = []

    def open_one(name: str = "takeup/tiny-sdxl", **options: Any) -> Session:
        opened.append(Session(name, **options))
        return opened[-1]

    yield open_one
    for session in opened:
        session.editor.close()


def inpainted(name: str, asked: EditRequest, one: Request) -> torch.Tensor:
    """What the pipeline for inpainting of diffusers makes of it."""
    parts = {key: part for key, part in tiny(name).components.items() if part is not None}
    others = {"requires_safety_checker": False, "safety_checker": None, "feature_extractor": None}
    kind = getattr(import_module("diffusers"), STOCK[name])
    pipeline = kind(**parts, **(others if name == "takeup/tiny-sd15" else {}))
    pipeline.set_progress_bar_config(disable=True)
    latents = pipeline(
        prompt=one.prompt,
        image=Image.fromarray(asked.image),
        mask_image=Image.fromarray((asked.mask * 255).astype(np.uint8)),
        height=SIDE,
        width=SIDE,
        strength=asked.strength,
        num_inference_steps=one.num_steps,
        guidance_scale=one.guidance,
        generator=torch.Generator("cpu").manual_seed(one.seed),
        output_type="latent",
    ).images
    assert isinstance(latents, torch.Tensor)
    return latents


@pytest.mark.parametrize("name", STOCK)  # that of SD3 wants networks of sixteen channels
@pytest.mark.parametrize("strength", [1.0, 0.67, 0.34])
def test_a_first_edit_is_that_of_stock_inpainting(start: Start, name: str, strength: float) -> None:
    asked = EditRequest(image(), square(), strength)
    ticket = start(name).edit(asked, noise_seed=5)

    assert gap(ticket.result().latents, inpainted(name, asked, request())) < 1e-5


WHOLE = {
    "takeup/tiny-sd15": "StableDiffusionImg2ImgPipeline",
    "takeup/tiny-sdxl": "StableDiffusionXLImg2ImgPipeline",
    "takeup/tiny-sd3": "StableDiffusion3Img2ImgPipeline",
    "takeup/tiny-flux": "FluxImg2ImgPipeline",
}


@pytest.mark.parametrize("name", WHOLE)
def test_an_edit_without_a_mask_is_stock_image_to_image(start: Start, name: str) -> None:
    parts = {key: part for key, part in tiny(name).components.items() if part is not None}
    others = {"requires_safety_checker": False, "safety_checker": None, "feature_extractor": None}
    stock = getattr(import_module("diffusers"), WHOLE[name])(**parts, **(others if name == "takeup/tiny-sd15" else {}))
    stock.set_progress_bar_config(disable=True)
    size = {} if name in {"takeup/tiny-sd15", "takeup/tiny-sdxl"} else {"height": SIDE, "width": SIDE}
    theirs = stock(
        prompt="a cat",
        image=Image.fromarray(image()),
        strength=0.67,
        num_inference_steps=3,
        guidance_scale=4.0,
        generator=torch.Generator("cpu").manual_seed(5),
        output_type="latent",
        **size,
    ).images
    ticket = start(name).edit(EditRequest(image(), strength=0.67))

    assert gap(ticket.result().latents, theirs) < 1e-5


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_an_image_of_any_size_is_padded_for_the_model_and_cut_again(start: Start, name: str) -> None:
    odd, mask = image()[:29, :27], square()[:29, :27]
    session, asked = start(name), EditRequest(odd, mask)
    ticket = session.edit(asked)
    edited = session.editor.finish(asked, session.engine.image(ticket))
    pixels = (edited[0].permute(1, 2, 0) * 255).round().byte().numpy()

    assert pixels.shape == odd.shape
    assert np.array_equal(pixels[mask == 0], odd[mask == 0])
    assert not np.array_equal(pixels[mask > 0], odd[mask > 0])


def test_a_template_too_large_for_all_tiers_is_given_up_at_once_and_that_is_said_once(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    session, asked = (
        start(store=TemplateStore(AdapterLRU, TierCapacities(host_bytes=1000))),
        EditRequest(image(), square()),
    )
    ticket = session.engine.enter(session.editor.prepare(request(), asked))
    session.engine.advance()
    has_recorder = ticket.run.extras["edit"].recorder is not None
    session.engine.run()

    assert not has_recorder
    assert ticket.state == "done"
    assert not report_of(session.edit(asked).run).from_template
    assert caplog.text.count("is not kept") == 1


def test_where_no_templates_are_wanted_nothing_is_said(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    session = start(store=TemplateStore(AdapterLRU, TierCapacities(host_bytes=0)))

    assert session.edit(EditRequest(image(), square())).state == "done"
    assert not caplog.text


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_the_same_edit_again_computes_less_and_is_the_same(start: Start, name: str) -> None:
    session, asked = start(name), EditRequest(image(), square())
    first, second = (session.edit(asked) for _ in range(2))

    assert gap(second.result().latents, first.result().latents) < 1e-5
    assert not report_of(first.run).from_template
    assert report_of(second.run).from_template
    assert report_of(second.run).computed_share < 0.4
    assert report_of(second.run).num_whole_steps == 0


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_pixels_outside_the_mask_are_bit_for_bit_the_original(start: Start, name: str) -> None:
    session, asked = start(name), EditRequest(image(), square())
    session.edit(asked)
    ticket = session.edit(asked, request(prompt="another", seed=9))
    edited = session.editor.finish(asked, session.engine.image(ticket))
    pixels = (edited[0].permute(1, 2, 0) * 255).round().byte().numpy()
    outside = asked.mask == 0

    assert np.array_equal(pixels[outside], asked.image[outside])
    assert not np.array_equal(pixels[~outside], asked.image[~outside])


def test_a_soft_mask_mixes_at_its_rim_and_keeps_the_rest(start: Start) -> None:
    soft = square(0.3)
    soft[8, 8:20] = 0.5
    session, asked = start(), EditRequest(image(), soft)
    ticket = session.edit(asked)
    made = session.engine.image(ticket)
    edited = session.editor.finish(asked, made) * 255
    mixed = 0.5 * (made * 255).round() + 0.5 * torch.from_numpy(asked.image).permute(2, 0, 1)

    assert (edited[0, :, 8, 8:20] - mixed[0, :, 8, 8:20]).abs().max() <= 0.51
    assert torch.equal(edited[0, :, :8].round().byte(), torch.from_numpy(asked.image).permute(2, 0, 1)[:, :8])


def test_another_prompt_changes_the_masked_part(start: Start) -> None:
    session, asked = start(), EditRequest(image(), square())
    first = session.edit(asked)
    other = session.edit(asked, request(prompt="a green bus"))

    assert report_of(other.run).from_template
    assert gap(other.result().latents, first.result().latents) > 1e-3


def test_a_mask_elsewhere_computes_what_the_first_edit_changed(start: Start) -> None:
    session = start()
    session.edit(EditRequest(image(), square(0.1, first=2)))
    ticket = session.edit(EditRequest(image(), square(0.1, first=20)))
    report = report_of(ticket.run)

    assert report.from_template
    assert report.computed_share == pytest.approx(2 * report.mask_share)


@pytest.mark.parametrize("mask", [None, np.ones((SIDE, SIDE), np.float32)])
def test_an_edit_of_everything_takes_the_plain_path(start: Start, mask: Floats | None) -> None:
    session = start()
    ticket = session.edit(EditRequest(image(), mask))

    assert session.editor.store.size_bytes["host"] == 0
    assert report_of(ticket.run).computed_share == 1.0
    if mask is not None:
        assert gap(ticket.result().latents, inpainted("takeup/tiny-sdxl", EditRequest(image(), mask), request())) < 1e-5


def test_edits_with_different_masks_and_generations_share_the_engine(start: Start) -> None:
    session = start()
    asked = [EditRequest(image(seed), square(share)) for seed, share in ((0, 0.1), (1, 0.25))]
    alone = [session.edit(one) for one in asked]
    tickets = [session.engine.enter(session.editor.prepare(request(), one)) for one in asked]
    plain = session.engine.submit(request(height_px=SIDE, width_px=SIDE))
    calls = session.engine.num_calls
    session.engine.run()

    assert session.engine.num_calls - calls == 2 * request().num_steps  # one for both edits, one for the other
    for ticket, before in zip(tickets, alone, strict=True):
        assert gap(ticket.result().latents, before.result().latents) < 1e-5
    assert plain.state == "done"


def test_an_edit_in_the_place_of_an_older_one_has_its_own_mask(start: Start) -> None:
    session, asked = start(), [EditRequest(image(), square(share)) for share in (0.05, 0.25)]
    for one in asked:
        session.edit(one)
    right = session.edit(asked[1]).result().latents
    older, newer = (session.editor.prepare(request(), one) for one in asked)
    session.engine.enter(older)
    session.engine.run()
    for name in DenoisingRun.__slots__:  # as if it had got the memory of the first
        setattr(older, name, getattr(newer, name))
    ticket = session.engine.enter(older)
    session.engine.run()

    assert torch.equal(ticket.result().latents, right)


def test_another_image_tenant_noise_or_number_of_steps_is_not_served_from_the_template(start: Start) -> None:
    session, asked = start(), EditRequest(image(), square())
    session.edit(asked)
    others = [
        session.edit(EditRequest(image(1), square())),
        session.edit(asked, tenant="somebody else"),
        session.edit(asked, noise_seed=1),
        session.edit(asked, request(num_steps=4)),
        session.edit(asked, request(scheduler="ddim")),
        session.edit(asked, request(guidance=5.0)),
        session.edit(EditRequest(image(), square(), strength=0.67)),
    ]

    assert [report_of(one.run).from_template for one in others] == [False] * len(others)


def test_a_template_is_found_while_a_call_has_other_attention(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edits are prepared beside calls, some of which replace processors for a while."""
    session, asked = start(), EditRequest(image(), square())
    session.edit(asked)
    monkeypatch.setattr(type(session.family.network), "attn_processors", property(lambda _: {}))

    assert active_edit(session.editor.prepare(request(), asked)).found is not None


def test_a_template_is_found_whatever_diffusers_notes_on_settings(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of its notes is another one in every process."""
    session, asked = start(), EditRequest(image(), square())
    session.edit(asked)
    scheduler = session.family.pipeline.scheduler
    noted = list(scheduler.config["_use_default_values"])
    other = {**scheduler.config, "_use_default_values": noted[::-1]}
    monkeypatch.setattr(scheduler, "_internal_dict", type(scheduler.config)(other))

    assert len(noted) > 1
    assert active_edit(session.editor.prepare(request(), asked)).found is not None


def test_other_weights_are_not_served_from_the_template(start: Start, tmp_path: Path) -> None:
    def disk() -> TemplateStore:
        return TemplateStore(AdapterLRU, TierCapacities(disk_bytes=1 << 30), tmp_path)

    asked, first = EditRequest(image(), square()), start(store=disk())
    first.edit(asked)
    first.editor.store.close()  # so that it is written
    weight = tiny("takeup/tiny-sdxl").unet.conv_in.weight
    again = start(store=disk()).edit(asked)
    with torch.no_grad():
        weight.add_(0.01)
        changed = start(store=disk()).edit(asked)
        weight.sub_(0.01)

    assert report_of(again.run).from_template
    assert not report_of(changed.run).from_template


def test_a_damaged_template_is_made_again_and_the_picture_is_right(start: Start, tmp_path: Path) -> None:
    asked = EditRequest(image(), square())
    store = TemplateStore(AdapterLRU, TierCapacities(host_bytes=0, disk_bytes=1 << 30), tmp_path)
    session = start(store=store)
    right = session.edit(asked).result().latents
    session.editor.prepare(request(), asked)  # which waits until it is written
    path = next(tmp_path.glob("*/*"))
    data = bytearray(path.read_bytes())
    data[4096] ^= 0xFF
    path.write_bytes(bytes(data))
    ticket = session.edit(asked)

    assert torch.equal(ticket.result().latents, right)
    assert not report_of(ticket.run).from_template
    assert report_of(session.edit(asked).run).from_template


def test_a_template_deleted_in_the_middle_of_an_edit_does_not_matter(start: Start) -> None:
    session, asked = start(), EditRequest(image(), square())
    right = session.edit(asked).result().latents
    run = session.editor.prepare(request(), asked)
    ticket = session.engine.enter(run)
    session.engine.advance()
    session.editor.store.forget(run.extras["edit"].key.template)
    session.engine.run()

    assert gap(ticket.result().latents, right) < 1e-5


def test_a_cancelled_first_edit_leaves_no_template(start: Start) -> None:
    session, asked = start(), EditRequest(image(), square())
    ticket = session.engine.enter(session.editor.prepare(request(), asked))
    session.engine.advance()
    ticket.cancel()
    session.engine.run()

    assert not report_of(session.edit(asked).run).from_template


def test_loras_of_unknown_bytes_compute_everything(start: Start) -> None:
    session, asked = start(), EditRequest(image(), square())
    run = session.editor.prepare(request(loras=(LoraUse("style"),)), asked)

    assert run.extras["edit"].key is None
    known = start(identity={"style": "1234"}.__getitem__)
    assert known.editor.prepare(request(loras=(LoraUse("style"),)), asked).extras["edit"].key is not None


# Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_the_same_context_is_found_to_be_exact(start: Start, name: str) -> None:
    session, asked = start(name, checks=ErrorChecks()), EditRequest(image(), square())
    session.edit(asked)
    report = report_of(session.edit(asked).run)

    assert report.error is not None
    assert report.error < 1e-3  # rounding
    assert report.num_whole_steps == 1  # of three: it was checked


def test_a_bound_that_another_content_breaks_makes_every_step_whole(start: Start) -> None:
    session, asked = start(checks=ErrorChecks()), EditRequest(image(), square())
    session.edit(asked)
    stale = report_of(session.edit(asked, request(prompt="zzz", seed=77)).run)
    assert stale.error is not None
    strict = replace(asked, max_error=stale.error / 2)
    refreshed = report_of(session.edit(strict, request(prompt="zzz", seed=77)).run)

    assert stale.error > 1e-4
    assert (stale.num_whole_steps, refreshed.num_whole_steps) == (1, 3)
    assert refreshed.error == 0


def test_a_refused_step_leaves_the_edit_as_if_everything_were_computed(start: Start) -> None:
    session, asked = start(), EditRequest(image(), square())
    session.edit(asked)
    other = request(prompt="zzz", seed=77)
    bounded, exact = (session.edit(asked, other, **how) for how in ({"max_error": 1e-9}, {"exact": True}))

    assert report_of(bounded.run).computed_share > 1  # the step that was refused is counted too
    assert gap(bounded.result().latents, exact.result().latents) < 1e-5


@pytest.mark.parametrize(("count", "steps"), [(0, set()), (1, {10}), (2, {5, 15})])
def test_checks_are_spread_over_the_steps(count: int, steps: set[int]) -> None:
    assert ErrorChecks(count).steps(20, is_bounded=False) == steps
    assert ErrorChecks(count, 4).steps(20, is_bounded=True) == {0, 5, 10, 15}


def test_packing_is_counted_in_the_error(start: Start) -> None:
    session, asked = start(budget=0.05, checks=ErrorChecks()), EditRequest(image(), square())
    exact = session.edit(asked).result().latents
    again = session.edit(asked)
    report = report_of(again.run)

    assert 0 < report.packing_error <= 0.05
    assert report.error is not None
    assert 0 < report.error < 0.1
    assert gap(again.result().latents, exact) < 0.05


def template_of(session: Session) -> Template:
    """What an edit records, as the next edit finds it."""
    session.edit(EditRequest(image(), square()))
    template = active_edit(session.edit(EditRequest(image(), square())).run).template
    assert template is not None
    return template


def test_how_many_templates_fit_follows_from_the_bytes_of_a_step(start: Start) -> None:
    session = start()
    made = template_of(session).size_bytes
    said = session.editor.templates_held(3, SIDE * SIDE)
    count = int(said.split("device memory, ")[1].split()[0])

    assert count == pytest.approx((1 << 30) / made, rel=0.05)
    assert said.endswith("0 on disk")


def test_a_template_of_every_second_step_takes_two_thirds_of_three_steps(start: Start) -> None:
    every, second = (template_of(start(stride=stride)) for stride in (1, 2))

    assert second.size_bytes / every.size_bytes == pytest.approx(2 / 3, rel=0.01)
    assert [len(page) > 0 for page in second.pages] == [True, False, True]


# Bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (EditRequest(image(), np.zeros((SIDE, SIDE), np.float32)), "the mask is empty"),
        (EditRequest(image(), np.ones((SIDE, 16), np.float32)), "the mask is 16x32 pixels, the image 32x32"),
        (EditRequest(image(), np.full((SIDE, SIDE), np.nan, np.float32)), "outside of 0 to 1"),
        (EditRequest(image(), 2 * np.ones((SIDE, SIDE), np.float32)), "outside of 0 to 1"),
        (EditRequest(np.zeros((SIDE, SIDE), np.uint8), square()), "three bytes"),
        (EditRequest(image(), square(), strength=0.2), "leaves none of 3 steps"),
    ],
)
def test_edits_that_make_no_sense_are_refused(start: Start, asked: EditRequest, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        start().editor.prepare(request(), asked)


def test_an_edit_of_another_size_is_refused(start: Start) -> None:
    with pytest.raises(BadInput, match="edits keep the size"):
        start().editor.prepare(request(width_px=64), EditRequest(image(), square()))


def test_only_edits_have_a_report(start: Start) -> None:
    with pytest.raises(BadInput, match="no edit"):
        report_of(start().family.prepare(request(width_px=SIDE, height_px=SIDE)))


def test_pictures_do_as_well_as_arrays(start: Start) -> None:
    session = start()
    arrays = session.edit(EditRequest(image(), square()))
    pictures = EditRequest(Image.fromarray(image()), Image.fromarray((square() * 255).astype(np.uint8)))

    assert torch.equal(session.editor.prepare(request(), pictures).extras["edit"].mask, arrays.run.extras["edit"].mask)
