"""Asynchronous loading of LoRAs from storage: in a thread of this process, or in a separate process.

Reading a file holds the GIL for long stretches (keys are sorted, shapes checked), each of which would delay a step. The
loader process writes the flat buffer into shared memory and sends a message; this process only maps the buffer. If the
loader dies, only the LoRAs it was reading fail, with an error message, and the next one is read by a new process.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch

from takeup.errors import BadInput, TakeupError, UnknownName
from takeup.serving.engines.diffusers.lora.changes import Lora
from takeup.serving.engines.diffusers.lora.files import read_lora
from takeup.serving.engines.diffusers.lora.targets import LoraTargets


class LoraLoader(Protocol):
    """Loads LoRAs by name, asynchronously."""

    def load(self, name: str) -> Future[Lora]:
        """Start loading; concurrent calls for the same name may share one future."""

    def release(self, name: str) -> None:
        """One user of this LoRA no longer needs it."""

    def close(self) -> None:
        """Stop loading."""


class ThreadLoader:
    """Reads in threads of this process: simple, for tests and for few requests."""

    def __init__(self, paths: Mapping[str, Path], targets: LoraTargets, num_threads: int = 2) -> None:
        self._paths, self._targets = paths, targets
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="lora")

    def load(self, name: str) -> Future[Lora]:
        return self._threads.submit(read_lora, path_of(name, self._paths), self._targets, name)

    def release(self, name: str) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)


class ProcessLoader:
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

    def release(self, name: str) -> None:
        """Nothing is kept."""

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
