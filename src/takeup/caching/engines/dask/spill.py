"""The guided spill buffer: classes that replace the stock ones on the worker's existing buffer objects.

`guide_buffer` changes the class of the buffer's memory part and of its disk part, and nothing else: no value moves, and
all references to them stay valid. `release_buffer` changes them back. Any failure in a guide ends in one log line
and in stock behaviour.

A guide sleeps until half the target is in memory, so that a worker without pressure works as stock does.

Beyond the order of eviction four things differ from stock: inputs of running tasks are not evicted to get below the
target (that would free nothing), nor are values that are about to be freed; a value read back keeps its file; and a
full disk met while a value is *read* no longer fails the task that reads it.
"""

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zict
from dask.typing import Key
from distributed.spill import MaxSpillExceeded, PickleError, Slow, SpillBuffer, SpilledSize
from zict.common import NoDefault, nodefault

from takeup.caching.engines.dask.spill_guide import SpillGuide

# Clean copies: files of values that were read back, kept so that evicting them again writes nothing -------------------
#
# The stock buffer removes the file when it reads a value back, so a value is written at every eviction. Values are
# immutable, so the file stays valid: it is hidden from the buffer (which believes a key is in one place only) and
# shown again when the value is evicted. A copy belongs to one object in memory; it is removed when the key is deleted
# or refers to another object. So copies never exceed the bytes in memory, and `max-spill` counts them too.


@dataclass(frozen=True, slots=True)
class CleanCopy:
    """A hidden file, its size, and which object it is a copy of."""

    file_name: str
    size: SpilledSize
    value_id: int


class CleanCopies:
    """The hidden files of one worker, oldest first."""

    def __init__(self, slow: Slow, are_kept: bool) -> None:
        self.slow = slow
        self.are_kept = are_kept
        self.total_bytes = 0
        self._copies: dict[Key, CleanCopy] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._copies

    def __len__(self) -> int:
        return len(self._copies)

    def hide(self, key: Key, value: object) -> None:
        """The value was read back: hide its file from the buffer. `value` must stay alive as long as its key."""
        self.forget(key)
        size = self.slow.weight_by_key.pop(key)
        self.slow.total_weight -= size
        file_name = self.slow.d.filenames.pop(key)  # type: ignore[attr-defined]
        self._copies[key] = CleanCopy(file_name, size, id(value))
        self.total_bytes += size.disk

    def show(self, key: Key, value: object) -> int:
        """The value is evicted: show its file to the buffer again. Returns the bytes not written, 0 without a copy."""
        copy = self._copies.get(key)
        if copy is None or copy.value_id != id(value):
            return 0
        del self._copies[key]
        self.total_bytes -= copy.size.disk
        self.slow.weight_by_key[key] = copy.size
        self.slow.total_weight += copy.size
        self.slow.d.filenames[key] = copy.file_name  # type: ignore[attr-defined]
        return copy.size.disk

    def forget(self, key: Key) -> None:
        """Remove the copy of this key, if there is one."""
        copy = self._copies.pop(key, None)
        if copy is not None:
            self.total_bytes -= copy.size.disk
            (Path(self.slow.d.directory) / copy.file_name).unlink()  # type: ignore[attr-defined]

    def shrink_to(self, most_bytes: float) -> None:
        """Remove the oldest copies until the others fit."""
        while self._copies and self.total_bytes > most_bytes:
            self.forget(next(iter(self._copies)))


WAKE_SHARE = 0.5  # of the target: with less in memory nothing is tracked and no message is sent

logger = logging.getLogger("takeup.dask")


@dataclass(slots=True)
class SpillHooks:
    """State of a guided buffer. `report` notifies other workers that a value was evicted or read back; `woke` is called
    when the buffer fills up, and nothing is tracked before; `release` is called once, soon after something failed."""

    guide: SpillGuide
    copies: CleanCopies
    report: Callable[[Hashable, bool], None]
    release: Callable[[], None]
    woke: Callable[[], None]
    is_asleep: bool = True
    failed: bool = False
    has_logged_full: bool = False
    held: tuple[Hashable, ...] = ()

    def tell(self, event: Callable[..., Any], *details: object) -> Any:
        """Call a method of the guide and return its result; None while it sleeps, and once a call has failed."""
        if self.failed or self.is_asleep:
            return None
        try:
            return event(*details)
        except Exception:
            self.failed = True
            logger.exception("the guide of the spill order failed; this worker goes on with stock behaviour")
            self.release()
            return None

    def wake(self, memory: zict.LRU[Any, Any]) -> None:
        """Track the values from now on, those in memory first."""
        if self.is_asleep:
            self.is_asleep = False
            for key in list(memory.order):
                self.tell(self.guide.stored, key, memory.weights[key], True)
            self.tell(self.woke)

    @property
    def pending_free_bytes(self) -> float:
        """Bytes of values that are about to be freed and need not be written."""
        return 0.0 if self.failed else self.guide.pending_frees.total_bytes

    def hold(self, key: Hashable | None) -> None:
        """Protect the value that is being read back from eviction, whatever its rank; None clears it."""
        self.tell(self.guide.order.unpin, self.held)
        self.held = () if key is None else (key,)
        self.tell(self.guide.order.pin, self.held)

    def log_once(self, message: str, detail: object) -> None:
        """Log once why values stay in memory."""
        if not self.has_logged_full:
            self.has_logged_full = True
            logger.warning(message, detail)


class GuidedMemory(zict.LRU[Any, Any]):
    """The memory part: the guide selects its victims."""

    hooks: SpillHooks

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        self.hooks.tell(self.hooks.guide.read, key)
        return value

    def set_noevict(self, key: Any, value: Any) -> None:
        guide, tell = self.hooks.guide, self.hooks.tell
        is_new = key not in self.hooks.copies.slow.weight_by_key  # else it is being read back
        tell(guide.finished, key)
        super().set_noevict(key, value)
        if self.hooks.is_asleep:
            self.wake_at(WAKE_SHARE * self.n)
        elif tell(guide.stored, key, self.weights[key], is_new):
            tell(self.hooks.report, key, False)
        if not is_new:
            self.hooks.hold(key)

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        self.hooks.copies.forget(key)
        self.hooks.tell(self.hooks.guide.deleted, key)

    def wake_at(self, most_bytes: float) -> None:
        """Wake the guide if there is so much in memory."""
        if self.total_weight + self.offset >= most_bytes:
            self.hooks.wake(self)

    def evict_until_below_target(self, n: float | None = None) -> None:
        most = self.n if n is None else n
        while self.total_weight + self.offset - self.hooks.pending_free_bytes > most and not self.closed:
            key = self._next_victim()
            if key is None or not self._evict_or_pass_over(key):
                break
        self.hooks.hold(None)

    def evict(self, key: Any | NoDefault = nodefault) -> tuple[Any, Any, float] | tuple[None, None, float]:
        self.hooks.wake(self)
        guide, tell = self.hooks.guide, self.hooks.tell
        by_process_memory = key is nodefault
        if by_process_memory:
            key = next(iter(self.heavy), None)
            key = tell(guide.order.any_victim) if key is None else key
        left = super().evict(nodefault if key is None else key)
        if by_process_memory and left[0] is not None:
            tell(guide.stock.shrink_to, guide.stock.held_bytes - left[2])
        if left[0] is not None and tell(guide.evicted, left[0]):
            tell(self.hooks.report, left[0], True)
        return left

    def _next_victim(self) -> Any | None:
        if self.heavy or self.hooks.failed:
            return next(iter(self.heavy or self.order), None)
        return self.hooks.tell(self.hooks.guide.order.victim)

    def _evict_or_pass_over(self, key: Any) -> bool:
        """False if trying another victim is useless."""
        is_heavy = key in self.heavy
        try:
            self.evict(key)
        except KeyError:
            return False
        except PickleError:
            if is_heavy or self.hooks.failed:
                raise
            self.hooks.log_once("%r cannot be pickled; it stays in memory", key)
            self.hooks.tell(self.hooks.guide.stuck, key)
            return not self.hooks.guide.is_stuck(self._next_victim())
        except (MaxSpillExceeded, OSError) as error:
            self.hooks.log_once("spilling failed, values stay in memory: %r", error)
            return False
        return True


class GuidedSlow(Slow):
    """The disk part: it keeps the files of values that were read back."""

    memory: GuidedMemory
    copies: CleanCopies

    def __setitem__(self, key: Any, value: object) -> None:
        counts = self.memory.hooks.guide.counts
        saved_bytes = self.copies.show(key, value)
        if saved_bytes:
            counts.num_clean_evictions += 1
            counts.saved_bytes += saved_bytes
            return
        self.copies.forget(key)
        self._make_room(self.memory.weights.get(key, 0))
        try:
            super().__setitem__(key, value)
        except OSError:
            if not self.copies:
                raise
            self.copies.shrink_to(0)  # the disk is full: values take precedence over copies
            super().__setitem__(key, value)
        self._make_room(0)  # what it took on disk is known only now

    def __delitem__(self, key: Any) -> None:
        memory, hooks = self.memory, self.memory.hooks
        if key in memory.d and key not in memory._cancel_evict and self.copies.are_kept:  # it was just read back
            self.copies.hide(key, memory.d[key])
            self._make_room(0)
        else:
            super().__delitem__(key)
            if key not in memory.d:
                hooks.tell(hooks.guide.deleted, key)

    def _make_room(self, size_bytes: float) -> None:
        if self.max_weight is not False:
            self.copies.shrink_to(max(0, self.max_weight - self.total_weight.disk - size_bytes))


def why_not(data: object) -> str | None:
    """Why this worker's data cannot be guided; None if it can."""
    if type(data) is not SpillBuffer:
        return f"its data are in a {type(data).__name__}, not in a SpillBuffer: spilling is off or is not Dask's own"
    if type(data.fast) is not zict.LRU or type(data.slow) is not zict.Cache or type(data.slow.data) is not Slow:
        return "its spill buffer is not built as in the versions of distributed this was written for"
    needed = (
        (data.fast, "d heavy order weights total_weight offset closed _cancel_evict"),
        (data.slow.data, "weight_by_key total_weight max_weight"),
        (data.slow.data.d, "filenames directory"),
    )
    missing = [name for part, names in needed for name in names.split() if not hasattr(part, name)]
    return f"its spill buffer lacks {', '.join(missing)}" if missing else None


def guide_buffer(
    data: SpillBuffer,
    guide: SpillGuide,
    report: Callable[[Hashable, bool], None],
    release: Callable[[], None],
    woke: Callable[[], None] = lambda: None,
) -> SpillHooks:
    """Let the guide decide what is spilled. The caller must have checked `why_not`."""
    memory: Any = data.fast
    slow: Any = data._slow_uncached
    copies = CleanCopies(slow, guide.options.clean_copies)
    hooks = SpillHooks(guide, copies, report, release, woke)
    memory.hooks, memory.__class__ = hooks, GuidedMemory
    slow.memory, slow.copies, slow.__class__ = memory, copies, GuidedSlow
    memory.wake_at(WAKE_SHARE * memory.n)
    return hooks


def guided_memory(data: object) -> GuidedMemory | None:
    """The memory part if it is guided."""
    memory = getattr(data, "fast", None)
    return memory if isinstance(memory, GuidedMemory) else None


def release_buffer(data: object) -> None:
    """Restore the stock classes; removes all added attributes and files."""
    memory = guided_memory(data)
    if memory is None:
        return
    slow: Any = memory.hooks.copies.slow
    memory.hooks.copies.shrink_to(0)
    slow.__class__ = Slow
    del slow.memory, slow.copies
    memory.__class__ = zict.LRU  # type: ignore[assignment]
    del memory.hooks
