"""The guide to edits: its commands and its program run as they stand there, and print what it says."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import httpx
import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")
pytest.importorskip("diffusers", reason="needs the package 'diffusers': pip install 'takeup[diffusion]'")
pytest.importorskip("openai", reason="needs the package 'openai'")

from PIL import Image

from command_line import Run
from serving.server.clients import house
from serving.stock import ENGINE_MARKS
from takeup.serving.server.access import ApiKeys
from takeup.serving.server.backends.local import ServingPlan, TemplateStorage

pytestmark = ENGINE_MARKS
ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "guides" / "edit.md").read_text("utf-8")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[httpx.Client]:
    """The server of the guide."""
    (model,) = re.findall(r"^takeup serve (takeup/\S+) --templates kept$", GUIDE, re.MULTILINE)
    backend = ServingPlan(model, templates=TemplateStorage(tmp_path)).build()
    with house(backend, keys=ApiKeys(), model=model) as client:
        yield client


def test_the_program_prints_what_the_guide_says(server: httpx.Client) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^```text\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(code.replace("http://127.0.0.1:8000/v1", f"{server.base_url}/v1"), "guide", "exec"), {})

    assert printed.getvalue() == shown


def test_the_commands_run_and_tell_the_template(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = re.findall(r"^takeup (serving edit .*)$", GUIDE, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)).save("photo.png")
    mask = Image.new("L", (32, 32))
    mask.paste(255, (4, 4, 12, 12))
    mask.save("mask.png")
    first, second = (run(*shlex.split(command), "--steps", "2") for command in commands[:2])
    template = first.err.split()[-1]
    third = run(*shlex.split(commands[2].replace("TEMPLATE", template)), "--steps", "2")

    assert [one.code for one in (first, second, third)] == [0, 0, 0]
    assert f'"template": "{template}"' in second.out
    assert template in third.err
    assert len(commands) == 3


def test_every_field_of_the_answer_and_every_option_of_templates_is_explained() -> None:
    schemas = (ROOT / "src/takeup/serving/server/schemas.py").read_text("utf-8")
    (facts,) = re.findall(r"^class EditFacts.*?(?=^class )", schemas, re.MULTILINE | re.DOTALL)
    serve = (ROOT / "src/takeup/serving/commands/serve.py").read_text("utf-8")
    options = [name for name in re.findall(r'"(--[a-z-]+)"', serve) if "template" in name or "packing" in name]
    fields = [name for name in re.findall(r"^    (\w+):", facts, re.MULTILINE) if name != "whole_steps"]

    assert len(fields) == 6
    assert [name for name in (*fields, *options) if f"`{name}`" not in GUIDE] == []
