"""The parts of a domain's benchmark by name: `python -m benchmarks.DOMAIN PART [options]`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module


def run_part(package: str, parts: Mapping[str, str]) -> int:
    """Run the part that the command line names; without one, list them. `parts` maps names to one line each."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in parts:
        print(f"usage: python -m {package} PART [--help | options]\n")
        print("\n".join(f"  {part:16} {text}" for part, text in parts.items()))
        return 0 if name in {"", "-h", "--help"} else 2
    sys.argv = [f"python -m {package} {name}", *sys.argv[2:]]
    code: int = import_module(f"{package}.{name.replace('-', '_')}").main()
    return code
