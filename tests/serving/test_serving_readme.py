"""What the pages of serving say can be run, and comes out as they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")
pytest.importorskip("diffusers", reason="needs diffusers: pip install 'takeup[diffusion]'")

from serving.stock import ENGINE_MARKS
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.engine.tiny import tiny
from takeup.serving.model import Request
from takeup.serving.scheduling.adapters import ADAPTER_POLICIES

pytestmark = ENGINE_MARKS
README = Path(__file__).parents[2] / "src/takeup/serving/README.md"


def test_the_example_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", README.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    exec(compile(code, str(README), "exec"), {})

    assert capsys.readouterr().out.strip() == "4 torch.Size([1, 3, 32, 32])"


def test_every_policy_has_a_row_in_the_readme() -> None:
    assert all(f"| `{name}` |" in README.read_text("utf-8") for name in ADAPTER_POLICIES)


def test_requests_one_step_apart_share_calls_as_in_the_example_worked_by_hand() -> None:
    engine = StepEngine(tiny("takeup/tiny-sdxl"))
    for num_steps in (4, 3, 2):
        engine.submit(Request("a cat", num_steps=num_steps, height_px=32, width_px=32))
        engine.advance()
    engine.run()

    assert engine.num_calls == 4
