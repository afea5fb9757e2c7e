"""A template in memory: pages by step, the tokens they are valid for, the packing error; and its key.

Keys include everything that changes an activation, and the tenant that owns it. Pages in host memory are in pinned
blocks, so that copies to the device overlap computation: PyTorch rounds every pinned allocation up to a power of two,
so tensors allocated one by one may take nearly twice their size, and a template has thousands.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch

from takeup.serving.editing.templates.packing import EXACT, PackedPage, PackedTensor, Page, PagePacker, unpack_page

# Template keys: they include everything that changes an activation, and the tenant that owns it -----------------------

NUM_SAMPLES = 64
ID_CHARS = 24


@dataclass(frozen=True, slots=True)
class TemplateKey:
    """Templates are equal only if all fields are. `tenant`: the same image of two tenants is two templates."""

    tenant: str
    network: str
    weights: str
    adapters: str
    scheduler: str
    num_steps: int
    strength: float
    guidance: str
    size_px: tuple[int, int]
    dtype: str
    device: str
    attention: str
    image: str
    noise: str
    libraries: str
    kept: str

    @property
    def template(self) -> str:
        """The identifier of the image, independent of its use; visible to clients."""
        return template_id(self.tenant, self.image)

    @property
    def name(self) -> str:
        """A file name, in the folder of the owner; unique per key."""
        return f"{owner_of(self.tenant)}/{self.template}.{digest_of(asdict(self))}"


def template_id(tenant: str, image: str) -> str:
    """The identifier of an image, from the digest of its pixels and the tenant."""
    return f"tpl_{digest_of([tenant, image])[:ID_CHARS]}"


def template_of(name: str) -> str:
    """The template identifier in the name of a key."""
    return name.split("/")[1].split(".", maxsplit=1)[0]


def owner_of(tenant: str) -> str:
    """The folder name of a tenant; safe for any tenant name."""
    return digest_of(f"tenant {tenant}".encode())[:ID_CHARS]


def digest_of(value: Any) -> str:
    """The digest of a JSON-serializable value, of bytes, or of a tensor."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes()
        return hashlib.sha256(f"{value.dtype} {tuple(value.shape)}".encode() + flat).hexdigest()[:32]
    data = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True, default=str).encode()
    return hashlib.sha256(data).hexdigest()[:32]


def weights_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Digest of names, shapes, and evenly spaced samples of every tensor: reading all values would take seconds."""
    parts = [f"{name} {tuple(one.shape)} {one.dtype}" for name, one in tensors.items()]
    samples = [_some(one).float().cpu() for one in tensors.values() if one.numel()]
    values = digest_of(torch.cat(samples)) if samples else ""
    return digest_of([*parts, values])


def _some(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, len(flat) // NUM_SAMPLES)][:NUM_SAMPLES]


# Pinned host memory, allocated in large blocks, for copies to the device that overlap computation ---------------------

BLOCK_BYTES = 256 << 20
ALIGN_BYTES = 256


class PinnedMemory:
    """Arena for tensors of `size_bytes` bytes in total. A block is freed when none of its tensors is used any more."""

    def __init__(self, size_bytes: int) -> None:
        self._left_bytes, self._rest = size_bytes, torch.empty(0, dtype=torch.uint8)

    def lowered(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the host: a pinned copy if it is on a CUDA device; host tensors are not copied."""
        return self.copied(tensor) if tensor.device.type == "cuda" else tensor.to("cpu")

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in pinned memory."""
        num_bytes = tensor.numel() * tensor.element_size()
        return self._piece(num_bytes).view(tensor.dtype).view(tensor.shape).copy_(tensor)

    def _piece(self, num_bytes: int) -> torch.Tensor:
        if not num_bytes:  # the end of a block may be misaligned for the dtype, even for an empty view
            return torch.empty(0, dtype=torch.uint8)
        if num_bytes > len(self._rest):
            self._rest = _block(max(num_bytes, min(self._left_bytes, BLOCK_BYTES)))
        piece, self._rest = self._rest[:num_bytes], self._rest[-(-num_bytes // ALIGN_BYTES) * ALIGN_BYTES :]
        self._left_bytes -= num_bytes
        return piece


def _block(num_bytes: int) -> torch.Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)


# A template in memory: pages by step, the tokens they are valid for, and the packing error ----------------------------


@dataclass(frozen=True)
class Template:
    """`pages` by step; `known`: tokens of the finest grid that were not edited themselves."""

    pages: tuple[PackedPage, ...]
    known: torch.Tensor
    error: float
    raw_bytes: int

    @property
    def num_steps(self) -> int:
        return len(self.pages)

    @cached_property
    def size_bytes(self) -> int:
        """Bytes in memory, and on disk except for the index."""
        return sum(packed.size_bytes for page in self.pages for packed in page.values())

    @cached_property
    def is_plain(self) -> bool:
        """Whether every tensor is uncompressed in every step."""
        return all(one.bits == EXACT and not one.is_change for page in self.pages for one in page.values())

    def start_of(self, step: int) -> int:
        """The first page to read in order to decode this step: the last self-contained one up to it."""
        return next(first for first in range(step, -1, -1) if self._is_whole(self.pages[first]))

    def _is_whole(self, page: PackedPage) -> bool:
        return len(page) == len(self.pages[0]) and not any(one.is_change for one in page.values())

    def to(self, device: torch.device | str) -> Template:
        """The same on another device; on the host, CUDA tensors go to pinned memory for asynchronous copies back."""
        is_down = torch.device(device).type == "cpu"
        send = PinnedMemory(self.size_bytes).lowered if is_down else partial(_sent, device=device)
        moved = ({name: _moved(packed, send) for name, packed in page.items()} for page in self.pages)
        return replace(self, pages=tuple(moved), known=self.known.to(device))


class PageReader:
    """Reads the pages of a template, best in order: a page may hold only deltas to the one before.

    Pages are unpacked on `device`, wherever the template is; without one, on the template's own device.
    """

    def __init__(self, template: Template, device: torch.device | None = None) -> None:
        self.template, self.device = template, device
        self._far: tuple[str, ...] = ()
        self._step, self._page = -1, dict[str, torch.Tensor]()

    def has(self, step: int) -> bool:
        """Whether the template includes this step."""
        return step < self.template.num_steps

    def page(self, step: int, far: tuple[str, ...] = ()) -> dict[str, torch.Tensor]:
        """Activations of a step by name: read-only. Names that end in `far` stay on the host, if uncompressed."""
        if step < self._step or far != self._far:
            self._step, self._page, self._far = self.template.start_of(step) - 1, {}, far
        while self._step < step:
            self._step += 1
            here = {name: self._here(name, one) for name, one in self.template.pages[self._step].items()}
            self._page = unpack_page(here, self._page)
        return self._page

    def _here(self, name: str, packed: PackedTensor) -> PackedTensor:
        stays = name.endswith(self._far) and self.template.is_plain and packed.values.is_pinned()
        if stays or self.device in {None, packed.values.device}:
            return packed
        return _moved(packed, partial(_sent, device=self.device))


class TemplateRecorder:
    """Collects the pages of a run. `budget` is the relative error allowed for packing; zero is lossless.

    Only every `stride`-th step is kept: the steps between are read as the one before them.
    """

    def __init__(self, num_steps: int, known: torch.Tensor, budget: float = 0.0, stride: int = 1) -> None:
        self._num_steps, self._packer, self._stride = num_steps, PagePacker(budget), stride
        self._pages: list[PackedPage] = []
        self._known, self._raw_bytes, self.size_bytes = known, 0, 0

    @property
    def num_pages(self) -> int:
        """The number of recorded steps."""
        return len(self._pages)

    @property
    def is_complete(self) -> bool:
        return len(self._pages) == self._num_steps

    def add(self, page: Page) -> None:
        """Append the page of the next step."""
        packed = {} if self.num_pages % self._stride else self._packer.add(page)
        self._raw_bytes += sum(tensor.numel() * tensor.element_size() for tensor in page.values())
        self.size_bytes += sum(one.size_bytes for one in packed.values())
        self._pages.append(packed)

    def finish(self) -> Template:
        """The template, packed as far as the budget allows."""
        return Template(tuple(self._pages), self._known, self._packer.error, self._raw_bytes)


def _moved(packed: PackedTensor, send: Callable[[torch.Tensor], torch.Tensor]) -> PackedTensor:
    return replace(packed, values=send(packed.values), scales=None if packed.scales is None else send(packed.scales))


def _sent(tensor: torch.Tensor, device: torch.device | str | None) -> torch.Tensor:
    return tensor.to(device, non_blocking=True)
