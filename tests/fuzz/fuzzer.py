"""Damages valid files at random and reads them: no traceback, nothing above 2 s, nothing above 512 MB.

How it works. Every reader runs in a process of its own, which damages one of the valid inputs: bits, bytes, cells,
numbers, runs of bytes repeated or lost, ends cut off; compressed data is also damaged inside. The parent ends a process
that computes longer than it may. What fails is kept as a file, with the number that gives it again.
"""

from __future__ import annotations

import argparse
import gzip
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

LIMIT_S = 2.0
LIMIT_MB = 512
MOST_BYTES = 1 << 16
GZIP = b"\x1f\x8b"
WORDS = (
    *(b"", b"nan", b"inf", b"-1", b"0", b"1e308", b"1e-320", b"9" * 30, b"9" * 5000, b"-0.5", b"4294967296", b"null"),
    *(b"9223372036854775807", b"9223372036854775808", b"1000000000", b"999999999999", b"true", b"[]", b"{}", b'""'),
    *(b"[" * 3000, b"\xff\xfe", b"\xef\xbb\xbf", b"\x00", b"\r", b'"', b",", b"\n", b"\xc2\xb2", b"2020-01-01"),
    b"9999-12-31 23:59:59",
)  # fmt: skip
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
Change = Callable[[random.Random, bytes], bytes]


def _bits(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(draw.choice((1, 1, 2, 8))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _number(draw: random.Random, data: bytes) -> bytes:
    found = list(NUMBER.finditer(data))
    if not found:
        return _bits(draw, data)
    at = draw.choice(found)
    return data[: at.start()] + draw.choice(WORDS) + data[at.end() :]


def _word(draw: random.Random, data: bytes) -> bytes:
    at = draw.randrange(len(data) + 1)
    return data[:at] + draw.choice(WORDS) + data[at + draw.choice((0, 1, 4)) :]


def _span(draw: random.Random, data: bytes) -> tuple[int, int]:
    begin = draw.randrange(len(data) + 1)
    return begin, min(len(data), begin + int(draw.expovariate(1 / 20)))


def _lost(draw: random.Random, data: bytes) -> bytes:
    begin, end = _span(draw, data)
    return data[:begin] + data[end:]


def _repeated(draw: random.Random, data: bytes) -> bytes:
    begin, end = _span(draw, data)
    return (data[:end] + data[begin:end] * draw.choice((1, 2, 30, 500)) + data[end:])[:MOST_BYTES]


def _line(draw: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    lines.insert(draw.randrange(len(lines) + 1), draw.choice(lines))
    return b"\n".join(lines)


def _cut(draw: random.Random, data: bytes) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


CHANGES: tuple[Change, ...] = (_bits, _number, _number, _word, _lost, _repeated, _line, _cut)


def damaged(draw: random.Random, data: bytes) -> bytes:
    """The data with a few random changes; of gzip also inside."""
    if data.startswith(GZIP) and draw.random() < 0.6:
        return gzip.compress(damaged(draw, gzip.decompress(data)), 1)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        data = draw.choice(CHANGES)(draw, data)
    return data


@dataclass(slots=True)
class Count:
    """What came of the inputs of one reader."""

    inputs: int = 0
    accepted: int = 0
    slowest_s: float = 0.0
    most_mb: float = 0.0
    failures: list[str] = field(default_factory=list)


class Slow(BaseException):
    """The reader computed longer than it may."""


def _too_slow(_number: int, _frame: FrameType | None) -> None:
    raise Slow


def explore(name: str, first: int, num: int, for_s: float, kept: Path | None) -> Count:
    """Read `num` damaged inputs of one reader, or as many as are read in some seconds after a valid one."""
    from fuzz.peers import ALL_TARGETS
    from fuzz.targets import run

    target, count = ALL_TARGETS[name], Count()
    folder = Path(tempfile.mkdtemp(prefix="takeup-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    signal.signal(signal.SIGPROF, _too_slow)
    path = folder / target.name
    for other, data in target.others:
        (folder / other).write_bytes(data)
    path.write_bytes(target.seeds[0])
    assert run(target, path), f"{name}: its valid input is refused"
    until = time.monotonic() + for_s
    for number in range(first, first + num):
        if time.monotonic() > until:
            break
        draw = random.Random(f"{name} {number}")
        data = damaged(draw, draw.choice(target.seeds))
        path.write_bytes(data)
        problem = _judge(lambda: run(target, path), count)
        if problem:
            count.failures.append(f"{name}, input {number}: {problem}")
            if kept is not None:
                kept.mkdir(parents=True, exist_ok=True)
                (kept / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}-{number}").write_bytes(data)
    shutil.rmtree(folder)
    return count


def _judge(read: Callable[[], bool], count: Count) -> str:
    """One input: what is wrong with how it was read, by the time and memory of this process."""
    began_s = time.process_time()
    problem = ""
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        count.accepted += read()
    except Slow:
        problem = f"takes more than {LIMIT_S:g} s"
    except BaseException:
        problem = "".join(traceback.format_exc(limit=-4)).replace("\n", " / ")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    count.inputs += 1
    count.slowest_s = max(count.slowest_s, time.process_time() - began_s)
    most_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if most_mb > LIMIT_MB >= count.most_mb:
        problem = problem or f"takes {most_mb:.0f} MB"
    count.most_mb = max(count.most_mb, most_mb)
    return problem


def in_process(name: str, first: int, num: int, for_s: float, kept: Path | None) -> Count:
    """The same in a process of its own, which is ended if it hangs where no signal is noticed."""
    import pickle

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            data = pickle.dumps(explore(name, first, num, for_s, kept))
        except BaseException:
            data = pickle.dumps(Count(failures=[f"{name}: {traceback.format_exc()}"]))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(data)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    found = pickle.loads(data) if data else Count(failures=[f"{name}: the process ended with {status}"])
    assert isinstance(found, Count)
    return found


def table(counts: dict[str, Count]) -> Iterator[str]:
    """As Markdown."""
    yield "| reader | inputs | accepted | slowest (s of CPU) | peak of the process (MB) | failures |"
    yield "| --- | --- | --- | --- | --- | --- |"
    total: Counter[str] = Counter()
    for name, it in counts.items():
        total.update(inputs=it.inputs, failures=len(it.failures))
        yield f"| {name} | {it.inputs} | {it.accepted} | {it.slowest_s:.2f} | {it.most_mb:.0f} | {len(it.failures)} |"
    yield f"| all | {total['inputs']} | | | | {total['failures']} |"


def main() -> None:
    """Fuzz all readers for a time, or with a number of inputs each; failures are exit code 1."""
    from fuzz.peers import ALL_TARGETS

    parser = argparse.ArgumentParser(prog="python -m fuzz.fuzzer", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="for all readers together")
    parser.add_argument("--each", type=float, help="seconds for each reader instead")
    parser.add_argument("--jobs", type=int, default=1, help="readers at a time")
    parser.add_argument("--inputs", type=int, default=10**9, help="at most, for each reader")
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--readers", default="", help="only these, with semicolons")
    parser.add_argument("--kept", type=Path, default=Path("fuzz-failures"), help="where inputs that fail are kept")
    asked = parser.parse_args()
    names = [name for name in ALL_TARGETS if not asked.readers or name in asked.readers.split(";")]
    each_s = asked.each or asked.seconds * asked.jobs / len(names)
    read = partial(in_process, first=asked.first, num=asked.inputs, for_s=each_s, kept=asked.kept)
    counts: dict[str, Count] = {}
    with multiprocessing.get_context("fork").Pool(asked.jobs) as pool:
        for name, found in zip(names, pool.imap(read, names), strict=True):
            counts[name] = found
            print([*table({name: found})][2], file=sys.stderr, flush=True)
            for failure in found.failures[:3]:
                print(f"  {failure[:1500]}", file=sys.stderr, flush=True)
    print("\n".join(table(counts)))
    sys.exit(any(it.failures for it in counts.values()))


if __name__ == "__main__":
    main()
