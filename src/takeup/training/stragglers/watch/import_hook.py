"""Attach when PyTorch's distributed package is imported, before ranks connect."""

import functools
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

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
        attach()
        return init_process_group(*arguments, **named)

    return init


_HOOKS: list[Any] = []


def attach() -> None:
    """Watch this process, if requested and possible."""
    folder = os.environ.get("TAKEUP_WATCH_FOLDER")
    if not folder or os.environ.get("TAKEUP_WATCH_SHIM"):  # the shim records the same calls
        return
    if _HOOKS:
        _HOOKS[0].new_epoch()
        return
    try:
        from takeup.training.stragglers.watch.hook import install

        _HOOKS.append(install(Path(folder)))
    except Exception as error:
        print(f"takeup cannot watch this rank, which goes on: {type(error).__name__}: {error}", file=sys.stderr)
