"""Images in and out: PNG, JPEG and WebP, with their sizes checked before a pixel is decoded."""

import base64
import binascii
import io
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image, ImageChops, ImageOps

from takeup.serving.editing.contract import EditRequest
from takeup.serving.editing.masked.initial_latents import eight_bit, image_id, pixels_of
from takeup.serving.editing.templates.store import Original, Originals
from takeup.serving.editing.templates.template import template_id
from takeup.serving.server.errors import ApiError
from takeup.serving.server.schemas import EditForm
from takeup.serving.server.settings import ServerLimits

FORMATS = ("PNG", "JPEG", "WEBP")
DATA_URL = re.compile(r"data:image/[a-z+.-]{1,20};base64,")


def image_from_base64(text: str, limits: ServerLimits, param: str) -> Image.Image:
    """The image of a base64 text, with or without `data:image/...;base64,` before it."""
    start = DATA_URL.match(text)
    try:
        data = binascii.a2b_base64(text[start.end() if start else 0 :], strict_mode=True)
    except (binascii.Error, ValueError) as problem:
        raise _refused(f"the image is no base64 text ({problem})", param, "invalid_base64") from None
    return image_from_bytes(data, limits, param)


def image_from_bytes(data: bytes, limits: ServerLimits, param: str) -> Image.Image:
    """The image as RGB or RGBA, rotated as its EXIF data says."""
    if len(data) > limits.max_image_bytes:
        raise _refused(
            f"the image has {len(data)} bytes, and at most {limits.max_image_bytes} are read", param, "image_too_large"
        )
    image = _opened(data, limits, param)
    try:
        image.load()
        turned = eight_bit(ImageOps.exif_transpose(image))
        return turned.convert("RGBA" if _is_transparent(turned) else "RGB")
    except Exception as problem:  # decoders raise what they like on damaged files
        raise _refused(f"the image is damaged ({type(problem).__name__})", param, "invalid_image") from problem


def _opened(data: bytes, limits: ServerLimits, param: str) -> Image.Image:
    """The image with only its header read; refused if its pixels would be too many."""
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        num_pixels = image.width * image.height
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many("far too many", limits, param) from None
    except Exception as problem:
        raise _refused("these bytes are no PNG, JPEG or WebP image", param, "invalid_image") from problem
    if num_pixels > limits.max_input_pixels:
        raise _too_many(f"{image.width}x{image.height}", limits, param)
    return image


def _too_many(size: str, limits: ServerLimits, param: str) -> ApiError:
    most = limits.max_input_pixels / 1e6
    return _refused(f"the image has {size} pixels, and at most {most:g} million are read", param, "image_too_large")


def _refused(message: str, param: str, code: str) -> ApiError:
    return ApiError(400, f"{message}; send another one", param=param, code=code)


def _is_transparent(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info


def mask_of(image: Image.Image, mask: Image.Image | None) -> Image.Image | None:
    """The mask, white where the image may change: transparent pixels of the mask or of the image, as in OpenAI's API.

    A mask that is opaque everywhere is read by its brightness. None: everything may change.
    """
    if mask is None:
        return _transparent(image)
    if mask.size != image.size:
        message = f"the mask has {mask.width}x{mask.height} pixels, the image {image.width}x{image.height}"
        raise _refused(f"{message}, and both must have one size", "mask", "invalid_value")
    found = _transparent(mask) or mask.convert("L")
    if found.getbbox() is None:
        raise _refused("the mask is empty, so nothing would change", "mask", "invalid_value")
    return found


def _transparent(image: Image.Image) -> Image.Image | None:
    found = ImageChops.invert(image.getchannel("A")) if image.mode == "RGBA" else None
    return None if found is None or found.getbbox() is None else found


def base64_text(data: bytes) -> str:
    """Base64, as in answers."""
    return base64.b64encode(data).decode("ascii")


# From the fields and files of a request, or the name of an earlier image, to an edit request --------------------------


WHOLE_STRENGTH, MASKED_STRENGTH = 0.8, 1.0


@dataclass(frozen=True, slots=True)
class EditFiles:
    """The uploaded files of an edit."""

    image: bytes | None
    mask: bytes | None
    references: tuple[bytes, ...] = ()


class EditInputs:
    """The images that tenants have edited. `forget` is called for deleted ones."""

    def __init__(self, folder: Path, limits: ServerLimits, forget: Callable[[str], None]) -> None:
        self._originals, self._limits, self._forget = Originals(folder, limits.max_template_bytes), limits, forget

    def seen_by(self, tenant: str) -> list[Original]:
        """The images of a tenant, most recently used first."""
        return self._originals.seen_by(tenant)

    def remove(self, tenant: str, template: str) -> None:
        """Delete an image of this tenant and all that was computed from it."""
        self._found(tenant, template)
        self._originals.remove(tenant, template)
        self._forget(template)

    def edit(self, tenant: str, asked: EditForm, files: EditFiles, max_pixels: int) -> EditRequest:
        """The edit request. The image is stored for later edits if the quota of the tenant allows."""
        limits = replace(self._limits, max_input_pixels=min(max_pixels, self._limits.max_input_pixels))
        if files.image is None:
            data, image = self._found(tenant, asked.template or "")
        else:
            data, image = files.image, image_from_bytes(files.image, limits, "image")
        mask = mask_of(image, None if files.mask is None else image_from_bytes(files.mask, limits, "mask"))
        template = _template_of(tenant, image)
        strength = asked.strength or (WHOLE_STRENGTH if mask is None else MASKED_STRENGTH)
        return EditRequest(
            image,
            mask,
            strength=strength,
            max_error=asked.max_error,
            exact=asked.exact is True,
            tenant=tenant,
            template=template if self._originals.keep(tenant, template, data) else None,
        )

    def _found(self, tenant: str, template: str) -> tuple[bytes, Image.Image]:
        """The image that was sent under this name; a damaged one counts as missing."""
        data = self._originals.find(tenant, template) or b""
        with suppress(ApiError):
            image = image_from_bytes(data, self._limits, "template")
            if _template_of(tenant, image) == template:
                return data, image
        self._originals.remove(tenant, template)
        message = f"no template {template!r}; it was deleted, or not used for too long: send the image again"
        raise ApiError(404, message, param="template", code="template_not_found")


def _template_of(tenant: str, image: Image.Image) -> str:
    return template_id(tenant, image_id(pixels_of(image)))
