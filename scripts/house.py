"""Measures of the source tree with their limits: `make house`. Exit code 0; it informs, it does not judge.

header_share: lines before the first statement that is not an import or a docstring. one_importer: modules that exactly
one other module imports. ambiguous_classes: class names defined in two or more modules. idiom_share: docstrings with
words that CONTRIBUTING.md asks not to use for things. string_policy_imports: policies that engines name in strings.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent / "src" / "takeup"
IDIOMS = re.compile(r"\b(so many|so much|so long|who(ever)?|nobody|somebody|those who|of its own|anew|beside)\b", re.I)
POLICY = re.compile(r"takeup(\.\w+)*\.policies(\.\w+)*(:.*)?")
LIMITS = {
    "files": 520,
    "lines": 69_000,
    "header_share": 0.12,
    "one_importer": 0.25,
    "largest_folder": 20,
    "idiom_share": 0.01,
    "string_policy_imports": 0,
    "ambiguous_classes": 20,
    "public_names": 160,
    "function_median": 5,
    "function_p90": 14,
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    """The dotted name of a module."""
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


def is_header(node: ast.stmt) -> bool:
    """Docstrings, imports and `__all__`."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Expr(ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name("__all__")]):
            return True
        case ast.If(test=ast.Name("TYPE_CHECKING")):
            return True
    return False


def header_lines(tree: ast.Module, num_lines: int) -> int:
    """Lines before the first statement of its own, its decorators included."""
    body = next((node for node in tree.body if not is_header(node)), None)
    return num_lines if body is None else body.lineno - 1 - len(getattr(body, "decorator_list", []))


def imported(tree: ast.Module, modules: set[str]) -> set[str]:
    """The modules of this package that a module imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & modules) | ({node.module} if names - modules else set())
    return found & modules


def docstrings(tree: ast.Module) -> list[str]:
    """All docstrings of a module."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, Function | ast.ClassDef | ast.Module))
    return [text for node in nodes if (text := ast.get_docstring(node))]


def function_size(node: Function) -> int:
    """Lines of a function without its docstring."""
    return node.end_lineno - node.lineno + 1 - len((ast.get_docstring(node) or "").splitlines())  # type: ignore[operator]


def policy_strings(tree: ast.Module) -> int:
    """Policies that are named in strings."""
    values = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return sum(isinstance(value, str) and POLICY.fullmatch(value) is not None for value in values)


def public_names() -> int:
    """The names that the domain packages export: imports in their stubs."""
    stubs = (ast.parse(path.read_text("utf-8")) for path in ROOT.glob("*/__init__.pyi"))
    return sum(len(node.names) for stub in stubs for node in stub.body if isinstance(node, ast.ImportFrom))


def measures() -> dict[str, float]:
    """Every measure by name."""
    paths = sorted(ROOT.rglob("*.py"))
    texts = {name_of(path): path.read_text("utf-8") for path in paths}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    sizes = {name: text.count("\n") for name, text in texts.items()}
    importers = Counter(target for tree in trees.values() for target in imported(tree, set(trees)))
    docs = [text for tree in trees.values() for text in docstrings(tree)]
    classes = defaultdict(set)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].add(name)
    nodes = (node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, Function))
    functions = sorted(map(function_size, nodes))
    num_lines = sum(sizes.values())
    return {
        "files": len(paths),
        "lines": num_lines,
        "header_share": sum(header_lines(tree, sizes[name]) for name, tree in trees.items()) / num_lines,
        "one_importer": sum(count == 1 for count in importers.values()) / len(paths),
        "largest_folder": max(Counter(path.parent for path in paths).values()),
        "idiom_share": sum(IDIOMS.search(text) is not None for text in docs) / len(docs),
        "string_policy_imports": sum(policy_strings(tree) for name, tree in trees.items() if ".engines." in name),
        "ambiguous_classes": sum(len(modules) > 1 for modules in classes.values()),
        "public_names": public_names(),
        "function_median": functions[len(functions) // 2],
        "function_p90": functions[int(0.9 * len(functions))],
    }


def main() -> None:
    """Print a row for each measure: found, limit, and whether it is met."""
    for name, value in measures().items():
        print(f"{name:22} {value:10.3f}  at most {LIMITS[name]:>8}  {'' if value <= LIMITS[name] else 'above'}")


if __name__ == "__main__":
    main()
