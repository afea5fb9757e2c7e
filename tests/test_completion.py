"""The shell completes commands, options and the names of policies, workloads and engines."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from takeup.completion import REGISTRIES, names
from takeup.core.lazy import load


@pytest.mark.parametrize(
    ("args", "incomplete", "expected"),
    [
        (["caching", "compare"], "le", ["lerc"]),
        (["caching", "compare"], "lru,lr", ["lru,lru", "lru,lrc"]),
        (["caching", "compare", "lru", "--workload"], "pa", ["pagerank"]),
        (["cluster", "run", "gfs", "--engine"], "sl", ["slurm"]),
        (["edge", "solve", "--policy"], "aut", ["auto"]),
        (["reproduce"], "fa", ["falcon"]),
        (["example"], "cm", ["cmcd.log"]),
        (["caching", "compare", "lru", "--seed"], "1", []),
        (["doctor"], "x", []),
        ([], "x", []),
    ],
)
def test_a_word_becomes_a_name_of_its_domain(args: list[str], incomplete: str, expected: list[str]) -> None:
    assert names(args, incomplete) == expected


def test_every_registry_exists_and_has_names() -> None:
    assert all(list(load(target)) for takes in REGISTRIES.values() for target in takes.values())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("takeup cach", "caching"),
        ("takeup caching compare --capac", "--capacity"),
        ("takeup caching compare lru,le", "lru,lerc"),
    ],
)
def test_bash_completes_commands_options_and_names(words: str, expected: str) -> None:
    asked = {"_TAKEUP_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = subprocess.run(
        [sys.executable, "-m", "takeup"], check=False, capture_output=True, text=True, env={**os.environ, **asked}
    )

    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == [expected]
