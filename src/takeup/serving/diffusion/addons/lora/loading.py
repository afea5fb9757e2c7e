"""Asynchronous loading of LoRAs from storage, and the in-memory cache in front of it."""

import multiprocessing
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch

from takeup.errors import BadInput, TakeupError, UnknownName
from takeup.serving.contract import CachePolicy
from takeup.serving.diffusion.addons.lora.file_format import read_lora
from takeup.serving.diffusion.addons.lora.targets import LoraTargets
from takeup.serving.diffusion.addons.lora.weights import Lora

# Asynchronous loading of LoRAs from storage: in a thread of this process, or in a separate process --------------------
#
# Reading a file holds the GIL for long stretches (keys are sorted, shapes checked), each of which would delay a step.
# The loader process writes the flat buffer into shared memory and sends a message; this process only maps the buffer.
# If the loader dies, only the LoRAs it was reading fail, with an error message, and the next one is read by a new
# process.


class LoraLoader(Protocol):
    """Loads LoRAs by name, asynchronously."""

    def load(self, name: str) -> Future[Lora]:
        """Start loading; concurrent calls for the same name may share one future."""

    def release(self, name: str) -> None:
        """One user of this LoRA no longer needs it."""
        return

    def close(self) -> None:
        """Stop loading."""


class ThreadLoader(LoraLoader):
    """Reads in threads of this process: simple, for tests and for few requests."""

    def __init__(self, paths: Mapping[str, Path], targets: LoraTargets, num_threads: int = 2) -> None:
        self._paths, self._targets = paths, targets
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="lora")

    def load(self, name: str) -> Future[Lora]:
        return self._threads.submit(read_lora, path_of(name, self._paths), self._targets, name)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)


class ProcessLoader(LoraLoader):
    """Reads in a separate process, into shared memory."""

    def __init__(self, paths: Mapping[str, Path], targets: LoraTargets) -> None:
        self._paths, self._targets = paths, targets
        self._lock = threading.Lock()
        self._pending: dict[str, Future[Lora]] = {}
        self._process: Any = None
        self._orders: Any = None

    def load(self, name: str) -> Future[Lora]:
        path = path_of(name, self._paths)
        with self._lock:
            if name in self._pending:
                return self._pending[name]
            if self._process is None:
                self._start()
            answer: Future[Lora] = Future()
            self._pending[name] = answer
            self._orders.send((name, path))
            return answer

    def close(self) -> None:
        with self._lock:
            if self._process is not None:
                self._orders.close()
        if self._process is not None:
            self._process.join()

    @property
    def pid(self) -> int | None:
        """The pid of the loader process, if one is running."""
        return None if self._process is None else self._process.pid

    def _start(self) -> None:
        # Spawned, not forked: this process has threads, and a fork would copy locks that are never released.
        context = multiprocessing.get_context("spawn")
        orders, self._orders = context.Pipe(duplex=False)
        answers, reply = context.Pipe(duplex=False)
        self._process = context.Process(target=run_loader_process, args=(orders, reply, self._targets), daemon=True)
        self._process.start()
        orders.close()
        reply.close()
        threading.Thread(target=self._listen, args=(answers,), name="lora-answers", daemon=True).start()

    def _listen(self, answers: Connection) -> None:
        while True:
            try:
                name, answer = answers.recv()
            except (EOFError, OSError):
                return self._lost()
            with self._lock:
                waiting = self._pending.pop(name)
            if isinstance(answer, Exception):
                waiting.set_exception(answer)
            else:
                waiting.set_result(answer)

    def _lost(self) -> None:
        """The process has died: fail all pending loads."""
        with self._lock:
            lost, self._pending = self._pending, {}
            self._process = None
        for name, answer in lost.items():
            answer.set_exception(TakeupError(f"the loader died while it read LoRA {name!r}; ask for it again"))


def path_of(name: str, paths: Mapping[str, Path]) -> Path:
    """The path of the LoRA of this name."""
    if name not in paths:
        raise UnknownName("LoRA", name, sorted(paths))
    return paths[name]


def run_loader_process(orders: Connection, reply: Connection, targets: LoraTargets) -> None:
    """Main loop of the loader process: read the requested files until the pipe is closed."""
    torch.set_num_threads(1)
    while True:
        try:
            name, path = orders.recv()
        except EOFError:
            return
        reply.send((name, _answer(name, path, targets)))


def _answer(name: str, path: Path, targets: LoraTargets) -> Lora | Exception:
    try:
        lora = read_lora(path, targets, name)
        lora.buffer.share_memory_()  # type: ignore[no-untyped-call]
        return lora
    except TakeupError as problem:
        return problem
    except Exception as problem:  # no file may crash the loader
        return BadInput(f"{path} could not be read as a LoRA ({problem}); export it again")


# In-memory cache of LoRAs: a loader that wraps a loader ---------------------------------------------------------------
#
# LoRAs stay cached until the memory is full; then the policy selects the victim, but never a LoRA that a request still
# uses. The policy receives the *queue*: the LoRAs in use, then those of the waiting requests, in order.


class LoraStore:
    """Caches LoRAs up to `capacity_bytes`. A LoRA in use is kept even above the capacity.

    `ahead` are the LoRAs of the waiting requests, set by the owner of the queue.
    """

    def __init__(self, loader: LoraLoader, make_policy: Callable[[], CachePolicy], capacity_bytes: int) -> None:
        if capacity_bytes <= 0:
            raise BadInput(f"a store of {capacity_bytes} bytes keeps nothing; give a size above zero")
        self._loader, self._policy, self._capacity_bytes = loader, make_policy(), capacity_bytes
        self._lock = threading.RLock()
        self._kept: dict[str, Future[Lora]] = {}
        self._users: Counter[str] = Counter()
        self._pinned: set[str] = set()
        self.num_loads = 0
        self.ahead: Sequence[tuple[Hashable, ...]] = ()

    @property
    def names(self) -> frozenset[str]:
        """LoRAs that are loaded or loading."""
        return frozenset(self._kept)

    @property
    def size_bytes(self) -> int:
        """Memory of the loaded LoRAs."""
        return sum(one.result().size_bytes for one in self._kept.values() if _is_good(one))

    def load(self, name: str) -> Future[Lora]:
        with self._lock:
            if name not in self._kept:
                self._kept[name] = self._loader.load(name)
                self.num_loads += 1
            self._users[name] += 1
            self._policy.used(name)
            answer = self._kept[name]
        answer.add_done_callback(lambda done: self._arrived(name, done))
        return answer

    def release(self, name: str) -> None:
        with self._lock:
            self._users[name] -= 1
            self._shrink()

    def pin(self, name: str, *, is_pinned: bool) -> None:
        """Load a LoRA and keep it in memory, or no longer."""
        with self._lock:
            if is_pinned == (name in self._pinned):
                return
            self._pinned ^= {name}
        if is_pinned:
            self.load(name)
        else:
            self.release(name)

    def forget(self, name: str) -> None:
        """Invalidate a LoRA whose file changed or was removed: current users keep theirs, the next request reloads."""
        with self._lock:
            if name in self._pinned:
                self._pinned.remove(name)
                self._users[name] -= 1
            if self._kept.pop(name, None) is not None:
                self._policy.left(name)

    def close(self) -> None:
        self._loader.close()

    def _arrived(self, name: str, answer: Future[Lora]) -> None:
        with self._lock:
            if not _is_good(answer) and self._kept.get(name) is answer:
                self.forget(name)  # so that the next request tries again
            self._shrink()

    def _shrink(self) -> None:
        while self.size_bytes > self._capacity_bytes:
            idle = [name for name, one in self._kept.items() if not self._users[name] and one.done()]
            if not idle:
                return
            queue = (*((name,) for name in self._kept if self._users[name]), *self.ahead)
            self.forget(str(self._policy.victim(idle, queue)))


def _is_good(answer: Future[Lora]) -> bool:
    return answer.done() and not answer.cancelled() and answer.exception() is None
