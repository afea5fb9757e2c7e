"""The program of a core of the site: runs one task after the other, each for its CPU time, by hashing.

It uses nothing but the standard library. Its argument is the real-time priority to ask for, if any.
Lines on standard input are tasks: the moment before which it must not begin, and its seconds; when that input ends, so
does the program. It answers with the moments at which each began and ended. Moments are of the monotonic clock, which
all processes of a machine share.
"""

import hashlib
import os
import sys
import time

NUM_MEASUREMENTS = 5
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


def run(run_s: float, hashes_per_s: float) -> None:
    """Compute for this long, in CPU time."""
    until_s = time.thread_time() + run_s
    piece = max(1, round(PIECE_S * hashes_per_s))
    while time.thread_time() < until_s:
        burn(piece)


def main() -> None:
    """Report the measured speed, then run tasks until standard input ends."""
    if len(sys.argv) > 1:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(int(sys.argv[1])))
    hashes_per_s = calibrate(NUM_MEASUREMENTS)
    print(hashes_per_s, flush=True)
    for line in iter(sys.stdin.readline, ""):
        not_before_s, run_s = (float(word) for word in line.split())
        time.sleep(max(0.0, not_before_s - time.monotonic()))
        begin_s = time.monotonic()
        run(run_s, hashes_per_s)
        print(begin_s, time.monotonic(), flush=True)


if __name__ == "__main__":
    main()
