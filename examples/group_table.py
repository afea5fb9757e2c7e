"""Follow reference counts and effective reference counts by hand: two zips that share a block."""

from __future__ import annotations

from takeup.caching import GroupTable

table = GroupTable()
table.open("zip 1", ["a", "b"])
table.open("zip 2", ["b", "c"])
for block in "abc":
    table.cached(block)


def show(event: str) -> None:
    """Print both counts of all blocks."""
    counts = "  ".join(f"{block}: {table.rc(block)}/{table.erc(block)}" for block in "abc")
    print(f"{event:22} {counts}")


show("all in memory")
print(f"a leaves, and breaks {table.lost('a')} group")
show("a is lost")
print(f"a leaves again, and breaks {table.lost('a')} groups")
show("the same, said twice")
table.close("zip 2")
show("zip 2 is computed")
table.cached("a")
show("a is back")
