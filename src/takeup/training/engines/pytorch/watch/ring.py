"""The shared memory in which a rank writes down its calls: a file of 64-bit words that only this rank writes.

How it works. Rows of a fixed size go round and round; `HEAD` counts all rows ever written and is raised last, so a
reader never sees a row before it is whole. Every row begins with its own number, so one that has been overwritten, or
was never a row, is known for what it is. Some words of the header go the other way: there a controller asks.

    HEADER   64 words: who this is, how many rows, what is asked, what is answered
    GROUPS   1,024 x 3 words: a group of ranks, the place of this rank in it, its size
    ROWS     20,000 x 8 words: number, operation, peer (its place in the group), group, number in the group, bytes,
             began, ended (nanoseconds by the clock of this rank; 0 while under way, -1 if the end will not be seen)

A shim in C writes the same file (native/nccl-shim).
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

__all__ = [
    "CAPACITY",
    "FIRST_GROUP",
    "FIRST_ROW",
    "HEADER_WORDS",
    "MAGIC",
    "MOST_GROUPS",
    "ROW_WORDS",
    "SIZE_BYTES",
    "UNSEEN",
    "Ring",
    "Word",
]

MAGIC = 0x7461_6B65_7570_0001  # "takeup", and the version of this layout
CAPACITY = 20_000
MOST_GROUPS = 1_024
HEADER_WORDS, GROUP_WORDS, ROW_WORDS = 64, 3, 8
FIRST_GROUP = HEADER_WORDS
FIRST_ROW = FIRST_GROUP + MOST_GROUPS * GROUP_WORDS
SIZE_BYTES = 8 * (FIRST_ROW + CAPACITY * ROW_WORDS)
BEGAN, ENDED = 6, 7
UNSEEN = -1  # an end that nobody needs to wait for


class Word:
    """Where things stand in the header."""

    MAGIC = 0
    RANK = 1
    NUM_RANKS = 2
    PID = 3
    HEAD = 4
    NUM_GROUPS = 5
    IS_ADAPTIVE = 6  # the job has a pipeline that adapts its schedule by itself
    IS_OVER = 7  # this rank has left its job in good order
    # Asked by the controller: stop before call number STOP_COUNT of this kind; not after the lease is over.
    LEASE_UNTIL_NS = 16
    STOP_OPERATION = 17
    STOP_GROUP = 18
    STOP_SIZE = 19
    STOP_COUNT = 20
    STOP = 21  # the number of the pause, written last; 0 for none
    TASK = 22  # the number of the task whose file is ready
    STOP_SEEN = 23  # how many calls of this kind the rank has made; set to 0 by who asks
    ADAPT = 24  # the number of the request to measure the pipeline and to plan its schedule anew
    # Answered by the rank.
    STOPPED = 32  # the number of the pause in which this rank is; below zero once it has gone on
    TASK_DONE = 34
    ADAPTED = 35  # the number of the last such request that all ranks followed
    SCHEDULE = 36  # how often the pipeline has changed its schedule
    WAITED_NS = 37  # for how long this rank was ready to run but had no core; written by who reads the ring
    DELAYED_NS = 38  # the same as the kernel counted it when it was last read, whatever the reason
    THROTTLED_NS = 39  # and for how long a quota of this rank alone was spent
    # Shares of the batch (batches.py).
    PLAN = 40  # the version, written last
    PLAN_FIRST = 41
    PLAN_COUNT = 42
    PLAN_RESTART = 43
    NUM_MICROBATCHES = 48  # of the whole job; 0 if its batches cannot be shared anew
    MICROBATCH_NS = 49
    PLAN_IN_USE = 50
    CAN_RESTART = 51


class Ring:
    """The writing end. Not for several threads at a time."""

    def __init__(self, path: Path, rank: int, num_ranks: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(descriptor, SIZE_BYTES)
            self._memory = mmap.mmap(descriptor, SIZE_BYTES)
        finally:
            os.close(descriptor)
        self.words = memoryview(self._memory).cast("q")
        self._pack_row = struct.Struct(f"={ROW_WORDS}q").pack_into
        self._pack_times = struct.Struct("=2q").pack_into
        self._head = 0
        self._groups = 0
        self.words[Word.RANK], self.words[Word.NUM_RANKS], self.words[Word.PID] = rank, num_ranks, os.getpid()
        self.words[Word.MAGIC] = MAGIC  # last: from here on it may be read

    def add_group(self, group: int, place: int, size: int) -> None:
        """Say that this rank has this place in a group."""
        if self._groups < MOST_GROUPS:
            first = FIRST_GROUP + GROUP_WORDS * self._groups
            self.words[first], self.words[first + 1], self.words[first + 2] = group, place, size
            self._groups += 1
            self.words[Word.NUM_GROUPS] = self._groups

    def begin(self, operation: int, peer: int, group: int, number: int, size_bytes: int, began_ns: int) -> int:
        """Add a row, and return its number."""
        head = self._head
        offset = 8 * (FIRST_ROW + ROW_WORDS * (head % CAPACITY))
        self._pack_row(self._memory, offset, head, operation, peer, group, number, size_bytes, began_ns, 0)
        self._head = head + 1
        self.words[Word.HEAD] = self._head
        return head

    def note(self, row: int, began_ns: int, ended_ns: int) -> None:
        """Say more exactly when the call of a row began, and when it ended."""
        if self._head - row < CAPACITY:
            self._pack_times(self._memory, 8 * (FIRST_ROW + ROW_WORDS * (row % CAPACITY) + BEGAN), began_ns, ended_ns)

    def end(self, row: int, ended_ns: int) -> None:
        """Say when the call of a row ended."""
        if self._head - row < CAPACITY:  # else another row stands there
            self.words[FIRST_ROW + ROW_WORDS * (row % CAPACITY) + ENDED] = ended_ns

    def lasted(self, row: int, duration_ns: int) -> None:
        """Say how long the call of a row lasted."""
        self.end(row, self.words[FIRST_ROW + ROW_WORDS * (row % CAPACITY) + BEGAN] + duration_ns)
