"""Edits as they come: an image, or the name of one that was sent before, and a mask become what an editor is asked."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from PIL.Image import Image

from takeup.serving.editing.contract import EditRequest
from takeup.serving.editing.masked.initial_latents import image_id, pixels_of
from takeup.serving.editing.templates.store import Original, Originals
from takeup.serving.editing.templates.template import template_id
from takeup.serving.scheduling.adapters import usual_bound
from takeup.serving.server.errors import ApiError
from takeup.serving.server.image_codec import image_from_bytes, mask_of
from takeup.serving.server.schemas import EditForm
from takeup.serving.server.settings import ServerLimits

WHOLE_STRENGTH, MASKED_STRENGTH = 0.8, 1.0


@dataclass(frozen=True, slots=True)
class EditFiles:
    """The files of an edit as they came."""

    image: bytes | None
    mask: bytes | None


class EditInputs:
    """The images that tenants have edited. `forget` hears of those that are taken away."""

    def __init__(self, folder: Path, limits: ServerLimits, forget: Callable[[str], None]) -> None:
        self._originals, self._limits, self._forget = Originals(folder, limits.max_template_bytes), limits, forget

    def seen_by(self, tenant: str) -> list[Original]:
        """Those of a tenant, the last used first."""
        return self._originals.seen_by(tenant)

    def remove(self, tenant: str, template: str) -> None:
        """Delete an image of this tenant, and all that was computed of it."""
        self._found(tenant, template)
        self._originals.remove(tenant, template)
        self._forget(template)

    def edit(self, tenant: str, asked: EditForm, files: EditFiles) -> EditRequest:
        """What is asked of the editor. The image is kept for the next edit, if there is room."""
        if files.image is None:
            data, image = self._found(tenant, asked.template or "")
        else:
            data, image = files.image, image_from_bytes(files.image, self._limits, "image")
        mask = mask_of(image, None if files.mask is None else image_from_bytes(files.mask, self._limits, "mask"))
        template = _template_of(tenant, image)
        strength = asked.strength or (WHOLE_STRENGTH if mask is None else MASKED_STRENGTH)
        return EditRequest(
            image,
            mask,
            strength=strength,
            shared_steps=min(asked.shared_steps or 0, usual_bound(asked.steps, strength)),
            max_error=asked.max_error,
            exact=asked.exact is True,
            tenant=tenant,
            template=template if self._originals.keep(tenant, template, data) else None,
        )

    def _found(self, tenant: str, template: str) -> tuple[bytes, Image]:
        """The image that was sent under this name; one that is damaged by now is not there."""
        data = self._originals.find(tenant, template) or b""
        with suppress(ApiError):
            image = image_from_bytes(data, self._limits, "template")
            if _template_of(tenant, image) == template:
                return data, image
        self._originals.remove(tenant, template)
        message = f"no template {template!r}; it was deleted, or not used for too long: send the image again"
        raise ApiError(404, message, param="template", code="template_not_found")


def _template_of(tenant: str, image: Image) -> str:
    return template_id(tenant, image_id(pixels_of(image)))
