"""Mutation score of the pure rooms: `make mutants`, or `python scripts/mutants.py --domain edge --count 100`.

A mutant is one small change of one statement: a comparison, an arithmetic operator, a constant, `and` for `or`, a
negated condition, a dropped call. A change that no test notices survives.

How it works. For each domain one process imports everything and collects the tests. Forks of it run each test once
under `coverage`, which tells for every line the tests that execute it. Then each mutant is a fork in which the code of
the changed function is replaced: it runs, quickest first, the tests that execute the line, up to the first failure. A
change outside functions, or in one that an import calls, needs a process that imports the changed module instead.
Kernels run uncompiled, so that their lines are seen and a change needs no compiler; a test that fails or takes more
than TEST_LIMIT_S that way is left out. Prints the score per domain and the survivors; those in
scripts/equivalent_mutants.txt, which change nothing that can be observed, do not count.

What the tests of a file execute is kept until that file or the source changes, and so is which test killed a mutant: it
is the first to run against it the next time. So a run that was ended goes on, and one after new tests is short.
"""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import importlib
import inspect
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, FrameType, FunctionType, MappingProxyType

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE, TESTS = ROOT / "src", ROOT / "tests"
KEPT = ROOT / ".pytest_cache" / "mutants"
EQUIVALENT = ROOT / "scripts" / "equivalent_mutants.txt"
ROOMS_THAT_ACT = ("engines", "experiment", "lab", "server", "simulate", "watch")  # their tests are slow uncompiled
TEST_LIMIT_S = 6  # of CPU for one test, uncompiled and traced
MUTANT_LIMIT_S = 30  # of CPU for the tests of one mutant, by their times without the change
OPTIONS: tuple[str, ...] = (
    "-q",
    "-m",
    "not engine and not paper",
    "-p",
    "no:cacheprovider",
    "--tb=native",
    "-o",
    "timeout=100",
)
OPTIONS += ("-W", "ignore::pytest.PytestAssertRewriteWarning")  # hypothesis is imported already
OPTIONS += ("-W", "ignore::RuntimeWarning")  # of integers that overflow in uncompiled kernels
WARM = ("numba", "scipy.optimize", "scipy.stats", "hypothesis", "pydantic", "rich.console", "rich.progress", "click")
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
    """A changed module: where, what, and its syntax tree."""

    path: Path
    lines: range
    change: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """How the list of equivalents names it: without its line, which moves."""
        return f"{self.path.relative_to(SOURCE)}: {self.change}"

    @property
    def domain(self) -> str:
        """The domain of its module."""
        return self.path.relative_to(SOURCE).parts[1]

    @property
    def module(self) -> str:
        """The name under which its module is imported."""
        return ".".join(part for part in self.path.relative_to(SOURCE).with_suffix("").parts if part != "__init__")


# The changes


def pure_modules(domain: str | None = None) -> list[Path]:
    """The modules of the pure rooms."""
    sys.path[:0] = [str(TESTS)]
    from test_layers import PURE, modules, room_of

    named = [(name.split("."), path) for name, path in modules().items()]
    return sorted(path for name, path in named if room_of(name) in PURE.get(name[0], ()) and domain in {None, name[0]})


def draw(paths: list[Path], count: int, seed: int) -> list[Mutant]:
    """A seeded sample of all sites."""
    every = [(path, number) for path in paths for number, _ in enumerate(sites(ast.parse(path.read_text("utf-8"))))]
    return [mutated(*site) for site in random.Random(seed).sample(every, min(count, len(every)))]


def sites(tree: ast.Module) -> Iterator[tuple[ast.stmt, ast.AST]]:
    """Every node that can be changed, with its statement."""
    for statement in ast.walk(tree):
        if isinstance(statement, ast.stmt):
            changing = filter(can_change, (statement, *_expressions(statement)))
            yield from ((statement, node) for node in changing)


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement without those of statements inside it and of annotations."""
    waiting = _children(statement)
    while waiting:
        node = waiting.pop(0)
        if not isinstance(node, ast.stmt):
            yield node
            waiting += _children(node)


def _children(node: ast.AST) -> list[ast.AST]:
    notes = {getattr(node, "annotation", None), getattr(node, "returns", None)}
    return [child for child in ast.iter_child_nodes(node) if child not in notes]


def _lines(statement: ast.stmt) -> range:
    """The lines of a statement; of one with a body, those of its head."""
    body = getattr(statement, "body", None)
    end = body[0].lineno if body else (statement.end_lineno or 0) + 1
    return range(statement.lineno, max(statement.lineno + 1, end))


def can_change(node: ast.AST) -> bool:
    """Whether `change` has something to do."""
    match node:
        case ast.Compare(ops=[operator, *_]) | ast.BinOp(op=operator):
            return type(operator) in SWAPPED
        case ast.Constant(value=value):
            return type(value) in {int, float}
    return isinstance(node, ast.BoolOp | ast.If | ast.IfExp | ast.While) or is_call(node)


def is_call(node: ast.AST) -> bool:
    """Whether the node is a statement that only calls something."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)


def change(node: ast.AST) -> None:
    """Change the node in place."""
    match node:
        case ast.Compare():
            node.ops[0] = SWAPPED[type(node.ops[0])]()  # type: ignore[call-overload]
        case ast.BinOp() | ast.BoolOp():
            node.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]
        case ast.If() | ast.IfExp() | ast.While():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.Constant(value=int() | float() as value):
            node.value = value + 1
        case ast.Expr():
            node.value = ast.Constant(None)


def mutated(path: Path, number: int) -> Mutant:
    """The module with the change at this site."""
    tree = ast.parse(path.read_text("utf-8"))
    statement, node = list(sites(tree))[number]
    lines, before = _lines(statement), _head(statement)
    change(node)
    return Mutant(path, lines, f"{before} -> {_head(statement)}", ast.fix_missing_locations(tree))


def _head(statement: ast.stmt) -> str:
    """The text of a statement without its decorators and its body."""
    return next(line for line in ast.unparse(statement).splitlines() if not line.startswith("@"))


class Changed(SourceFileLoader, MetaPathFinder):  # type: ignore[misc]
    """Imports the changed module in place of the original."""

    def __init__(self, mutant: Mutant) -> None:
        super().__init__(mutant.module, str(mutant.path))
        self.mutant = mutant

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The specification of the changed module, and none of others."""
        return spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, fullname: str) -> CodeType:
        """The changed tree, compiled."""
        return compile(self.mutant.tree, self.path, "exec")


# The tests


@dataclass(slots=True)
class Executed:
    """The tests of a domain: CPU times of those that pass, and the tests that execute each line of each file."""

    times_s: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def is_executed(self, mutant: Mutant) -> bool:
        """Whether a test executes the changed lines, other than by an import."""
        lines = self.lines.get(str(mutant.path), {})
        return any(lines.get(str(line)) for line in mutant.lines)

    def add(self, record: Path) -> None:
        """Add what the tests of a file execute."""
        found = Executed(**json.loads(record.read_text("utf-8")))
        self.times_s |= found.times_s
        for file, lines in found.lines.items():
            for line, tests in lines.items():
                self.lines.setdefault(file, {}).setdefault(line, []).extend(tests)

    def tests_of(self, mutant: Mutant, killer: str = "") -> list[str]:
        """The test that killed it before, then those that execute the changed lines."""
        lines = self.lines.get(str(mutant.path), {})
        hit = {test for line in mutant.lines for test in lines.get(str(line), ())}
        hit = hit or {test for tests in lines.values() for test in tests}  # executed by an import
        before = {killer} & self.times_s.keys()
        return list(self._affordable([*before, *self._by_time(hit - before)]))

    def _by_time(self, tests: set[str]) -> list[str]:
        return sorted(tests & self.times_s.keys(), key=lambda test: (self.times_s[test], test))

    def _affordable(self, tests: list[str]) -> Iterator[str]:
        spent_s = 0.0
        for test in tests:
            spent_s += self.times_s[test]
            if spent_s > MUTANT_LIMIT_S:
                return
            yield test


class Limited:
    """A plugin of pytest that ends tests and fixtures that take too long."""

    limit_s = TEST_LIMIT_S

    def __init__(self) -> None:
        signal.signal(signal.SIGPROF, _too_slow)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        """Limit fixtures."""
        yield from self._limited()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        """Limit the test."""
        yield from self._limited()

    def _limited(self) -> Generator[None, None, None]:
        signal.setitimer(signal.ITIMER_PROF, self.limit_s)
        yield
        signal.setitimer(signal.ITIMER_PROF, 0)


def _too_slow(number: int, frame: FrameType | None) -> None:
    pytest.fail("takes too long")


class SameExamples(Limited):
    """A plugin of pytest: hypothesis draws the same examples each time and does not look for the smallest that fails.

    Writes the test that failed into a file.
    """

    limit_s = 5 * TEST_LIMIT_S

    def __init__(self, failed: Path) -> None:
        super().__init__()
        self.failed = failed

    def pytest_sessionstart(self) -> None:
        """Before the tests are imported."""
        from hypothesis import HealthCheck, Phase, settings

        settings.register_profile(
            "mutants",
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )
        settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the name."""
        if report.failed:
            self.failed.write_text(report.nodeid, "utf-8")


class Recorder(Limited):
    """A plugin of pytest that writes `Executed`."""

    def __init__(self, paths: list[Path]) -> None:
        from coverage import Coverage

        self.coverage = Coverage(data_file=None, include=[str(path) for path in paths])
        super().__init__()
        self.executed = Executed()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, None, None]:
        """Name the test to `coverage` and time it."""
        self.coverage.switch_context(item.nodeid)
        before_s = self.executed.times_s[item.nodeid] = time.process_time()
        yield
        if item.nodeid in self.executed.times_s:
            self.executed.times_s[item.nodeid] = time.process_time() - before_s

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that does not pass without a change says nothing about one."""
        if not report.passed:
            self.executed.times_s.pop(report.nodeid, None)

    def write(self, target: Path) -> None:
        """Write what was recorded, whole or not at all."""
        data = self.coverage.get_data()
        for file in data.measured_files():
            lines = data.contexts_by_lineno(file)
            self.executed.lines[file] = {str(line): sorted(filter(None, tests)) for line, tests in lines.items()}
        part = target.with_suffix(".part")
        part.write_text(json.dumps(asdict(self.executed)), "utf-8")
        part.rename(target)


def digest_of(paths: Iterable[Path]) -> str:
    """Of the contents of files."""
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def shared_files(domain: str) -> list[Path]:
    """The source that tests of a domain run, and what the tests share."""
    sources = [path for part in (domain, "core") for path in (SOURCE / "takeup" / part).rglob("*.py")]
    helpers = [path for path in (TESTS / domain).rglob("*.py") if not path.name.startswith("test_")]
    return [*sources, *helpers, TESTS / "conftest.py"]


def in_fork(act: Callable[[], int], log: Path | None = None, limit_s: float = 1e6) -> int:
    """The exit status of `act` in a fork with a limit of CPU time; negative when a signal ended it."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        if log is not None:
            with log.open("w") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s) + 1, int(limit_s) + 5))
        code = 70
        try:
            code = act()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Trials(SameExamples):
    """A plugin of pytest that collects the tests of a domain and runs those of each mutant in a fork.

    Writes the numbers of the mutants that survive, and of those that need an import.
    """

    def __init__(self, mutants: list[Mutant], folder: Path, kept: Path) -> None:
        super().__init__(folder / "failed")
        self.mutants, self.folder, self.kept = mutants, folder, kept
        self.killers: dict[str, str] = read_killers(kept)
        self.passing: set[str] = set()
        self.items: dict[str, pytest.Item] = {}
        self.functions: dict[str, list[FunctionType]] = defaultdict(list)
        self.executed = Executed()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of running all tests once."""
        self.items = {item.nodeid: item for item in session.items}
        for function in (it for it in gc.get_objects() if type(it) is FunctionType):
            self.functions[function.__code__.co_filename].append(function)
        read_records_by_attributes()
        self._look_at_all_files()
        (self.folder / "executed").write_text(json.dumps(asdict(self.executed)), "utf-8")
        outcomes = {number: self.outcome(mutant) for number, mutant in enumerate(self.mutants)}
        (self.folder / "outcomes").write_text(json.dumps(outcomes), "utf-8")
        return True

    def _look_at_all_files(self) -> None:
        domain, files = self.mutants[0].domain, defaultdict[Path, list[pytest.Item]](list)
        common = digest_of(shared_files(domain))
        for item in self.items.values():
            files[item.path].append(item)
        for path, items in files.items():
            record = self.kept / f"{domain}-{path.stem}-{common}-{digest_of([path])}.json"
            if not record.exists():
                in_fork(partial(self._record, items, record))
            if record.exists():  # else the tests ended the process
                self.executed.add(record)

    def _record(self, items: list[pytest.Item], target: Path) -> int:
        recorder = Recorder(pure_modules(self.mutants[0].domain))
        manager = items[0].config.pluginmanager
        manager.unregister(self)
        manager.register(recorder)
        recorder.coverage.start()
        self._run_items(items, stops=False)
        recorder.coverage.stop()
        recorder.write(target)
        return 0

    def outcome(self, mutant: Mutant) -> str:
        """Whether the mutant is "killed", "survives", or needs an "import"."""
        codes = changed_functions(mutant)
        if not codes or not self.executed.is_executed(mutant):
            return "import"
        while tests := self.executed.tests_of(mutant, self.killers.get(mutant.name, "")):
            code, killer = self._trial(tests, codes, mutant)
            if code == 0:
                return "survives"
            assert code < 0 or killer, "see the log"
            if code < 0 or killer in self.passing or self._trial([killer])[0] == 0:
                self.passing.add(killer)
                keep_killer(self.kept, mutant, killer)
                return "killed"
            del self.executed.times_s[killer]  # fails alone
        return "survives"

    def _trial(
        self, tests: list[str], codes: Mapping[str, CodeType] = MappingProxyType({}), mutant: Mutant | None = None
    ) -> tuple[int, str]:
        """The exit status of these tests in a fork with these codes, and the test that fails."""
        self.failed.unlink(missing_ok=True)

        def act() -> int:
            for function in self.functions[str(mutant.path)] if mutant else ():
                if (new := codes.get(_key(function.__code__))) is not None:
                    function.__code__ = new
            return self._run_items([self.items[test] for test in tests], stops=True)

        code = in_fork(act, limit_s=10 + 2 * sum(self.executed.times_s[test] for test in tests))
        return code, self.failed.read_text("utf-8") if self.failed.exists() else ""

    def _run_items(self, items: list[pytest.Item], stops: bool) -> int:
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if stops and self.failed.exists():
                return 1
        return 0


def read_killers(kept: Path) -> dict[str, str]:
    """The test that killed each mutant the last time, by the mutant's name."""
    file = kept / "killers.jsonl"
    return dict(map(json.loads, file.read_text("utf-8").splitlines())) if file.exists() else {}


def keep_killer(kept: Path, mutant: Mutant, killer: str) -> None:
    """For the next run."""
    if killer:
        with (kept / "killers.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps([mutant.name, killer]) + "\n")


def read_records_by_attributes() -> None:
    """Let elements of structured arrays have their fields as attributes, as they have in compiled kernels."""
    import numpy as np

    for module in [module for name, module in sys.modules.items() if name.startswith("takeup.")]:
        for name, value in list(vars(module).items()):
            if isinstance(value, np.dtype) and value.names:
                setattr(module, name, np.dtype((np.record, value)))


def changed_functions(mutant: Mutant) -> dict[str, CodeType]:
    """The code of the functions that differ from the original, by their keys."""
    old = _codes(compile(mutant.path.read_text("utf-8"), str(mutant.path), "exec"))
    new = _codes(compile(mutant.tree, str(mutant.path), "exec"))
    return {key: code for key, code in new.items() if old.get(key, code) != code}


def _codes(code: CodeType) -> dict[str, CodeType]:
    """All functions in the code, not modules and classes."""
    inner = [each for const in code.co_consts if isinstance(const, CodeType) for each in _codes(const).items()]
    return dict(inner) | ({_key(code): code} if code.co_flags & inspect.CO_NEWLOCALS else {})


def _key(code: CodeType) -> str:
    return f"{code.co_qualname} {code.co_firstlineno}"


def by_import(mutant: Mutant, executed: Executed, folder: Path, kept: Path) -> str:
    """Whether the mutant is "killed" or "survives" in a process that imports the changed module."""
    tests, failed = executed.tests_of(mutant, read_killers(kept).get(mutant.name, "")), folder / "failed"
    failed.unlink(missing_ok=True)

    def act() -> int:
        sys.meta_path.insert(0, Changed(mutant))
        return pytest.main([*OPTIONS, "-x", *tests], plugins=[SameExamples(failed)])

    code = in_fork(act, folder / "log", limit_s=40 + 2 * sum(executed.times_s[test] for test in tests)) if tests else 0
    assert code not in {3, 4, 5, 70}, (folder / "log").read_text("utf-8")
    keep_killer(kept, mutant, failed.read_text("utf-8") if failed.exists() else "")
    return "killed" if code else "survives"


def equivalents() -> set[str]:
    """The names of accepted mutants; a line is `path: change  # reason`."""
    lines = EQUIVALENT.read_text("utf-8").splitlines() if EQUIVALENT.exists() else []
    return {line.rpartition("  # ")[0] for line in lines if line.startswith("takeup/")}


def main() -> int:
    """Draw, test, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--domain")
    parser.add_argument("--least", type=float, default=0.92, help="exit code 1 below this score (0.92)")
    parser.add_argument(
        "--kept", type=Path, default=KEPT, help="what the next run need not find out again (%(default)s)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="takeup-mutants-") as folder:
        mutants = draw(pure_modules(options.domain), options.count, options.seed)
        return score(mutants, Path(folder), options.kept, options.least)


def score(mutants: list[Mutant], folder: Path, kept: Path, least: float) -> int:
    """Test the mutants that are not known to be equivalent, and print."""
    known = equivalents()
    trying = [mutant for mutant in mutants if mutant.name not in known]
    kept.mkdir(parents=True, exist_ok=True)
    tried, killed = Counter(mutant.domain for mutant in trying), Counter[str]()
    for domain in sorted(tried):
        ours = sorted((mutant for mutant in trying if mutant.domain == domain), key=lambda mutant: mutant.name)
        for mutant, outcome in zip(ours, outcomes(ours, folder, kept), strict=True):
            killed[domain] += outcome == "killed"
            if outcome != "killed":
                print(f"survives: {mutant.path.relative_to(ROOT)}:{mutant.lines[0]} {mutant.change}", flush=True)
    for domain in sorted(tried):
        print(f"{domain:10} {killed[domain]:4} of {tried[domain]:4}  {killed[domain] / tried[domain]:.3f}")
    share = killed.total() / max(1, tried.total())
    print(f"{'all':10} {killed.total():4} of {tried.total():4}  {share:.3f}  (at least {least})")
    print(f"{len(mutants) - len(trying)} more are accepted as equivalent ({EQUIVALENT.relative_to(ROOT)})")
    return 0 if share >= least else 1


def outcomes(mutants: list[Mutant], folder: Path, kept: Path) -> list[str]:
    """What became of the mutants of one domain."""
    domain, log = mutants[0].domain, folder / "log"
    ignored = [f"--ignore-glob=*/{domain}/*{room}/*" for room in ROOMS_THAT_ACT]
    arguments = [*OPTIONS, *ignored, "--continue-on-collection-errors", str(TESTS / domain)]
    in_fork(lambda: pytest.main(arguments, plugins=[Trials(mutants, folder, kept)]), log)
    assert (folder / "outcomes").exists(), log.read_text("utf-8")
    found: dict[str, str] = json.loads((folder / "outcomes").read_text("utf-8"))
    executed = Executed(**json.loads((folder / "executed").read_text("utf-8")))
    (folder / "outcomes").unlink()
    return [
        by_import(mutant, executed, folder, kept) if found[str(number)] == "import" else found[str(number)]
        for number, mutant in enumerate(mutants)
    ]


if __name__ == "__main__":
    # Before anything is imported that compiles.
    os.environ |= {"NUMBA_DISABLE_JIT": "1", "CI": "", "OPENBLAS_NUM_THREADS": "1"}
    os.chdir(ROOT)
    sys.path[:0] = [str(SOURCE)]
    for name in WARM:
        importlib.import_module(name)
    sys.exit(main())
