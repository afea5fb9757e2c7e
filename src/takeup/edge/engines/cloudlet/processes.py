"""Child processes of the engine: Python in isolated mode, line-based standard input and output, ended on close."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

WAIT_S = 5.0


class ChildProcess:
    """A program in this folder that reads lines and may answer with lines.

    It ends with its standard input, so none outlives this process, however that ends.
    """

    def __init__(self, program: str, *arguments: str) -> None:
        command = [sys.executable, "-I", "-S", str(Path(__file__).with_name(program)), *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout

    def fileno(self) -> int:
        """The file descriptor to wait on for an answer."""
        return self._output.fileno()

    def tell(self, line: str) -> None:
        """Send a line; ignored if the process has exited, which the reader detects."""
        with suppress(BrokenPipeError):
            self._input.write(f"{line}\n".encode())

    def hear(self) -> list[str]:
        """The next output, split into words; empty if the process has exited. Lines are short: one read gets a line."""
        return self._output.read(4096).decode("ascii", "replace").split()

    def is_gone(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def close(self) -> None:
        """End it now."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(WAIT_S)
        self._input.close()
        self._output.close()
