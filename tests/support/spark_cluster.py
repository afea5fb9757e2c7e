"""A small standalone Spark cluster of real processes on this machine's loopback: for trials, tests and benchmarks."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from native.spark.jar import spark_jars
from takeup.errors import MissingEngine

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = b"CoarseGrainedExecutorBackend"
_HOST = "127.0.0.1"
_PATIENCE_S = 180  # a JVM starts slowly on a machine that is busy


@dataclass(frozen=True, slots=True)
class SparkWorker:
    """One worker: where its Spark is, and the one core and memory it lends."""

    memory: str = "1g"
    num_cores: int = 1
    spark_home: Path | None = None


@dataclass(slots=True)
class LocalSparkCluster:
    """A master and workers, started and stopped by `with`; `address` goes into `SparkSession.builder.master`."""

    workers: tuple[SparkWorker, ...] = (SparkWorker(), SparkWorker())
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    _folder: tempfile.TemporaryDirectory[str] | None = None
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> LocalSparkCluster:
        self._folder = tempfile.TemporaryDirectory(prefix="takeup-spark-", ignore_cleanup_errors=True)
        self.port = self.port or _free_port()
        try:
            options = ("--host", _HOST, "--port", str(self.port), "--webui-port", "0")
            self._start("master", _home(), _MASTER, *options)
            self._wait_for("master", "I have been elected leader")
            for number, worker in enumerate(self.workers):
                self._start_worker(f"worker-{number}", worker)
            for number in range(len(self.workers)):
                self._wait_for(f"worker-{number}", "Successfully registered with master")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def address(self) -> str:
        return f"spark://{_HOST}:{self.port}"

    @property
    def folder(self) -> Path:
        """Where logs and the workers' own folders lie while the cluster runs."""
        assert self._folder is not None, "the cluster is not running"
        return Path(self._folder.name)

    def executors(self, application: str = "") -> list[int]:
        """Process ids of the executors that run now, oldest first: all of them, or those of one application."""
        ours = {process.pid for process in self._processes}
        marks = (_EXECUTOR, application.encode())
        found = [pid for pid in _process_ids() if all(mark in _command_line(pid) for mark in marks)]
        return sorted(pid for pid in found if _ancestors(pid) & ours)

    def executor_cpu_s(self, application: str = "") -> float:
        """CPU seconds that the executors running now have used."""
        return sum(map(_cpu_s, self.executors(application)))

    def executor_read_bytes(self, application: str = "") -> int:
        """Bytes that the executors running now have read from files and sockets, page cache or not."""
        return sum(map(_read_bytes, self.executors(application)))

    def stop(self) -> None:
        """End the processes of this cluster, executors with their workers, and delete its files."""
        for process in self._processes:
            _kill_group(process.pid)
            process.wait()
        self._processes.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    # ----------------------------------------------------------------------------------------------------------------

    def _start_worker(self, name: str, worker: SparkWorker) -> None:
        options = ("--cores", str(worker.num_cores), "--memory", worker.memory, "--work-dir", str(self.folder / name))
        place = ("--host", _HOST, "--webui-port", "0")
        self._start(name, worker.spark_home or _home(), _WORKER, *options, *place, self.address)

    def _start(self, name: str, home: Path, main_class: str, *arguments: str) -> None:
        program = home / "bin" / "spark-class"
        if not program.exists():
            raise MissingEngine(f"there is no {program}; set SPARK_HOME to a whole Spark, or install pyspark")
        own = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": _HOST, "SPARK_DAEMON_MEMORY": "256m"}
        python = {"PYSPARK_PYTHON": sys.executable}
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(program), main_class, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **python, **self.environment, **own},
                start_new_session=True,
            )
        self._processes.append(process)

    def _wait_for(self, name: str, words: str) -> None:
        log = self.folder / f"{name}.log"
        deadline_s = time.monotonic() + _PATIENCE_S
        while words not in log.read_text("utf-8", "replace"):
            if time.monotonic() > deadline_s or any(process.poll() is not None for process in self._processes):
                tail = log.read_text("utf-8", "replace")[-1000:]
                raise MissingEngine(f"Spark's {name} did not start; check that java 17 works. It said:\n{tail}")
            time.sleep(0.1)


def _home() -> Path:
    return spark_jars().parent


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _process_ids() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def _command_line(pid: int) -> bytes:
    return _read(pid, "cmdline")


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _fields(pid: int) -> list[bytes]:
    """What `/proc/PID/stat` says behind the program's name, from the state on."""
    return _read(pid, "stat").rpartition(b")")[2].split()


def _ancestors(pid: int) -> set[int]:
    found: set[int] = set()
    while pid > 1 and (fields := _fields(pid)):
        found.add(pid)
        pid = int(fields[1])
    return found


def _read_bytes(pid: int) -> int:
    """`rchar` of `/proc/PID/io`: all that went through read calls."""
    words = dict(line.split(b": ") for line in _read(pid, "io").splitlines())
    return int(words.get(b"rchar", 0))


def _cpu_s(pid: int) -> float:
    fields = _fields(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0
