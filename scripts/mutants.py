"""Mutation score of the pure rooms: `make mutants`, or `python scripts/mutants.py --count 600 --domain edge`.

A mutant is one small change of one statement: a comparison, an arithmetic operator, a constant, `and` for `or`, a
negated condition, a dropped call. The tests that import its module run on a copy of the sources; a mutant that no test
notices survives. Prints the score per domain and the survivors; those in scripts/equivalent_mutants.txt, which change
nothing that can be observed, do not count.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, TESTS = ROOT / "src", ROOT / "tests"
EQUIVALENT = ROOT / "scripts" / "equivalent_mutants.txt"
TIMEOUT_S = 300
sys.path[:0] = [str(TESTS)]
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed module: where, what, and its text."""

    path: Path
    line: int
    change: str
    text: str

    @property
    def name(self) -> str:
        """How the list of equivalents names it: without its line, which moves."""
        return f"{self.path.relative_to(SOURCE)}: {self.change}"


def sites(tree: ast.Module) -> list[tuple[int, str]]:
    """Every node that can be changed, as its place in `ast.walk`, and how."""
    found = []
    for number, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
            found.append((number, "compare"))
        elif isinstance(node, ast.BinOp) and type(node.op) in SWAPPED:
            found.append((number, "operator"))
        elif isinstance(node, ast.BoolOp):
            found.append((number, "boolean"))
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            found.append((number, "negate"))
        elif isinstance(node, ast.Constant) and type(node.value) in {int, float}:
            found.append((number, "constant"))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            found.append((number, "drop"))
    return found


def mutated(tree: ast.Module, number: int, kind: str) -> tuple[int, str, str]:
    """The line, the change in words, and the text of the module with this node changed."""
    changed = copy.deepcopy(tree)
    node: ast.AST = list(ast.walk(changed))[number]
    before = ast.unparse(node.test if isinstance(node, ast.If | ast.While) else node)
    match kind, node:
        case "compare", ast.Compare():
            node.ops[0] = SWAPPED[type(node.ops[0])]()  # type: ignore[call-overload]
        case "operator" | "boolean", ast.BinOp() | ast.BoolOp():
            node.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]
        case "negate", ast.If() | ast.IfExp() | ast.While():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case "constant", ast.Constant(value=int() | float() as value):
            node.value = value + 1
        case "drop", ast.Expr():
            node.value = ast.Constant(None)
    after = ast.unparse(node.test if isinstance(node, ast.If | ast.While) else node)
    line = getattr(node, "lineno", 0)
    return line, f"{before[:80]} -> {after[:80]}", ast.unparse(ast.fix_missing_locations(changed))


def pure_modules(domain: str | None) -> list[Path]:
    """The modules of the pure rooms, without compiled kernels."""
    from test_layers import PURE, modules, room_of

    rooms = {
        name: path for name, path in modules().items() if room_of(name.split(".")) in PURE.get(name.split(".")[0], ())
    }
    return sorted(
        path for name, path in rooms.items() if "compiled" not in name and domain in {None, name.split(".")[0]}
    )


def draw(paths: list[Path], count: int, seed: int) -> Iterator[Mutant]:
    """A seeded sample: a module by its number of sites, a site at random."""
    rng = random.Random(seed)
    trees = {path: ast.parse(path.read_text("utf-8")) for path in paths}
    every = [(path, *site) for path, tree in trees.items() for site in sites(tree)]
    for path, number, kind in rng.sample(every, min(count, len(every))):
        yield Mutant(path, *mutated(trees[path], number, kind))


def tests_of(path: Path) -> list[str]:
    """Test files that import the module or its package, nearest first."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    names = [".".join(parts[:length]) for length in (len(parts), len(parts) - 1)]
    pattern = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in names))
    domain = TESTS / parts[1]
    files = [file for file in sorted(domain.rglob("test_*.py")) if pattern.search(file.read_text("utf-8"))]
    room = domain / Path(*parts[2:-1])
    return [str(file) for file in sorted(files, key=lambda file: not file.is_relative_to(room))] or [str(domain)]


def tests_pass(path: Path, sources: Path) -> bool:
    """Whether the tests of this module pass on these sources; a run that takes too long does not."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not engine and not paper"]
    environment = {**os.environ, "PYTHONPATH": str(sources), "CI": ""}
    command += tests_of(path)
    try:
        done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def survives(mutant: Mutant, sources: Path) -> bool:
    """Whether all tests pass on a copy of the sources with this change."""
    target = sources / mutant.path.relative_to(SOURCE)
    original = target.read_text("utf-8")
    target.write_text(mutant.text, "utf-8")
    try:
        return tests_pass(mutant.path, sources)
    finally:
        target.write_text(original, "utf-8")


def main() -> int:
    """Draw, test, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--domain")
    parser.add_argument("--least", type=float, default=0.92, help="exit code 1 below this score (0.92)")
    options = parser.parse_args()
    equivalent = set(EQUIVALENT.read_text("utf-8").splitlines()) if EQUIVALENT.exists() else set()
    tried: Counter[str] = Counter()
    killed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="takeup-mutants-") as folder:
        sources = Path(folder, "src")
        shutil.copytree(SOURCE, sources, ignore=shutil.ignore_patterns("__pycache__"))
        passing = cache(lambda path: tests_pass(path, sources))
        for mutant in draw(pure_modules(options.domain), options.count, options.seed):
            domain = mutant.path.relative_to(SOURCE).parts[1]
            if mutant.name in equivalent:
                continue
            if not passing(mutant.path):
                sys.exit(
                    f"mutants: the tests of {mutant.path.relative_to(ROOT)} fail without a change; mend them first"
                )
            tried[domain] += 1
            if survives(mutant, sources):
                print(f"survives: {mutant.path.relative_to(ROOT)}:{mutant.line} {mutant.change}", flush=True)
            else:
                killed[domain] += 1
    for domain in sorted(tried):
        print(f"{domain:10} {killed[domain]:4} of {tried[domain]:4}  {killed[domain] / tried[domain]:.3f}")
    score = killed.total() / max(1, tried.total())
    print(f"{'all':10} {killed.total():4} of {tried.total():4}  {score:.3f}  (at least {options.least})")
    return 0 if score >= options.least else 1


if __name__ == "__main__":
    sys.exit(main())
