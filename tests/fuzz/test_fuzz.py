"""Every reader, with inputs damaged at random: an error for users or a result, and neither a hang nor a full memory."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

pytest.importorskip("pyarrow", reason="needs traces: pip install 'takeup[traces]'")
pytest.importorskip("fastapi", reason="needs web: pip install 'takeup[web]'")

TESTS = Path(__file__).parents[1]
NUM_INPUTS = 20  # of each reader; CI gives each five seconds, `make fuzz` an hour to all


def test_damaged_inputs_are_read_or_refused_with_a_sentence(tmp_path: Path) -> None:
    paths = {"PYTHONPATH": os.pathsep.join(map(str, (TESTS, TESTS.parent / "src", TESTS.parent)))}
    program = [sys.executable, "-m", "fuzz.fuzzer", "--inputs", str(NUM_INPUTS), "--kept", str(tmp_path)]
    found = subprocess.run(program, env={**os.environ, **paths}, capture_output=True, text=True, check=False)

    assert found.returncode == 0, found.stderr[-4000:]
    rows = re.findall(r"^\| (.+?) \| (\d+) \| \d", found.stdout, re.MULTILINE)
    assert len(rows) > 30
    assert all(int(inputs) == NUM_INPUTS for _, inputs in rows), found.stdout
    assert list(tmp_path.iterdir()) == []


# Every function that decodes something is run by a target, or has a reason to be left out ----------------------------

SOURCES = TESTS.parent / "src" / "takeup"
DECODERS = re.compile(
    r"((json|tomllib|pickle|yaml)\.loads?|csv\.(reader|DictReader)|np\.(load|frombuffer)|zipfile\.ZipFile|tarfile\.open"
    r"|pq\.ParquetFile|ast\.literal_eval|Image\.open|safe_open|read_(table|rows|json|text)|.*\.read_(text|bytes))\("
)
LEFT_OUT = {
    "caching/engines/local.py": "blocks that the same process has written",
    "caching/engines/spark/session.py run_submit": "the counters, which SparkCounts.from_json reads",
    "cluster/engines/kubernetes/client.py": "answers of the API server, tokens and programs of the operator",
    "core/lazy.py": "stubs of the package",
    "core/render/html.py": "a report of this process",
    "edge/engines/cloudlet/device.py": "the order of the parent process",
    "edge/traces/library.py": "a table of the package",
    "cluster/traces/fleet_statistics.py": "figures of the package",
    "example.py": "samples of the package",
    "papers": "numbers of the package",
    "serving/editing": "templates in the server's own folder, with checksums",
    "serving/server/image_routes.py": "the page of the package",
    "tour": "a report of this process",
    "training/stragglers/watch/channel.py": "lines of peers that proved the token; 'frame of an agent' decodes them",
    "training/stragglers/watch/confirmation.py": "results of ranks in the private folder of the job",
    "training/stragglers/watch/gloo_shutdown.py": "the kernel's tables of threads",
    "training/stragglers/watch/launch.py": "the order of ranks in the private folder of the job",
    "training/stragglers/watch/pause.py": "tasks in the private folder of the job",
    "training/stragglers/watch/ring_reader.py": "rings in the private folder of the job",
    "training/stragglers/watch/run_queue.py": "the kernel's tables of threads",
}


def decoding_functions() -> Iterator[tuple[str, str]]:
    """Path and name of every function that calls a decoder."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                calls = (ast.unparse(part) for part in ast.walk(node) if isinstance(part, ast.Call))
                if any(DECODERS.match(call) for call in calls):
                    yield path.relative_to(SOURCES).as_posix(), node.name


def test_every_reader_has_a_target(tmp_path: Path) -> None:
    from fuzz.peers import ALL_TARGETS
    from fuzz.targets import run

    seen: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen.add((frame.f_code.co_filename, frame.f_code.co_name))

    for target in ALL_TARGETS.values():
        for name, data in [*target.others, *((target.name, seed) for seed in target.seeds)]:
            (tmp_path / name).write_bytes(data)
            if name == target.name:
                sys.setprofile(note)
                try:
                    run(target, tmp_path / name)
                finally:
                    sys.setprofile(None)
    decoding = [*decoding_functions()]
    missed = {f"{path} {name}" for path, name in decoding if (str(SOURCES / path), name) not in seen}

    assert {each for each in missed if not any(each.startswith(known) for known in LEFT_OUT)} == set()
    assert {
        known for known in LEFT_OUT if not any(f"{path} {name}".startswith(known) for path, name in decoding)
    } == set()
