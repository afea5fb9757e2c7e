"""A single edit end to end, for callers without an engine; images are given by file, or by template."""

import io
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Unpack

import torch
from PIL import Image

from takeup.errors import BadInput
from takeup.serving.diffusion.contract import DenoisingRun, Family
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.sampling import grain_of
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.execution.convolutions import device_and_dtype
from takeup.serving.editing.contract import EditReport, EditRequest
from takeup.serving.editing.masked.addon import MaskedCallOptions, MaskedEdits
from takeup.serving.editing.masked.edit_state import PIXEL_ERROR, SLOT, USUAL_PIXEL_ERROR, EditState
from takeup.serving.editing.masked.initial_latents import (
    BlendingScheduler,
    drawn_noise,
    encode,
    finished,
    image_id,
    mask_pixels,
    noised,
    packed,
    padded,
    pixels_of,
    prepare_whole,
    skip_steps,
)
from takeup.serving.editing.masked.tokens import token_mask
from takeup.serving.editing.templates.store import Originals, TemplateStore, TierCapacities
from takeup.serving.editing.templates.template import TemplateKey, digest_of, template_id, weights_digest
from takeup.serving.model import Request
from takeup.serving.scheduling.adapters import AdapterLERC

# The editor prepares a run from an image, a mask and a request, and composites the decoded result into the image ------
#
# How it works. The image is encoded, and in every step the latents outside the mask are the image with the noise of the
# template, never of the request: only then are its activations equal for all edits of the image, and can be cached.
# Inside the mask the noise is that of the request. The mask is dilated by `grow` latents: the decoder reads neighbours.


PROBE_GRAINS = 16


class MaskedEditor:
    """Edits for one family. `budget` is the relative error that packing of templates may cause.

    `identity` maps the name of a LoRA to an id of its content; without it edits with LoRAs compute all tokens.
    `ways`: as for `MaskedEdits`.
    """

    def __init__(
        self,
        family: Family,
        store: TemplateStore | None = None,
        *,
        budget: float = 0.0,
        grow: int = 1,
        identity: Callable[[str], str] | None = None,
        **ways: Unpack[MaskedCallOptions],
    ) -> None:
        self._family, self._grow, self._identity = family, grow, identity
        self.store = store or TemplateStore(AdapterLERC, TierCapacities(), device=family.network.device)
        self.edits = MaskedEdits(family, self.store, budget=budget, **ways)
        self.add_ons = (self.edits,)
        self._weights = weights_digest(dict(family.network.state_dict()))
        self._attention = _attention_of(family.network, ways.get("binds", False))  # now: calls change it temporarily

    def close(self) -> None:
        """Restore the network, and close the store after pending writes."""
        self.edits.close()
        self.store.close()

    @torch.no_grad()
    def templates_held(self, num_steps: int, num_pixels: int) -> str:
        """How many templates of this size each tier has room for, by the activations of one small step."""
        side = PROBE_GRAINS * grain_of(self._family.pipeline)
        run = self._family.prepare(Request(" ", num_steps=1, height_px=side, width_px=side))
        num_kept = -(-num_steps // self.edits.stride)
        size_bytes = self.edits.step_bytes(run) * num_kept * num_pixels // side**2
        room = self.store.room
        parts = (
            (room.device_bytes, "in device memory"),
            (room.host_bytes, "on the host"),
            (min(room.of_disk), "on disk"),
        )
        held = ", ".join(f"{tier_bytes // size_bytes} {where}" for tier_bytes, where in parts)
        return f"templates of {num_steps} steps take {size_bytes / 2**20:,.0f} MiB each; room for {held}"

    @torch.no_grad()
    def prepare(self, request: Request, edit: EditRequest) -> DenoisingRun:
        """Like `prepare` of the family, with everything outside the mask preserved. Also looks up the template."""
        if edit.mask is None:
            run = prepare_whole(self._family, request, edit)
            run.extras[SLOT] = EditState(None, torch.ones(1, 1, dtype=torch.bool))
            return run
        image, grain = pixels_of(edit.image), grain_of(self._family.pipeline)
        shares = padded(mask_pixels(edit.mask, image.shape[:2]), grain, "constant")
        run = self._family.prepare(_sized(request, image.shape[:2], shares.shape))
        generator = torch.Generator("cpu").manual_seed(edit.noise_seed)
        clean = encode(self._family, padded(image, grain, "edge"), generator)
        kept_noise = drawn_noise(clean, generator)
        touched = token_mask(torch.from_numpy(shares), (clean.shape[-2], clean.shape[-1]), self._grow)
        mask = token_mask(touched, self._grid(clean)).to(clean.device)
        self._start(run, clean, kept_noise, _own_noise(clean, request.seed), mask, edit.strength)
        is_plain = edit.exact or mask.float().mean() > self.edits.whole_share
        key = None if is_plain else self._key(run, edit, image_id(image))
        found = None if key is None else self.store.find(key)
        editing = run.extras[SLOT] = EditState(key, mask, edit.max_error, found)
        pixel_error = PIXEL_ERROR.get(type(self._family.network).__name__, USUAL_PIXEL_ERROR)
        editing.pixels = run.scheduler.mask, pixel_error
        return run

    def finish(self, edit: EditRequest, image: torch.Tensor) -> torch.Tensor:
        return finished(edit, image)

    def report(self, run: DenoisingRun) -> EditReport:
        """Statistics of the edit of a run."""
        return report_of(run)

    def forget(self, template: str) -> None:
        """Delete all cached activations of this image."""
        self.store.forget(template)

    def _patch(self) -> int:
        """Patch size: latents along the side of a token."""
        if type(self._family.network).__name__ == "FluxTransformer2DModel":
            return 2
        return int(getattr(self._family.network.config, "patch_size", None) or 1)

    def _grid(self, latents: torch.Tensor) -> tuple[int, int]:
        patch = self._patch()
        return latents.shape[2] // patch, latents.shape[3] // patch

    def _start(
        self,
        run: DenoisingRun,
        clean: torch.Tensor,
        kept_noise: torch.Tensor,
        own_noise: torch.Tensor,
        mask: torch.Tensor,
        strength: float,
    ) -> None:
        """Set the run to its first step, with pure noise or as much as the strength gives."""
        patch = self._patch()
        wide = mask.float().repeat_interleave(patch, 0).repeat_interleave(patch, 1)[None, None].to(clean.dtype)
        noise = torch.where(wide > 0, own_noise, kept_noise)

        def pack(latents: torch.Tensor) -> torch.Tensor:
            return packed(self._family, latents.expand_as(clean))

        first = skip_steps(run, strength)
        if first == 0 and hasattr(run.scheduler, "init_noise_sigma"):
            run.latents = pack(noise) * run.scheduler.init_noise_sigma
        else:
            run.latents = noised(run.scheduler, pack(clean), pack(noise), run.timesteps[0])
        run.scheduler = BlendingScheduler(run.scheduler, run.timesteps, pack(clean), pack(kept_noise), pack(wide))

    def _key(self, run: DenoisingRun, edit: EditRequest, image: str) -> TemplateKey | None:
        """Template key, or None if the inputs of the activations cannot be identified well enough to cache them."""
        request, network = run.request, self._family.network
        if request.controls or request.late_steps or (request.loras and self._identity is None):
            return None
        adapters = [(use.name, use.scale, self._identity and self._identity(use.name)) for use in request.loras]
        guidance = (request.guidance, request.guidance_rescale, request.true_guidance, request.negative_prompt)
        height, width = request.height_px, request.width_px
        assert height is not None
        assert width is not None
        device, dtype = device_and_dtype(network)
        return TemplateKey(
            tenant=edit.tenant,
            network=type(network).__name__,
            weights=self._weights,
            adapters=digest_of(adapters),
            scheduler=_scheduler_digest(run, request.eta),
            num_steps=len(run.timesteps),
            strength=edit.strength,
            guidance=digest_of([*guidance, run.num_rows, run.inputs["encoder_hidden_states"].shape[1]]),
            size_px=(height, width),
            dtype=str(dtype),
            device=device.type,
            attention=self._attention,
            image=image,
            noise=str(edit.noise_seed),
            kept=self.edits.what_is_kept,
            libraries=f"torch {torch.__version__}, diffusers {version('diffusers')}",
        )


def report_of(run: DenoisingRun) -> EditReport:
    """Statistics of the edit of a run."""
    editing = run.extras.get(SLOT)
    if not isinstance(editing, EditState):
        raise BadInput("this run is no edit; prepare it with an editor")
    return editing.report()


def _sized(request: Request, size: tuple[int, int], padded_size: tuple[int, int]) -> Request:
    height, width = request.height_px or size[0], request.width_px or size[1]
    if (height, width) != size:
        raise BadInput(
            f"the image is {size[1]}x{size[0]} pixels, and {width}x{height} are asked for; edits keep the size: "
            "leave it out, or scale the image first"
        )
    return replace(request, height_px=padded_size[0], width_px=padded_size[1])


def _own_noise(clean: torch.Tensor, seed: int) -> torch.Tensor:
    """Noise in the random order of diffusers: first the draw for encoding the image, then the noise."""
    generator = torch.Generator("cpu").manual_seed(seed)
    drawn_noise(clean, generator)
    return drawn_noise(clean, generator)


def _scheduler_digest(run: DenoisingRun, eta: float) -> str:
    """Digest of the scheduler config, without private entries of diffusers, whose order differs between processes."""
    settings = {name: value for name, value in run.scheduler.config.items() if not name.startswith("_")}
    return digest_of([type(run.scheduler._scheduler).__name__, settings, eta])


def _attention_of(network: Any, binds: bool) -> str:
    """Attention processors and backend, as far as they can be determined."""
    processors = sorted({type(getattr(one, "stock", one)).__name__ for one in network.attn_processors.values()})
    active = import_module("diffusers.models.attention_dispatch")._AttentionBackendRegistry.get_active_backend()[0]
    return f"{', '.join(processors)}; {active}{'; recorded' if binds else ''}"


def disk_store(folder: Path, device: Any, room: TierCapacities) -> TemplateStore:
    """A store in a folder, which persists across processes."""
    return TemplateStore(AdapterLERC, room, folder, device)


DISK_BYTES = 100 << 30


def edit_once(
    pipeline: Any, request: Request, edit: EditRequest, templates: Path | None = None, budget: float = 0.0
) -> tuple[Any, EditReport]:
    """The edited picture, and statistics. `templates` is a folder in which templates persist across processes."""
    family = family_of(pipeline)
    store = (
        None
        if templates is None
        else disk_store(templates, family.network.device, TierCapacities(disk_bytes=DISK_BYTES))
    )
    editor = MaskedEditor(family, store, budget=budget)
    try:
        engine = StepEngine(pipeline, add_ons=editor.add_ons)
        ticket = engine.enter(editor.prepare(request, edit))
        engine.run()
        edited = editor.finish(edit, engine.image(ticket))
        return _picture(edited), report_of(ticket.result())
    finally:
        editor.close()


def open_original(name: str, templates: Path | None = None) -> tuple[Image.Image, str | None]:
    """Open a file, or the original of an earlier edit by template id; also returns the id if it is stored."""
    originals = None if templates is None else Originals(templates, DISK_BYTES)
    data = (originals and originals.find("", name)) or _bytes_of(Path(name))
    picture = _opened(data, name)
    template = template_id("", image_id(pixels_of(picture)))
    is_kept = originals is not None and originals.keep("", template, data)
    return picture, template if is_kept else None


def _opened(data: bytes, name: str) -> Image.Image:
    try:
        with Image.open(io.BytesIO(data)) as opened:
            opened.load()
            return opened.copy()
    except OSError as error:
        raise BadInput(f"{name} cannot be read as an image; give a PNG, JPEG or WebP file") from error


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read ({error.strerror}); give the file of an image, or a template of --templates"
        ) from error


def _picture(image: Any) -> Image.Image:
    return Image.fromarray((image[0].permute(1, 2, 0) * 255).round().byte().cpu().numpy())
