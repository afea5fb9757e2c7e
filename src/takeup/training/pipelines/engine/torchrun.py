"""Start a training program on several ranks of this machine, like `torchrun`, with settings for a single machine."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from takeup.core.extras import need
from takeup.errors import BadInput

LOOPBACK = {"linux": "lo", "darwin": "lo0"}


def command_of(program: Path, num_ranks: int, arguments: Sequence[str]) -> list[str]:
    """The torchrun command line; raises if the program does not exist or there are no ranks."""
    if not program.is_file():
        raise BadInput(f"there is no program {program}; give the path of a Python file")
    if num_ranks < 1:
        raise BadInput(f"the number of ranks is {num_ranks}; give at least 1")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    return [*launcher, str(program), *arguments]


def start(program: Path, num_ranks: int, arguments: Sequence[str]) -> int:
    """Run the program on its ranks and return its exit code; it inherits stdout and stderr."""
    command = command_of(program, num_ranks, arguments)
    need("training", "torch")
    alone = {"OMP_NUM_THREADS": "1"}
    if sys.platform in LOOPBACK:
        alone["GLOO_SOCKET_IFNAME"] = LOOPBACK[sys.platform]
    return subprocess.run(command, env={**alone, **os.environ}, check=False).returncode
