"""`takeup serve` as people start it: mistakes are one sentence, and a server that runs says where, works and stops."""

from __future__ import annotations

import io
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from command_line import Run, assert_one_sentence

pytest.importorskip("fastapi", reason="needs the package 'fastapi': pip install 'takeup[web]'")
pytest.importorskip("diffusers", reason="needs the package 'diffusers': pip install 'takeup[diffusion]'")

from PIL import Image

from serving.server.clients import ALICE, ask, bearer, eventually, metric
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
        (("--order", "luck"), ("no order of the queue", "in_order")),
        (("--route", "anywhere"), ("no route", "affinity")),
        (("--adapter-source", "https://models.example"), ("no prefix", "hub:owner/")),
        (("--webhook", "app.example"), ("no origin", "https://app.example/")),
        (("--keys", "nowhere"), ("nowhere", "tenant:key")),
        (("--adapters", "nowhere"), ("nowhere", "not a folder")),
    ],
)
def test_options_that_make_no_sense_are_sentences(run: Run, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    outcome = run("serve", "takeup/tiny-sd15", "--port", "0", *options)

    assert outcome.code == 2
    assert all(word in outcome.err.splitlines()[-1] for word in words), outcome.err


def test_a_missing_package_is_named_with_the_command_that_brings_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("takeup.core.extras.find_spec", lambda name: None if name == "uvicorn" else name)
    outcome = run("serve", "takeup/tiny-sd15")

    assert outcome.code == 2
    assert "'uvicorn'" in outcome.err
    assert "pip install 'takeup[web]'" in outcome.err


# A server that runs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    """The program in a process of its own, the address it printed, and its log."""

    process: subprocess.Popen[str]
    address: str
    log: Path


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The server of the guide, with two workers."""
    (model,) = re.findall(r"^takeup serve (takeup/\S+)$", GUIDE, re.MULTILINE)
    folder = tmp_path_factory.mktemp("serve")
    options = ("--workers", "2", "--json", "--deterministic", "--port", "0")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "takeup", "serve", model, *options],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
            env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 280)
    assert ready, (folder / "log").read_text()
    yield Program(process, process.stdout.readline().strip(), folder / "log")
    process.kill()
    process.wait()
    process.stdout.close()


def png(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.convert("RGB").save(file, "png")
    return file.getvalue()


def corner_mask() -> Image.Image:
    mask = Image.new("L", (32, 32))
    mask.paste(255, (0, 0, 12, 12))
    return mask


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Its child processes that have the model."""
    tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
    children = {int(child) for task in tasks for child in task.read_text().split()}
    return sorted(pid for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text())


def test_the_program_of_the_guide_runs_against_the_server_of_the_guide(program: Program, tmp_path: Path) -> None:
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL))
    code = code.replace("http://127.0.0.1:8000", program.address)
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    shown = re.findall(r"^```text\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == shown[-1]


def heard_while_a_worker_dies(
    program: Program, client: httpx.Client, url: str, **request: Any
) -> tuple[int, list[dict[str, Any]]]:
    """Which worker was killed in the middle of a request, and what the client heard from then on.

    Again, at most three times in all, if that worker had just done its part.
    """
    for _ in range(3):
        eventually(lambda: metric(client, "workers") == 2, within_s=280)
        num_retries, victim = metric(client, "retries_total"), workers_of(program.process)[0]
        with client.stream("POST", url, **request) as stream:
            lines = stream.iter_lines()
            while "progress" not in next(lines):
                pass
            os.kill(victim, signal.SIGKILL)
            events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
        if metric(client, "retries_total") > num_retries:
            break
    assert metric(client, "retries_total") == num_retries + 1
    return victim, events


def test_a_worker_that_is_killed_in_the_middle_of_a_step_is_not_noticed(program: Program) -> None:
    url, wanted = "/v1/images/generations", ask(steps=60, n=2)
    with httpx.Client(base_url=program.address, headers=bearer(ALICE), timeout=280) as client:
        before = [image["b64_json"] for image in client.post(url, json=wanted).json()["data"]]
        victim, events = heard_while_a_worker_dies(program, client, url, json=wanted | {"stream": True})

    assert [event["b64_json"] for event in events[-2:]] == before
    assert f"worker {victim} died" in program.log.read_text()


def test_an_edit_whose_worker_is_killed_is_made_again_by_another(program: Program) -> None:
    url, files = "/v1/images/edits", {"image": png(Image.effect_noise((32, 32), 90)), "mask": png(corner_mask())}
    wanted = {"prompt": "a dog", "steps": 60, "seed": 3, "n": 2}
    with httpx.Client(base_url=program.address, headers=bearer(ALICE), timeout=280) as client:
        eventually(lambda: metric(client, "workers") == 2, within_s=280)
        before = client.post(url, data=wanted, files=files).json()["data"]
        _, events = heard_while_a_worker_dies(program, client, url, data=wanted | {"stream": True}, files=files)

    assert [(event["b64_json"], event["edit"]) for event in events[-2:]] == [
        (one["b64_json"], one["edit"]) for one in before
    ]


def test_a_server_that_is_told_to_stop_does_so_with_all_its_workers(program: Program) -> None:
    workers = workers_of(program.process)
    program.process.send_signal(signal.SIGTERM)
    code = program.process.wait(280)
    log = program.log.read_text().splitlines()
    objects = [json.loads(line) for line in log if line.startswith("{")]

    assert code == 0
    assert log[-1] == "stopped"
    assert workers
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert any("POST /v1/images/generations" in one["message"] for one in objects)
    assert not any(ALICE in line for line in log)


def test_the_guide_names_every_code_of_an_error_and_every_option() -> None:
    source = Path(__file__).parents[3] / "src" / "takeup" / "serving"
    texts = [path.read_text("utf-8") for path in (source / "server").rglob("*.py")]
    codes = {code for text in texts for code in re.findall(r'code="(\w+)"', text)}
    options = set(re.findall(r'^    "(--[a-z-]+)', (source / "commands" / "serve.py").read_text("utf-8"), re.M))

    assert "queue_full" in codes
    assert {code for code in codes if f"`{code}`" not in GUIDE} == set()
    assert {option for option in options if f"`{option}" not in GUIDE} == set()
