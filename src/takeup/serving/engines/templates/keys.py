"""Template keys: they include everything that changes an activation, and the tenant that owns it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

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
