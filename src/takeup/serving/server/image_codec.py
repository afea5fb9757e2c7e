"""Images in and out: PNG, JPEG and WebP, with their sizes checked before a pixel is decoded."""

import base64
import binascii
import io
import re
from typing import Any

import torch
from PIL import Image, ImageChops, ImageOps

from takeup.errors import BadInput
from takeup.serving.server.backends import ImageFormat
from takeup.serving.server.errors import ApiError
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
    """The image, as RGB or RGBA, turned as its camera says."""
    if len(data) > limits.max_image_bytes:
        raise _refused(
            f"the image has {len(data)} bytes, and at most {limits.max_image_bytes} are read", param, "image_too_large"
        )
    image = _opened(data, limits, param)
    try:
        image.load()
        turned = ImageOps.exif_transpose(image)
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
    """What may change, in white: what is transparent, as OpenAI's clients mark it, in the mask or in the image itself.

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


def encode_image(image: torch.Tensor, kind: ImageFormat, quality: int) -> bytes:
    """The file of one decoded image (values from 0 to 1, channels first)."""
    if not torch.isfinite(image).all():
        raise BadInput("the image has numbers that are not finite; use weaker LoRAs, guidance or ControlNets")
    pixels = (image.float().clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
    file = io.BytesIO()
    options: dict[str, Any] = {} if kind == "png" else {"quality": quality}
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def base64_text(data: bytes) -> str:
    """Base64, as in answers."""
    return base64.b64encode(data).decode("ascii")
