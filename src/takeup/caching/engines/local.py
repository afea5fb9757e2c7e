"""A bounded store for any Python program: blocks in memory as its policy says, the others in a folder.

A block is written once; the clean copy stays, so that evicting it again costs nothing.
"""

import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from takeup.caching.contract import Policy
from takeup.caching.groups import GroupTable
from takeup.caching.model import AdmissionDecision, BlockId
from takeup.core.files import write_atomically
from takeup.errors import BadInput, OutputFailed


@dataclass(slots=True)
class StoreCounts:
    """What a store has done so far."""

    num_evictions: int = 0
    num_broadcasts: int = 0
    num_refused: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


class LocalStore:
    """Blocks in memory up to `capacity_bytes`, the others in `folder`. Feeds the group table it is given.

    A block does not change: putting it again counts as a read, and different bytes under its name are refused.
    """

    def __init__(self, policy: Policy, table: GroupTable, capacity_bytes: int, folder: Path) -> None:
        self.policy, self.table, self.folder = policy, table, folder
        self.free_bytes = capacity_bytes
        self.counts = StoreCounts()
        self._memory: dict[BlockId, bytes] = {}
        self._files: dict[BlockId, Path] = {}
        self._checksums: dict[BlockId, int] = {}

    def get(self, block: BlockId) -> bytes | None:
        value = self._memory.get(block)
        if value is not None:
            self.policy.read(block)
        return value

    def load(self, block: BlockId) -> bytes:
        """Read a spilled block back from its file, without storing it."""
        if block not in self._files:
            raise BadInput(f"block {block!r} has no file in this store; get it from memory, or put it first")
        value = self._files[block].read_bytes()
        self.counts.read_bytes += len(value)
        return value

    def put(
        self, block: BlockId, value: bytes, pinned: Collection[BlockId] = (), dataset: int | None = None
    ) -> AdmissionDecision:
        """Make room as the policy says, then keep the block in memory if it was admitted, else in its file.

        Blocks of one `dataset` are siblings.
        """
        self._require_unchanged(block, value)
        if self.get(block) is not None:
            return AdmissionDecision((), admit=True)
        room = self._ask(block, value, pinned, dataset)
        self._spill_what_leaves(room, block, value)
        for eviction in room.evict:
            self._evict(eviction.block)
        if room.admit:
            self.free_bytes -= _size_bytes(value)
            self._memory[block] = value
            self.policy.stored(block, _size_bytes(value))
        else:
            self.counts.num_refused += 1
            self.table.lost(block)
        return room

    def discard(self, block: BlockId) -> None:
        """The block will not be read again: remove it from memory without spilling it."""
        if block in self._memory:
            self.free_bytes += _size_bytes(self._memory.pop(block))
            self.policy.removed(block)
            self.table.lost(block)

    def _require_unchanged(self, block: BlockId, value: bytes) -> None:
        checksum = zlib.crc32(value)
        if self._checksums.setdefault(block, checksum) != checksum:
            raise BadInput(f"block {block!r} was put here before with other bytes; give the new ones a new name")

    def _ask(self, block: BlockId, value: bytes, pinned: Collection[BlockId], dataset: int | None) -> AdmissionDecision:
        price = 1.0 if block in self._files else 2.0  # without a clean copy, eviction costs a write too
        self.table.describe(block, _size_bytes(value), price * _size_bytes(value), dataset)
        self.table.cached(block)
        return self.policy.make_room(block, _size_bytes(value), self.free_bytes, pinned)

    def _spill_what_leaves(self, room: AdmissionDecision, block: BlockId, value: bytes) -> None:
        """Write before anything moves, so that a full disk loses nothing and the store can be used on."""
        leaving = {eviction.block: self._memory[eviction.block] for eviction in room.evict}
        try:
            for name, content in (leaving if room.admit else {block: value}).items():
                self._spill(name, content)
        except OutputFailed:
            self.table.lost(block)
            for name, content in leaving.items():  # a policy may have removed them already
                self.policy.removed(name)
                self.policy.stored(name, _size_bytes(content))
            raise

    def _evict(self, block: BlockId) -> None:
        self.free_bytes += _size_bytes(self._memory.pop(block))
        self.policy.removed(block)
        self.counts.num_evictions += 1
        self.counts.num_broadcasts += self.table.lost(block) > 0

    def _spill(self, block: BlockId, value: bytes) -> None:
        if block not in self._files:
            path = self.folder / f"block-{len(self._files)}"
            write_atomically(path, value)
            self._files[block] = path
            self.counts.written_bytes += len(value)


def _size_bytes(value: bytes) -> int:
    """What a block counts for; at least one byte, also for an empty one."""
    return max(1, len(value))
