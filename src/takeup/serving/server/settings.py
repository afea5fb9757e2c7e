"""What a server is started with: the sizes it accepts, how many requests run and wait, and where adapters lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from takeup.errors import BadInput
from takeup.serving.server.rules import ServerPolicies

MEBI = 2**20


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What depends on the machine; the limits of single fields stand in their schemas."""

    max_running: int = 16
    max_waiting: int = 256
    max_output_pixels: int = 2_048 * 2_048
    max_input_pixels: int = 16_000_000
    max_image_bytes: int = 20 * MEBI
    max_body_bytes: int = 64 * MEBI
    max_adapter_bytes: int = 1024 * MEBI
    max_adapters: int = 1_000
    max_template_bytes: int = 256 * MEBI

    def __post_init__(self) -> None:
        if self.max_running < 1 or self.max_waiting < 0:
            raise BadInput(
                f"{self.max_running} requests run and {self.max_waiting} wait; let at least one run, and no less than "
                "none wait"
            )


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """`adapters` is a folder of LoRAs that every tenant may use; `uploads` is where those of the tenants are kept.

    `rules` are the admission, order and routing policies. Edited images are kept in `templates`, so that later requests
    can refer to them by id.
    """

    model: str
    uploads: Path
    adapters: Path | None = None
    limits: ServerLimits = field(default_factory=ServerLimits)
    rules: ServerPolicies = field(default_factory=ServerPolicies)
    templates: Path | None = None
