"""Keep real bytes in a bounded store: what does not fit goes to files, and the policy says what that is."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from takeup.caching import GroupTable, LocalStore, find_policy

table = GroupTable()
table.open("sum", ["left", "right"])  # somebody will read these two together; nobody will read the log again

with TemporaryDirectory() as folder:
    policy = find_policy("lrc").make(table, 2000)
    store = LocalStore(policy, table, 2000, Path(folder))
    store.put("left", b"l" * 1000)
    store.put("log", b"g" * 1000)
    room = store.put("right", b"r" * 1000)
    for eviction in room.evict:
        print(f"{eviction.block} left: {eviction.reason}")
    for block in ("left", "right", "log"):
        print(f"{block:6} {'in memory' if store.get(block) else 'in a file'}")
    print(f"read back {len(store.load('log'))} bytes of log")
