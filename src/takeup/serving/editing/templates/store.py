"""Multi-tier cache of templates for later edits: on the device, in host memory, on disk, each up to its capacity.

A requested template is promoted towards the device; a victim is demoted or, on disk, deleted. The policy selects
victims and receives the queue: templates of unfinished edits. A template of a running edit is not evicted from memory.
What another process with the same folder forgets is forgotten here too, on the next lookup.

Whatever is wrong with a file (damaged, half-written, deleted, of another request), the lookup is a miss: the edit then
computes everything and creates the template again.
"""

import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from takeup.core.files import write_atomically
from takeup.errors import BadInput, OutputFailed
from takeup.serving.contract import CachePolicy
from takeup.serving.editing.templates.disk import TemplateFolder
from takeup.serving.editing.templates.template import Template, TemplateKey, owner_of, template_of

# Edited images by the identifier of their template: the next edit can name one instead of sending it ------------------
#
# Each is stored unmodified as a file in the folder of its owner. Each owner has a quota in bytes, with LRU eviction.
# Several processes may share the folder.

ORIGINAL_SUFFIX = ".original"
TEMPLATE_ID = re.compile(r"tpl_[0-9a-f]{24}")
MOST_FORGOTTEN = 10_000  # images whose deletion is remembered one by one


@dataclass(frozen=True, slots=True)
class Original:
    """A stored image: its template, the size of its file, and its time of last use."""

    template: str
    size_bytes: int
    used_s: float


class Originals:
    """The images of all tenants in one folder."""

    def __init__(self, folder: Path, owner_bytes: int) -> None:
        self._folder, self._owner_bytes = folder, owner_bytes

    def keep(self, tenant: str, template: str, data: bytes) -> bool:
        """Store the image. False if it is too large or the disk is full; edits then continue without it."""
        path = self._path(tenant, template)
        if len(data) > self._owner_bytes:
            return False
        try:
            if path.exists():
                os.utime(path)
            else:
                self._make_room(tenant, len(data))
                write_atomically(path, data)
        except (OSError, OutputFailed):
            return False
        return True

    def find(self, tenant: str, template: str) -> bytes | None:
        """The bytes of the image, if it belongs to this tenant."""
        if not TEMPLATE_ID.fullmatch(template):
            return None
        path = self._path(tenant, template)
        with suppress(OSError):
            os.utime(path)
            return path.read_bytes()
        return None

    def remove(self, tenant: str, template: str) -> None:
        """Delete it; no effect if it does not exist."""
        if TEMPLATE_ID.fullmatch(template):
            self._path(tenant, template).unlink(missing_ok=True)

    def seen_by(self, tenant: str) -> list[Original]:
        """The images of a tenant, most recently used first."""
        return sorted(self._all(tenant), key=lambda one: -one.used_s)

    def _all(self, tenant: str) -> Iterator[Original]:
        for path in (self._folder / owner_of(tenant)).glob(f"*{ORIGINAL_SUFFIX}"):
            with suppress(FileNotFoundError):  # other processes delete files too
                facts = path.stat()
                yield Original(path.name.removesuffix(ORIGINAL_SUFFIX), facts.st_size, facts.st_mtime)

    def _make_room(self, tenant: str, size_bytes: int) -> None:
        kept = self.seen_by(tenant)
        while kept and sum(one.size_bytes for one in kept) + size_bytes > self._owner_bytes:
            self.remove(tenant, kept.pop().template)

    def _path(self, tenant: str, template: str) -> Path:
        if not TEMPLATE_ID.fullmatch(template):
            raise BadInput(f"{template!r} is no template; use one that an edit has told")
        return self._folder / owner_of(tenant) / f"{template}{ORIGINAL_SUFFIX}"


@dataclass(frozen=True, slots=True)
class TierCapacities:
    """Capacity of each tier in bytes; 0 disables a tier. One owner has `owner_bytes` on disk."""

    device_bytes: int = 0
    host_bytes: int = 1 << 30
    disk_bytes: int = 0
    owner_bytes: int | None = None

    def __post_init__(self) -> None:
        if min(self.device_bytes, self.host_bytes, self.disk_bytes, self.owner_bytes or 0) < 0:
            raise BadInput(f"the room for templates is {self}; give bytes from zero up")

    @property
    def most_bytes(self) -> int:
        """The largest template that fits into any tier."""
        return max(self.device_bytes, self.host_bytes, self.disk_bytes)

    @property
    def of_disk(self) -> tuple[int, int]:
        """The total disk quota, and that of one owner."""
        return self.disk_bytes, self.disk_bytes if self.owner_bytes is None else self.owner_bytes


class _Tier:
    """Templates up to a capacity; the policy selects victims until a new one fits."""

    def __init__(self, capacity_bytes: int, policy: CachePolicy) -> None:
        self.capacity_bytes, self.policy = capacity_bytes, policy
        self.kept: dict[str, Template] = {}

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self.kept.values())

    def make_room(self, size_bytes: int, used: set[str], queue: tuple[tuple[str, ...], ...]) -> list[str] | None:
        """Names to evict, or None if there is not enough space without those in use."""
        gone: list[str] = []
        idle = [name for name in self.kept if name not in used]
        free_bytes = self.capacity_bytes - self.size_bytes
        while free_bytes < size_bytes:
            if not idle:
                return None
            name = str(self.policy.victim(idle, queue))
            idle.remove(name)
            gone.append(name)
            free_bytes += self.kept[name].size_bytes
        return gone

    def add(self, name: str, template: Template) -> None:
        self.kept[name] = template
        self.policy.used(name)

    def remove(self, name: str) -> Template | None:
        template = self.kept.pop(name, None)
        if template is not None:
            self.policy.left(name)
        return template


class TemplateStore:
    """`folder` is for files if there is disk capacity; `device` is that of the network."""

    def __init__(
        self,
        make_policy: Callable[[], CachePolicy],
        room: TierCapacities,
        folder: Path | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if room.disk_bytes and folder is None:
            raise BadInput("templates may use the disk, but no folder was given; name one, or give no room on disk")
        self.room, self._device = room, device
        self._disk = None if folder is None else TemplateFolder(folder, make_policy(), *room.of_disk)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="templates")
        self._coming: dict[str, Future[None]] = {}
        self._tiers = {"device": _Tier(room.device_bytes, make_policy()), "host": _Tier(room.host_bytes, make_policy())}
        self._users: Counter[str] = Counter()
        self._begun: dict[str, str] = {}
        self._made: dict[str, str] = {}
        """Generations of images: when edits of them began, and when what is kept of them was made."""
        self._forgotten: dict[str, int] = {}
        self._num_forgotten = self._num_pruned = 0
        self._lock = threading.RLock()

    @property
    def problems(self) -> list[str]:
        """The most recent disk errors."""
        return [] if self._disk is None else list(self._disk.problems)

    def wanted(self, key: TemplateKey) -> None:
        """Pin this template: an edit in the queue needs it, until `released`."""
        with self._lock:
            self._users[key.name] += 1
            self._begun.setdefault(key.name, self._generation(key))

    def released(self, key: TemplateKey) -> None:
        """Unpin it: the edit has ended."""
        with self._lock:
            self._users[key.name] -= 1
            self._users += Counter()  # forget those at zero
            if key.name not in self._users:
                self._begun.pop(key.name, None)

    def find(self, key: TemplateKey) -> Template | None:
        """The template, promoted as far as capacity allows; None if it must be created. May block on the disk."""
        with self._lock:
            coming = self._coming.get(key.name)
        if coming is not None:
            coming.exception()
        generation = self._generation(key)
        found = self.peek(key)
        if found is None and self._disk is not None:
            found = self._disk.find(key)
        if found is None:
            return None
        with self._lock:
            return self._raised(key.name, found, generation)

    def peek(self, key: TemplateKey) -> Template | None:
        """The template if it is in memory; no I/O except to read its generation."""
        with self._lock:
            if self._made.get(key.name) != self._generation(key):
                self._removed(key.name)
            for tier in self._tiers.values():
                if key.name in tier.kept:
                    tier.policy.used(key.name)
                    return tier.kept[key.name]
        return None

    def put(self, key: TemplateKey, template: Template, began: str | None = None) -> None:
        """Keep a template that was just created, unless its image was forgotten since the edit `began`.

        A template that does not fit is not kept; that is not an error.
        """
        moved = template.to(self._device if self.room.device_bytes else "cpu")
        generation = self._generation(key)
        with self._lock:
            if began is None:
                began = self._begun.get(key.name, generation)
            if began != generation:
                return
            self._removed(key.name)
            self._raised(key.name, moved, generation)
            wanted = tuple(self._users)
        if self._disk is not None and self.room.disk_bytes:
            self._disk.put(key, moved, wanted)
            if self._generation(key) != generation:  # forgotten while it was written
                self._disk.drop(key)

    def put_soon(self, key: TemplateKey, make: Callable[[], Template]) -> None:
        """The same in a background thread; `find` blocks until it is done."""
        with self._lock:
            began = self._begun.get(key.name)
            coming = self._coming[key.name] = self._writer.submit(lambda: self.put(key, make(), began))
        coming.add_done_callback(lambda done: self._came(key.name, done))

    def forget(self, template: str) -> None:
        """Delete everything of this image; a running edit keeps what it has loaded, and stores nothing new."""
        with self._lock:
            self._num_forgotten += 1
            self._forgotten[template] = self._num_forgotten
            if len(self._forgotten) > MOST_FORGOTTEN:  # then all images count as forgotten by running edits
                self._forgotten, self._num_pruned = {}, self._num_forgotten
            kept = {name for tier in self._tiers.values() for name in tier.kept}
            coming = [one for name, one in self._coming.items() if template_of(name) == template]
            for name in kept:
                if template_of(name) == template:
                    self._removed(name)
        wait(coming)
        if self._disk is not None:
            self._disk.forget(template)

    def close(self) -> None:
        """Finish pending writes."""
        self._writer.shutdown()

    @property
    def size_bytes(self) -> dict[str, int]:
        """Bytes used in each tier."""
        on_disk = 0 if self._disk is None else self._disk.size_bytes
        return {name: tier.size_bytes for name, tier in self._tiers.items()} | {"disk": on_disk}

    def _generation(self, key: TemplateKey) -> str:
        """Changes whenever the image is forgotten, here or by another process."""
        elsewhere = "" if self._disk is None else self._disk.generation(key.template)
        return f"{self._forgotten.get(key.template, self._num_pruned)} {elsewhere}"

    def _removed(self, name: str) -> None:
        self._made.pop(name, None)
        for tier in self._tiers.values():
            tier.remove(name)

    def _raised(self, name: str, template: Template, generation: str) -> Template:
        """Insert into the highest tier with enough capacity."""
        kept = {one for tier in self._tiers.values() for one in tier.kept}
        self._made = {one: made for one, made in self._made.items() if one in kept} | {name: generation}
        for tier_name, tier in self._tiers.items():
            if name in tier.kept:
                return tier.kept[name]
            used, queue = set(self._users), tuple((one,) for one in self._users)
            gone = tier.make_room(template.size_bytes, used, queue) if tier.capacity_bytes else None
            if gone is None:
                continue
            for one in gone:
                self._lowered(tier_name, one, tier.remove(one))
            template = template.to(self._device if tier_name == "device" else "cpu")
            tier.add(name, template)
            if tier_name == "device":
                self._tiers["host"].remove(name)
            return template
        return template

    def _lowered(self, tier_name: str, name: str, template: Template | None) -> None:
        """Demote from the device to the host, if it fits without eviction; the disk has its own copy."""
        host = self._tiers["host"]
        if template is None or tier_name != "device":
            return
        if host.size_bytes + template.size_bytes <= host.capacity_bytes:
            host.add(name, template.to("cpu"))

    def _came(self, name: str, coming: Future[None]) -> None:
        with self._lock:
            if self._coming.get(name) is coming:
                del self._coming[name]
