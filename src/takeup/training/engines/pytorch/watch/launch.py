"""Start a job so that its ranks are watched: the command as the user wrote it, in an environment that attaches."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from takeup.errors import BadInput, MissingEngine

__all__ = ["ATTACH", "FOLDER", "environment_of", "start"]

ATTACH = Path(__file__).parent / "attach"
FOLDER, SHIM = "TAKEUP_WATCH_FOLDER", "TAKEUP_WATCH_SHIM"
# With a store that outlives a restart, ranks of Gloo find the addresses of those before them.
FRESH_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def environment_of(folder: Path, inherited: Mapping[str, str], shim: Path | None = None) -> dict[str, str]:
    """What the job gets: all it had, and our folder first among those that Python looks into; or a shim before NCCL."""
    paths = [str(ATTACH), *filter(None, [inherited.get("PYTHONPATH")])]
    watched = {**FRESH_STORE, **inherited, "PYTHONPATH": os.pathsep.join(paths), FOLDER: str(folder)}
    if shim is None:
        return watched
    before = [str(shim.resolve()), *filter(None, [inherited.get("LD_PRELOAD")])]
    return {**watched, SHIM: "1", "LD_PRELOAD": ":".join(before)}


def start(
    command: Sequence[str], folder: Path, stdout: IO[Any] | None = None, shim: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start the job; what it prints goes where ours goes, or to `stdout`."""
    if find_spec("torch") is None:
        raise MissingEngine("watching needs the package 'torch'; run pip install 'takeup[torch]'")
    if not command:
        raise BadInput("there is no job to watch; give its command after --, such as -- torchrun train.py")
    if shim is not None and not shim.is_file():
        raise BadInput(f"there is no shim {shim}; compile it with native/nccl-shim/build")
    program = _found(command[0])
    return subprocess.Popen([program, *command[1:]], env=environment_of(folder, os.environ, shim), stdout=stdout)


def _found(program: str) -> str:
    """The program as the shell would find it, or beside this Python."""
    beside = Path(sys.executable).parent / program
    found = shutil.which(program) or (str(beside) if beside.is_file() else None)
    if found is None:
        raise BadInput(
            f"there is no program {program!r}; give the command of the job after --, such as -- torchrun ..."
        )
    return found
