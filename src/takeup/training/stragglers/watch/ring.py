"""Ring buffer in shared memory in which a rank records its calls: a file of 64-bit words.

How it works. Only the rank writes rows, of a fixed size; `HEAD` counts all rows ever written and is incremented last,
so a reader never sees an incomplete row. Every row begins with its own number, so overwritten or invalid rows are
detected. Some words of the header are written by the controller, as requests to the rank.

    HEADER   64 words: identity of the rank, number of rows, requests, answers
    GROUPS   1,024 x 3 words: process group, group rank of this rank, group size
    ROWS     20,000 x 8 words: number, operation, peer (its rank in the group), group, number in the group, bytes,
             began, ended (nanoseconds by the clock of this rank; 0 while in flight, -1 if the end will not be seen)

A shim in C writes the same file (native/shim.c).
"""

import mmap
import os
import struct
from pathlib import Path
from typing import ClassVar

MAGIC = 0x7461_6B65_7570_0001  # "takeup", and the version of this layout
CAPACITY = 20_000
MOST_GROUPS = 1_024
HEADER_WORDS, GROUP_WORDS, ROW_WORDS = 64, 3, 8
FIRST_GROUP = HEADER_WORDS
FIRST_ROW = FIRST_GROUP + MOST_GROUPS * GROUP_WORDS
SIZE_BYTES = 8 * (FIRST_ROW + CAPACITY * ROW_WORDS)
BEGAN, ENDED = 6, 7
UNSEEN = -1  # the end will not be recorded; readers need not wait for it


class HeaderWord:
    """Word offsets in the header."""

    MAGIC = 0
    RANK = 1
    NUM_RANKS = 2
    PID = 3
    HEAD = 4
    NUM_GROUPS = 5
    IS_ADAPTIVE = 6  # the job has a pipeline that adapts its schedule by itself
    IS_OVER = 7  # this rank has ended its job cleanly
    NUM_CAPTURED = 8  # calls captured into CUDA graphs, whose replays are not seen
    LOCAL_RANK = 10  # of this rank on its machine, from 1 on; 0 if unknown
    IS_OFF = 9  # the shim records nothing while this is not 0
    # Requests of the controller: stop before call number STOP_COUNT of this kind, unless the lease has expired.
    LEASE_UNTIL_NS = 16
    STOP_OPERATION = 17
    STOP_GROUP = 18
    STOP_SIZE = 19
    STOP_COUNT = 20
    STOP = 21  # the number of the pause, written last; 0 for none
    TASK = 22  # the number of the task whose file is ready
    STOP_SEEN = 23  # how many calls of this kind the rank has made; reset to 0 by the controller
    ADAPT = 24  # the number of the request to measure the pipeline and replan its schedule
    # Told by the controller after every comparison of ranks.
    COSTLY_RANK = 25  # the rank that costs most, from 1 on; 0 before the first comparison
    COST_PPM = 26  # share of an iteration that the others lose by it
    NUM_EVENTS = 27
    # Answers of the rank.
    STOPPED = 32  # the number of the current pause of this rank; negated once it has resumed
    TASK_DONE = 34
    ADAPTED = 35  # the number of the last such request that all ranks handled
    SCHEDULE = 36  # number of schedule changes of the pipeline
    WAITED_NS = 37  # run-queue wait of this rank, without own throttling; written by the reader of the ring
    DELAYED_NS = 38  # run-queue wait as last read from the kernel, for any reason
    THROTTLED_NS = 39  # throttled time of a CPU quota that only this rank uses
    LOADING_NS = 52  # time in data loaders, garbage collection and torch.save
    GARBAGE_NS = 53
    SAVING_NS = 54
    # Shares of the batch (batches.py).
    PLAN = 40  # the version, written last
    PLAN_FIRST = 41
    PLAN_COUNT = 42
    PLAN_RESTART = 43
    NUM_MICROBATCHES = 48  # of the whole job; 0 if its batches cannot be rebalanced
    MICROBATCH_NS = 49
    PLAN_IN_USE = 50
    CAN_RESTART = 51


class RingBuffer:
    """The writing end; not thread-safe."""

    is_adaptive: ClassVar[bool] = False  # set when this process imports a pipeline that adapts its schedule

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
        self.words[HeaderWord.RANK], self.words[HeaderWord.NUM_RANKS], self.words[HeaderWord.PID] = (
            rank,
            num_ranks,
            os.getpid(),
        )
        self.words[HeaderWord.LOCAL_RANK] = 1 + int(os.environ.get("LOCAL_RANK", "-1"))
        self.words[HeaderWord.MAGIC] = MAGIC  # last: from here on it may be read

    def add_group(self, group: int, place: int, size: int) -> None:
        """Record the group rank of this rank in a group, and the group size."""
        if self._groups < MOST_GROUPS:
            first = FIRST_GROUP + GROUP_WORDS * self._groups
            self.words[first], self.words[first + 1], self.words[first + 2] = group, place, size
            self._groups += 1
            self.words[HeaderWord.NUM_GROUPS] = self._groups

    def begin(self, operation: int, peer: int, group: int, number: int, size_bytes: int, began_ns: int) -> int:
        head = self._head
        offset = 8 * (FIRST_ROW + ROW_WORDS * (head % CAPACITY))
        self._pack_row(self._memory, offset, head, operation, peer, group, number, size_bytes, began_ns, 0)
        self._head = head + 1
        self.words[HeaderWord.HEAD] = self._head
        return head

    def note(self, row: int, began_ns: int, ended_ns: int) -> None:
        """Overwrite the start time of a row's call, and set its end time."""
        if self._head - row < CAPACITY:
            self._pack_times(self._memory, 8 * (FIRST_ROW + ROW_WORDS * (row % CAPACITY) + BEGAN), began_ns, ended_ns)

    def end(self, row: int, ended_ns: int) -> None:
        if self._head - row < CAPACITY:  # else the row was overwritten
            self.words[FIRST_ROW + ROW_WORDS * (row % CAPACITY) + ENDED] = ended_ns

    def lasted(self, row: int, duration_ns: int) -> None:
        """Set the end time of a row's call from its duration."""
        self.end(row, self.words[FIRST_ROW + ROW_WORDS * (row % CAPACITY) + BEGAN] + duration_ns)
