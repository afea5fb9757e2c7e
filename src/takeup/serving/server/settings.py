"""Settings of a server: its limits, its policies by name, and where adapters and templates are stored."""

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from pathlib import Path

from takeup.errors import BadInput, UnknownName
from takeup.serving.contract import Admit, Route
from takeup.serving.scheduling.adapters import ORDERS
from takeup.serving.scheduling.queue import Admission, ReorderingQueue
from takeup.serving.scheduling.routing import ROUTES
from takeup.serving.server.adapter_sources import check_prefixes
from takeup.serving.server.admission import AdmissionQueue, Waiter
from takeup.serving.server.jobs import check_webhooks

# Policies of a server, selected by name: admission, queue order and routing -------------------------------------------
#
# The simulator uses the same objects.


@dataclass(frozen=True, slots=True)
class ServerPolicies:
    """Policy names. `patience`: maximum times a job is overtaken; `in_time`: refuse jobs that would be late."""

    order: str = "shared_loads"
    patience: int = 64
    route: str = "affinity"
    in_time: bool = True

    def __post_init__(self) -> None:
        for kind, name, known in (("order of the queue", self.order, ORDERS), ("route", self.route, ROUTES)):
            if name not in known:
                raise UnknownName(kind, name, known)
        if self.patience < 0:
            raise BadInput(f"the patience is {self.patience}; give how often a request may be overtaken, from 0 up")

    def router(self) -> Route:
        """The rule that selects the worker of a job."""
        return ROUTES[self.route]

    def admission(self, max_waiting: int) -> Admit:
        """The admission rule."""
        return Admission(max_waiting, self.in_time)

    def admission_queue(
        self,
        max_running: int,
        max_waiting: int,
        known: Callable[[], Collection[Hashable]],
        tenants: Collection[str] = (),
    ) -> AdmissionQueue:
        """The admission queue under these policies; `known` are the LoRAs that are in memory.

        Half of the places are divided equally among the tenants; the other half is for all of them.
        """
        places_each = (max_running + max_waiting) // (2 * len(tenants)) if len(tenants) > 1 else 0

        def queue() -> ReorderingQueue[Waiter]:
            return ReorderingQueue(ORDERS[self.order], self.patience)

        return AdmissionQueue(max_running, self.admission(max_waiting), queue, known, tenants, places_each)


# What a server is started with: the sizes it accepts, how many requests run and wait, and where adapters lie ----------

MEBI = 2**20


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits that depend on the machine; limits of single fields are in their schemas."""

    max_running: int = 16
    max_waiting: int = 256
    max_output_pixels: int = 2_048 * 2_048
    max_input_pixels: int = 16_000_000
    max_image_bytes: int = 20 * MEBI
    max_body_bytes: int = 64 * MEBI
    max_adapter_bytes: int = 1024 * MEBI
    max_adapters: int = 1_000
    max_template_bytes: int = 256 * MEBI
    max_connections: int = 4_000
    header_s: float = 10.0
    body_idle_s: float = 30.0

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
    can refer to them by id. `cors` are the origins whose web pages may use the server, `sources` and `webhooks` the
    prefixes that LoRAs may be read from and webhooks may begin with. With `data_urls` answers carry images in URLs.
    """

    model: str
    uploads: Path
    adapters: Path | None = None
    limits: ServerLimits = field(default_factory=ServerLimits)
    rules: ServerPolicies = field(default_factory=ServerPolicies)
    templates: Path | None = None
    cors: Collection[str] = ()
    sources: tuple[str, ...] = ()
    webhooks: tuple[str, ...] = ()
    data_urls: bool = False

    def __post_init__(self) -> None:
        check_prefixes(self.sources)
        check_webhooks(self.webhooks)
