"""The program of a core of the site: runs one task after the other, each to its end, by hashing.

cpu-time    a task takes its CPU time, however many hashes that are: a site whose cores always have the same speed
hashes      a task is a number of hashes: as many as this core makes in its CPU time. The speed is measured at the
            start as the slowest of many short measurements, because a site promises what it can always do

It uses nothing but the standard library. The arguments are one of these words, and the real-time priority to ask for.
Lines on standard input are tasks: the moment before which it must not begin, and its seconds; when that input ends, so
does the program. It answers with the moments at which each began and ended. Moments are of the monotonic clock, which
all processes of a machine share.
"""

import hashlib
import os
import sys
import time

NUM_MEASUREMENTS = {"cpu-time": 5, "hashes": 40}  # cpu-time does not depend on the speed
MEASUREMENT_S = 0.005
FIRST_GUESS = 2_000
PIECE_S = 0.00002


def burn(num_hashes: int) -> None:
    """Compute `num_hashes` chained hashes in a single call, without Python in between."""
    if num_hashes > 0:
        hashlib.pbkdf2_hmac("sha256", b"task", b"site", num_hashes)


def calibrate(num_measurements: int) -> float:
    """Hashes per second of CPU time that this core can keep up: those of the slowest measurement."""
    size = max(1, round(FIRST_GUESS * MEASUREMENT_S / _time_s(FIRST_GUESS)))
    return size / max(_time_s(size) for _ in range(num_measurements))


def _time_s(num_hashes: int) -> float:
    begin_s = time.thread_time()
    burn(num_hashes)
    return max(1e-9, time.thread_time() - begin_s)


def run(work: str, run_s: float, hashes_per_s: float) -> None:
    """Run one task."""
    if work == "hashes":
        burn(round(run_s * hashes_per_s))
        return
    until_s = time.thread_time() + run_s
    piece = max(1, round(PIECE_S * hashes_per_s))
    while time.thread_time() < until_s:
        burn(piece)


def main() -> None:
    """Report the measured speed, then run tasks until standard input ends."""
    work, *priority = sys.argv[1:]
    if priority:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(int(priority[0])))
    hashes_per_s = calibrate(NUM_MEASUREMENTS[work])
    print(hashes_per_s, flush=True)
    for line in iter(sys.stdin.readline, ""):
        not_before_s, run_s = (float(word) for word in line.split())
        time.sleep(max(0.0, not_before_s - time.monotonic()))
        begin_s = time.monotonic()
        run(work, run_s, hashes_per_s)
        print(begin_s, time.monotonic(), flush=True)


if __name__ == "__main__":
    main()
