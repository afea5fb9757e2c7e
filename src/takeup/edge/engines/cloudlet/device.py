"""The program of a device: connects to the site, waits for the beginning, and uploads its bytes at its rate.

It uses nothing but the standard library, so that a process starts in a few hundredths of a second. Orders are lines
on standard input (`UploadOrder` in `plan.py`); when that ends, so does the program. An argument is the real-time
priority it asks for.
"""

import json
import math
import os
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

STEP_S = 0.001  # between two pieces, where the device itself keeps the rate
LEAST_PIECE_BYTES = 512
BLOCK_BYTES = 64 * 1024
SEND_BUFFER_BYTES = 256 * 1024
LIMIT_S = 30.0


def pieces(num_bytes: int, begin_s: float, end_s: float) -> Iterator[tuple[int, float]]:
    """How many bytes to send at which moments, so that the last are sent at `end_s`."""
    count = max(1, min(math.ceil((end_s - begin_s) / STEP_S), num_bytes // LEAST_PIECE_BYTES))
    for number in range(1, count + 1):
        size = num_bytes * number // count - num_bytes * (number - 1) // count
        yield size, begin_s + (end_s - begin_s) * number / count


def main() -> None:
    """Take the order, connect, wait for the beginning, upload."""
    if len(sys.argv) > 1:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(int(sys.argv[1])))
    order = json.loads(sys.stdin.readline())
    host, port = order["address"]
    with socket.create_connection((host, port), timeout=LIMIT_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(order["token"].encode())
        beginning = sys.stdin.readline()
        if beginning:
            _upload(connection, order, float(beginning))
        if order["num_sent"] < order["num_bytes"]:
            return
        sys.stdin.readline()  # to end takes CPU time, which may be needed elsewhere now


def _upload(connection: socket.socket, order: dict[str, Any], zero_s: float) -> None:
    """Moments are of the monotonic clock, which all processes of a machine share."""
    if order["priority"]:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, order["priority"])
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        shape = iter([(order["num_bytes"], order["begin_s"])])
    else:
        shape = pieces(order["num_bytes"], order["begin_s"], order["end_s"])
    left = order["num_sent"]
    for size, due_s in shape:
        time.sleep(max(0.0, zero_s + due_s - time.monotonic()))
        _send(connection, min(size, left))
        left -= size
        if left <= 0:
            break


def _send(connection: socket.socket, num_bytes: int) -> None:
    block = memoryview(bytes(BLOCK_BYTES))
    while num_bytes > 0:
        part = block[: min(num_bytes, BLOCK_BYTES)]
        connection.sendall(part)
        num_bytes -= len(part)


if __name__ == "__main__":
    main()
