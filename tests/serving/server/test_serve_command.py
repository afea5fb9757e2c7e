"""`takeup serve` as people start it: mistakes are one sentence, and a server that runs says where, works and stops."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from command_line import Run, assert_one_sentence
from serving.server.houses import ALICE, BOB, ask, bearer

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")
pytest.importorskip("diffusers", reason="needs the package 'diffusers': pip install 'takeup[diffusion]'")

from serving.stock import ENGINE_MARKS

pytestmark = ENGINE_MARKS
GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "serve.md").read_text("utf-8")


@pytest.fixture(autouse=True)
def _no_keys_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TAKEUP_API_KEY", "TAKEUP_API_KEYS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_other_machines_are_let_in_with_keys_only(run: Run) -> None:
    assert_one_sentence(run("serve", "takeup/tiny-sd15", "--host", "0.0.0.0"), "0.0.0.0", "--keys", "TAKEUP_API_KEY")


def test_an_unknown_tiny_model_is_answered_with_the_nearest(run: Run) -> None:
    outcome = run("serve", "takeup/tiny-sdlx", "--port", "0")

    assert outcome.code == 2
    assert "did you mean 'takeup/tiny-sdxl'?" in outcome.err


@pytest.mark.parametrize(
    ("model", "word"), [("no-such-folder", "no such folder"), ("someone/something", "connect to the hub")]
)
def test_a_model_that_is_not_here_is_a_sentence_with_a_way_out(run: Run, model: str, word: str) -> None:
    outcome = run("serve", model, "--port", "0")
    last = outcome.err.splitlines()[-1]

    assert outcome.code == 2
    assert last.startswith("error: ")
    assert word in last
    assert "takeup/tiny-" in last


def test_a_folder_that_is_no_model_is_a_sentence(run: Run, tmp_path: Path) -> None:
    outcome = run("serve", tmp_path, "--port", "0")

    assert outcome.code == 2
    assert "could not be opened" in outcome.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--controlnet", "depth"), ("NAME=FOLDER",)),
        (("--cache", "lots"), ("not a size",)),
        (("--cache-policy", "luck"), ("no policy", "lru")),
        (("--keys", "nowhere"), ("nowhere", "tenant:key")),
    ],
)
def test_options_that_make_no_sense_are_sentences(run: Run, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    outcome = run("serve", "takeup/tiny-sd15", "--port", "0", *options)

    assert outcome.code == 2
    assert all(word in outcome.err.splitlines()[-1] for word in words), outcome.err


def test_a_missing_package_is_named_with_the_command_that_brings_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("takeup.serving.commands.serve.find_spec", lambda name: None if name == "uvicorn" else name)
    outcome = run("serve", "takeup/tiny-sd15")

    assert outcome.code == 2
    assert "'uvicorn'" in outcome.err
    assert "pip install 'takeup[web]'" in outcome.err


# A server that runs ---------------------------------------------------------------------------------------------------


@contextmanager
def started(*options: str, folder: Path, **environment: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The program in a process of its own, and the address it prints."""
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        [sys.executable, "-m", "takeup", "serve", *options, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        cwd=folder,
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | environment,
    )
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], 250)
        assert ready, (folder / "log").read_text()
        yield process.stdout.readline().strip(), process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        log.close()


def children_of(pid: int) -> set[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return {int(child) for task in tasks for child in task.read_text().split()}


def test_a_server_of_two_workers_survives_the_death_of_one_and_stops_cleanly(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"alice:{ALICE}\nbob:{BOB}\n")
    options = ("takeup/tiny-sd15", "--workers", "2", "--keys", "keys", "--json", "--deterministic")
    url = "/v1/images/generations"
    with started(*options, folder=tmp_path) as (address, process):
        with httpx.Client(base_url=address, headers=bearer(ALICE), timeout=250) as client:
            before = client.post(url, json=ask(n=2)).json()["data"]
            victim = min(pid for pid in children_of(process.pid) if "spawn_main" in command_of(pid))
            with client.stream("POST", url, json=ask(steps=100, n=2, stream=True)) as stream:
                lines = stream.iter_lines()
                while "progress" not in next(lines):
                    pass
                os.kill(victim, signal.SIGKILL)
                last = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")][-2:]
            after = client.post(url, json=ask(n=2)).json()["data"]
        process.send_signal(signal.SIGTERM)
        code = process.wait(100)
    log = (tmp_path / "log").read_text()
    lines_of_log = [line for line in log.splitlines() if line.startswith("{")]

    assert [event["type"] for event in last] == ["image_generation.completed"] * 2
    assert after == before
    assert code == 0
    assert log.splitlines()[-1] == "stopped"
    assert f"worker {victim} died" in log
    assert any(json.loads(line)["logger"].startswith("uvicorn") for line in lines_of_log)
    assert ALICE not in log
    assert not Path(f"/proc/{process.pid}").exists()


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return ""


def test_the_program_of_the_guide_runs_against_the_server_of_the_guide(tmp_path: Path) -> None:
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL))
    (line,) = re.findall(r"^takeup serve (takeup/\S+)$", GUIDE, re.MULTILINE)
    with started(line, folder=tmp_path) as (address, _):
        program = code.replace("http://127.0.0.1:8000", address)
        ran = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False
        )

    assert (ran.returncode, ran.stderr) == (0, "")
    shown = re.findall(r"^```text\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    assert ran.stdout == shown[-1]


def test_the_guide_names_every_code_of_an_error_and_every_option() -> None:
    source = Path(__file__).parents[3] / "src" / "takeup" / "serving"
    texts = [path.read_text("utf-8") for path in (source / "server").rglob("*.py")]
    codes = {code for text in texts for code in re.findall(r'code="(\w+)"', text)}
    options = set(re.findall(r'"(--[a-z-]+)"', (source / "commands" / "serve.py").read_text("utf-8")))

    assert "queue_full" in codes
    assert {code for code in codes if f"`{code}`" not in GUIDE} == set()
    assert {option for option in options if f"`{option}" not in GUIDE} == set()
