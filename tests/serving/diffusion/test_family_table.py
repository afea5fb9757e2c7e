"""The table of families and features in docs/concepts/serving.md is what the code does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

from serving.diffusion.test_stock_pipelines import count_calls, inputs_of, requests_for
from serving.diffusion.tiny_pipelines import PIPELINES, build
from serving.stock import ENGINE_MARKS
from takeup.errors import BadInput
from takeup.serving.diffusion.addons.controlnet.addon import Controls
from takeup.serving.diffusion.addons.lora.targets import LoraTargets
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.engine.stock_pipelines import StockPipeline
from takeup.serving.diffusion.engine.tiny import TINY
from takeup.serving.diffusion.engine.tiny import build as build_native

pytestmark = ENGINE_MARKS

PAGE = Path(__file__).parents[3] / "docs" / "concepts" / "serving.md"
BEGIN, END = "<!-- families:begin -->\n", "<!-- families:end -->"
HEADER = "| model | pipeline | shared steps | LoRAs | ControlNets | image | mask | cached activations, CUDA graphs |\n"
NATIVE_NAMES = {
    "takeup/tiny-sd15": "Stable Diffusion 1.5",
    "takeup/tiny-sdxl": "SDXL",
    "takeup/tiny-sd3": "Stable Diffusion 3",
    "takeup/tiny-flux": "Flux dev",
}


def built(name: str) -> Any:
    return build_native(name) if name in TINY else build(name)


def most_rows(pipeline: Any, num_requests: int) -> int:
    """Of a network call, when this number of requests of one size run together."""
    family = family_of(pipeline)
    requests = [one for one in requests_for(pipeline) if one.height_px == 32][:num_requests]
    inputs: list[dict[str, Any]] = [
        inputs_of(pipeline, one) if isinstance(family, StockPipeline) else {} for one in requests
    ]
    engine = StepEngine(pipeline, family=family)
    for one, more in zip(requests, inputs, strict=True):
        engine.enter(family.prepare(one, **more) if isinstance(family, StockPipeline) else family.prepare(one))
    counts = count_calls(family)
    engine.run()
    return int(max(counts["rows"]))


def has_controls(pipeline: Any) -> bool:
    family = family_of(pipeline)
    try:
        Controls(family, {}, {})
    except BadInput:
        return False
    return not isinstance(family, StockPipeline)


def row(name: str) -> str:
    pipeline = built(name)
    family = family_of(pipeline)
    known = family.parameters if isinstance(family, StockPipeline) else ()
    is_native = not isinstance(family, StockPipeline)
    flags = (
        most_rows(pipeline, 2) > most_rows(pipeline, 1),
        bool(LoraTargets.of(pipeline, has_text=False).shapes),
        has_controls(pipeline),
        is_native or "image" in known,
        is_native or "mask_image" in known,
        is_native,
    )
    cells = [NATIVE_NAMES.get(name, name), f"`{type(pipeline).__name__}`", *("yes" if flag else "" for flag in flags)]
    return f"| {' | '.join(cells)} |\n"


def test_the_table_of_families_is_what_the_code_does(monkeypatch: pytest.MonkeyPatch) -> None:
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit

    monkeypatch.setattr(pipeline_qwenimage_edit, "calculate_dimensions", lambda area, ratio: (64, 32, None))
    rows = "".join(row(name) for name in (*NATIVE_NAMES, *PIPELINES))
    table = f"{HEADER}| --- | --- | --- | --- | --- | --- | --- | --- |\n{rows}"
    page = PAGE.read_text("utf-8")
    shown = page.partition(BEGIN)[2].partition(END)[0]

    assert shown == table, f"docs/concepts/serving.md should have this table:\n{table}"
