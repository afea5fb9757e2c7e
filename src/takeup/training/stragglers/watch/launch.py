"""Start a job with the user's command, in an environment that attaches the watcher to its ranks."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from takeup.errors import BadInput, MissingEngine

ATTACH = Path(__file__).parent / "attach"
FOLDER, SHIM = "TAKEUP_WATCH_FOLDER", "TAKEUP_WATCH_SHIM"
# With a store that outlives a restart, Gloo ranks would find stale addresses of their predecessors.
FRESH_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def environment_of(folder: Path, inherited: Mapping[str, str], shim: Path | None = None) -> dict[str, str]:
    """Environment of the job: the inherited one, with our folder first in PYTHONPATH, and optionally a shim."""
    paths = [str(ATTACH), *filter(None, [inherited.get("PYTHONPATH")])]
    watched = {**FRESH_STORE, **inherited, "PYTHONPATH": os.pathsep.join(paths), FOLDER: str(folder)}
    if shim is None:
        return watched
    before = [str(shim.resolve()), *filter(None, [inherited.get("LD_PRELOAD")])]
    return {**watched, SHIM: "1", "LD_PRELOAD": ":".join(before)}


def start(
    command: Sequence[str], folder: Path, stdout: IO[Any] | None = None, shim: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start the job; its output is inherited, or goes to `stdout`."""
    if find_spec("torch") is None:
        raise MissingEngine("watching needs the package 'torch'; run pip install 'takeup[torch]'")
    if not command:
        raise BadInput("there is no job to watch; give its command after --, such as -- torchrun train.py")
    if shim is not None and not shim.is_file():
        raise BadInput(f"there is no shim {shim}; compile it with native/nccl-shim/build")
    program = _found(command[0])
    return subprocess.Popen([program, *command[1:]], env=environment_of(folder, os.environ, shim), stdout=stdout)


def _found(program: str) -> str:
    """Path of the program, from PATH or the directory of this Python interpreter."""
    beside = Path(sys.executable).parent / program
    found = shutil.which(program) or (str(beside) if beside.is_file() else None)
    if found is None:
        raise BadInput(
            f"there is no program {program!r}; give the command of the job after --, such as -- torchrun ..."
        )
    return found
