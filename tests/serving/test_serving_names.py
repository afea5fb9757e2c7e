"""The public names of serving are there, and importing the package loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

from takeup import serving


def test_importing_the_package_is_cheap() -> None:
    heavy = "{'torch', 'numpy', 'diffusers'} & sys.modules.keys()"
    command = f"import sys, takeup.serving, takeup.serving.diffusion; print({heavy} or 'nothing')"
    printed = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout

    assert printed.strip() == "nothing"


@pytest.mark.parametrize(
    "name",
    [
        "Access",
        "Arrival",
        "CachePolicy",
        "Request",
        "bound_for",
        "replay_adapters",
        "simulate_queue",
    ],
)
def test_public_names_are_found(name: str) -> None:
    assert getattr(serving, name).__name__ == name
