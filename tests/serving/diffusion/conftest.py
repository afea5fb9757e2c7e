"""Fixtures of tests with LoRAs. Heavy packages are imported inside, for they may be missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def pipeline() -> Any:
    """SDXL, tiny; its weights are patched, so every module has one of its own."""
    from takeup.serving.diffusion.engine.tiny import build

    return build("takeup/tiny-sdxl")


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """LoRA files by name."""
    from serving.lora_cases import write_loras

    return write_loras(tmp_path_factory.mktemp("loras"))


@pytest.fixture(scope="session")
def loras(files: dict[str, Path]) -> dict[str, Any]:
    """The same, read; but for the one that cannot be."""
    from takeup.serving.diffusion.addons.lora.file_format import read_lora
    from takeup.serving.diffusion.addons.lora.targets import LoraTargets
    from takeup.serving.diffusion.engine.tiny import tiny

    targets = LoraTargets.of(tiny("takeup/tiny-sdxl"))
    return {name: read_lora(file, targets) for name, file in files.items() if name != "foreign"}


@pytest.fixture
def engine_of(pipeline: Any, files: dict[str, Path]) -> Iterator[Any]:
    """Makes step engines with LoRAs, from a given loader."""
    from takeup.serving.diffusion.addons.lora.addon import Loras
    from takeup.serving.diffusion.addons.lora.loading import LoraLoader, ThreadLoader
    from takeup.serving.diffusion.addons.lora.targets import LoraTargets
    from takeup.serving.diffusion.engine.families import family_of
    from takeup.serving.diffusion.engine.steps import StepEngine

    opened: list[Loras] = []

    def make(loader: LoraLoader | None = None) -> StepEngine:
        add_on = Loras(family_of(pipeline), loader or ThreadLoader(files, LoraTargets.of(pipeline)))
        opened.append(add_on)
        return StepEngine(pipeline, add_ons=[add_on])

    yield make
    for add_on in opened:
        add_on.close()
