"""Templates that stay for the next edit: on the device, in memory of the host, on disk, each as far as there is room.

What is wanted and not on the device comes up from below; what must leave goes down or, from the disk, away. The policy
says what leaves and is shown the queue: templates of the edits that are not done. A template of an edit that is running
does not leave. Whatever is wrong with a file (damaged, half-written, deleted, of another request), the answer is that
there is no template: the edit then computes everything and makes it again.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from takeup.errors import BadInput, OutputFailed
from takeup.serving.contract import CachePolicy
from takeup.serving.engines.templates.files import read_template, write_template
from takeup.serving.engines.templates.keys import TemplateKey, digest_of
from takeup.serving.engines.templates.templates import Template

__all__ = ["Room", "TemplateStore"]


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes for templates in each tier; nothing is kept where there is none."""

    device_bytes: int = 0
    host_bytes: int = 1 << 30
    disk_bytes: int = 0

    def __post_init__(self) -> None:
        if min(self.device_bytes, self.host_bytes, self.disk_bytes) < 0:
            raise BadInput(f"the room for templates is {self}; give bytes from zero up")


class _Tier:
    """Templates up to a size; `victim` is asked until the new one fits."""

    def __init__(self, capacity_bytes: int, policy: CachePolicy) -> None:
        self.capacity_bytes, self.policy = capacity_bytes, policy
        self.kept: dict[str, Template] = {}

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self.kept.values())

    def make_room(self, size_bytes: int, used: set[str], queue: tuple[tuple[str, ...], ...]) -> list[str] | None:
        """Names that left, or None if there is no room without those in use."""
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
    """`folder` is where files go if there is room on disk; `device` is that of the network."""

    def __init__(
        self,
        make_policy: Callable[[], CachePolicy],
        room: Room,
        folder: Path | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if room.disk_bytes and folder is None:
            raise BadInput("templates may use the disk, but no folder was given; name one, or give no room on disk")
        self._device, self._folder, self._disk_bytes = device, folder, room.disk_bytes
        self._tiers = {
            "device": _Tier(room.device_bytes, make_policy()),
            "host": _Tier(room.host_bytes, make_policy()),
        }
        self._files, self._seen = make_policy(), set[str]()
        self._users: Counter[str] = Counter()
        self._lock = threading.RLock()
        self.problems: list[str] = []

    def wanted(self, key: TemplateKey) -> None:
        """An edit that needs this template is in the queue; it stays until `released`."""
        with self._lock:
            self._users[key.name] += 1

    def released(self, key: TemplateKey) -> None:
        """The edit is over."""
        with self._lock:
            self._users[key.name] -= 1
            self._users += Counter()  # forget those at zero

    def find(self, key: TemplateKey) -> Template | None:
        """The template, brought up as far as there is room; None if it must be made."""
        with self._lock:
            for tier in self._tiers.values():
                if key.name in tier.kept:
                    tier.policy.used(key.name)
                    return self._raised(key.name, tier.kept[key.name])
            found = self._from_disk(key)
            return None if found is None else self._raised(key.name, found)

    def put(self, key: TemplateKey, template: Template) -> None:
        """Keep a template that was just made. What does not fit is not kept; that is no error."""
        with self._lock:
            self._to_disk(key, template)
            self._raised(key.name, template)

    def forget(self, key: TemplateKey) -> None:
        """Delete it everywhere; an edit that has it keeps what it has."""
        with self._lock:
            for tier in self._tiers.values():
                tier.remove(key.name)
            self._unlink(key.name)

    @property
    def size_bytes(self) -> dict[str, int]:
        """What is used of each tier."""
        return {name: tier.size_bytes for name, tier in self._tiers.items()} | {"disk": self._used_bytes()}

    # ---------------------------------------------------------------------------------------------------------------

    def _raised(self, name: str, template: Template) -> Template:
        """Into the highest tier with room."""
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
        """From the device to the host, if it fits there without more ado; the disk has its own copy."""
        host = self._tiers["host"]
        if template is None or tier_name != "device":
            return
        if host.size_bytes + template.size_bytes <= host.capacity_bytes:
            host.add(name, template.to("cpu"))

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{name}.template"

    def _from_disk(self, key: TemplateKey) -> Template | None:
        if self._folder is None or not self._path(key.name).exists():
            return None
        try:
            template = read_template(self._path(key.name), digest_of(key.name))
        except BadInput as problem:
            self.problems.append(str(problem))
            self._unlink(key.name)
            return None
        self._file_used(key.name)
        return template

    def _to_disk(self, key: TemplateKey, template: Template) -> None:
        if self._folder is None or template.size_bytes > self._disk_bytes:
            return
        try:
            while self._used_bytes() + template.size_bytes > self._disk_bytes:
                self._drop_file()
            write_template(self._path(key.name), template, digest_of(key.name))
            self._file_used(key.name)
        except OutputFailed as problem:
            self.problems.append(str(problem))

    def _drop_file(self) -> None:
        assert self._folder is not None
        names = [path.stem for path in sorted(self._folder.glob("*.template"))]
        for name in names:
            if name not in self._seen:  # from before this process
                self._file_used(name)
        idle = [name for name in names if name not in self._users] or names
        self._unlink(str(self._files.victim(idle, tuple((one,) for one in self._users))))

    def _file_used(self, name: str) -> None:
        self._seen.add(name)
        self._files.used(name)

    def _unlink(self, name: str) -> None:
        if self._folder is None:
            return
        self._path(name).unlink(missing_ok=True)
        if name in self._seen:
            self._seen.remove(name)
            self._files.left(name)

    def _used_bytes(self) -> int:
        if self._folder is None or not self._folder.exists():
            return 0
        return sum(path.stat().st_size for path in self._folder.glob("*.template"))
