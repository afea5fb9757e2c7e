"""Start a job in an environment that attaches the watcher to its ranks, and what these do when they start."""

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from takeup.core.extras import need
from takeup.core.files import write_atomically
from takeup.errors import BadInput

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
    command: Sequence[str],
    folder: Path,
    stdout: IO[Any] | None = None,
    shim: Path | None = None,
    *,
    in_python: bool = False,
) -> subprocess.Popen[bytes]:
    """Start the job; its output is inherited, or goes to `stdout`. Only a hook in Python can pause it."""
    need("watching", "torch")
    if not command:
        raise BadInput("there is no job to watch; give its command after --, such as -- torchrun train.py")
    if shim is not None and not shim.is_file():
        raise BadInput(f"there is no shim {shim}; compile it with native/nccl-shim/build")
    program, shim = _found(command[0]), shim or (None if in_python else compiled_shim(folder))
    return subprocess.Popen([program, *command[1:]], env=environment_of(folder, os.environ, shim), stdout=stdout)


SHIM_SOURCE = Path(__file__).parent / "native" / "shim.c"
COMPILE = ("-std=gnu11", "-O2", "-shared", "-fPIC")


def compiled_shim(folder: Path, driver: Path = Path("/proc/driver/nvidia/version")) -> Path | None:
    """The shim, compiled for this job; None without a card or a compiler, when calls are recorded in Python."""
    compiler, shim = shutil.which(os.environ.get("CC", "cc")), folder / "libtakeup-nccl.so"
    if compiler is None or not driver.exists():
        return None
    command = [compiler, *COMPILE, "-o", str(shim), str(SHIM_SOURCE), "-ldl", "-lpthread"]
    return None if subprocess.run(command, check=False, capture_output=True).returncode else shim


def _found(program: str) -> str:
    """Path of the program, from PATH or the directory of this Python interpreter."""
    in_environment = Path(sys.executable).parent / program
    found = shutil.which(program) or (str(in_environment) if in_environment.is_file() else None)
    if found is None:
        raise BadInput(
            f"there is no program {program!r}; give the command of the job after --, such as -- torchrun ..."
        )
    return found


# Attach when PyTorch's distributed package is imported, before ranks connect ------------------------------------------

MODULE = "torch.distributed.distributed_c10d"


def install_import_hook() -> None:
    """Wrap `init_process_group` as soon as its module is imported."""
    sys.meta_path.insert(0, _TorchFinder())


class _TorchFinder(MetaPathFinder):
    """Finds one module in the standard way, and wraps its loader."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _TorchLoader(spec.loader)
        return spec


class _TorchLoader(Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        # Before the package re-exports the names of its module, so that only the wrapper is visible.
        module.init_process_group = _attaching(module.init_process_group)  # type: ignore[attr-defined]


def _attaching(init_process_group: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(init_process_group)
    def init(*arguments: Any, **named: Any) -> Any:
        attach(str([*arguments, None][0] or named.get("backend") or ""))
        return init_process_group(*arguments, **named)

    return init


_HOOKS: list[Any] = []


def attach(backend: str = "") -> None:
    """Watch this process, if requested and possible: with the shim if it has one and communicates with NCCL."""
    folder = os.environ.get("TAKEUP_WATCH_FOLDER")
    if not folder:
        return
    if _HOOKS:
        _HOOKS[0].new_epoch()
        return
    try:
        from takeup.training.stragglers.watch import hook

        has_shim = bool(os.environ.get("TAKEUP_WATCH_SHIM")) and ("nccl" in backend or not backend)
        _HOOKS.append(hook.install_beside_shim() if has_shim else hook.install(Path(folder)))
    except Exception as error:
        print(f"takeup cannot watch this rank, which goes on: {type(error).__name__}: {error}", file=sys.stderr)


# Restarts through torchrun: ranks that swap their roles ---------------------------------------------------------------
#
# All ranks write a checkpoint and exit with the same code, and torchrun restarts them (`--max-restarts`). A starting
# process reads a rank permutation from a file, and takes that rank instead of the one from torchrun: so ranks swap
# roles, each on its previous device, without changes to the script.

ORDER = "order.json"
GIVEN = "TAKEUP_WATCH_GIVEN_RANK"


def write_rank_order(folder: Path, order: Sequence[int]) -> None:
    """From the next restart on, the process to which torchrun gives rank n takes rank order[n]."""
    write_atomically(folder / ORDER, json.dumps(order))


def will_be_restarted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this rank would be restarted if it exited: not if torchrun has no restart left; True without torchrun."""
    most, number = (environment.get(f"TORCHELASTIC_{name}", "") for name in ("MAX_RESTARTS", "RESTART_COUNT"))
    return not (most.isdigit() and number.isdigit()) or int(number) < int(most)


def apply_rank_order(folder: Path | str, environment: Any = os.environ) -> None:
    """In a process started by torchrun: replace its rank according to the permutation file."""
    given = environment.get(GIVEN, environment.get("RANK"))
    if given is None or "TORCHELASTIC_RUN_ID" not in environment:
        return
    with suppress(OSError, ValueError):  # the file is missing or invalid
        order = json.loads(Path(folder, ORDER).read_text("utf-8"))
        if isinstance(order, list) and sorted(order) == list(range(int(environment.get("WORLD_SIZE", "0")))):
            environment[GIVEN], environment["RANK"] = given, str(order[int(given)])
