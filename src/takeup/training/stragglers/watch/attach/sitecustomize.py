"""Run by Python at startup when `takeup training watch` has put this folder first; then runs the one it shadows.

Without TAKEUP_WATCH_FOLDER it does nothing. It must never keep a program from starting.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def attach() -> None:
    """Install the import hook for PyTorch."""
    if not os.environ.get("TAKEUP_WATCH_FOLDER"):
        return
    try:
        from takeup.training.stragglers.watch.launch import apply_rank_order, install_import_hook

        install_import_hook()
        if "RANK" in os.environ:
            apply_rank_order(os.environ["TAKEUP_WATCH_FOLDER"])
    except Exception as error:
        print(f"takeup cannot watch this process, which goes on: {type(error).__name__}: {error}", file=sys.stderr)


def run_the_other() -> None:
    """Run the sitecustomize that this one shadows, if there is one."""
    ours = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  as little as possible is imported here
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if os.path.abspath(path) != ours])  # noqa: PTH100
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


attach()
run_the_other()
