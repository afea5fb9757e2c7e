"""Optional packages: which extra installs each, and the one sentence that says so where one is missing.

Commands, lazy names, engines and `takeup doctor` all use this table, so that they give the same answer.
"""

from collections.abc import Iterable, Mapping
from importlib.util import find_spec

from takeup.errors import MissingEngine

EXTRAS: dict[str, dict[str, str]] = {
    "charts": {"vl_convert": "vl-convert-python"},
    "traces": {"pyarrow": "pyarrow"},
    "dask": {"dask": "dask", "distributed": "distributed"},
    "spark": {"pyspark": "pyspark"},
    "ray": {"ray": "ray"},
    "k8s": {"yaml": "pyyaml"},
    "gym": {"gymnasium": "gymnasium"},
    "torch": {"torch": "torch"},
    "diffusion": {
        "torch": "torch",
        "accelerate": "accelerate",
        "diffusers": "diffusers",
        "peft": "peft",
        "safetensors": "safetensors",
        "transformers": "transformers",
    },
    "web": {
        "fastapi": "fastapi",
        "PIL": "pillow",
        "prometheus_client": "prometheus-client",
        "python_multipart": "python-multipart",
        "uvicorn": "uvicorn",
    },
}
"""By the name of an extra: its modules as Python imports them, and the packages that hold them."""


def packages(extras: Iterable[str]) -> tuple[str, ...]:
    """The packages of the extras, each once, in the order of the table."""
    return tuple(dict.fromkeys(package for extra in extras for package in EXTRAS[extra].values()))


def remedy(extras: Iterable[str]) -> str:
    """The command that installs the extras."""
    return f"pip install 'takeup[{','.join(extras)}]'"


def lacking(user: str, *extras: str) -> str:
    """The sentence that names the packages of `extras` that are missing for `user`; empty if none is."""
    missing = {
        extra: [package for module, package in EXTRAS[extra].items() if not find_spec(module)] for extra in extras
    }
    return _sentence(user, {extra: found for extra, found in missing.items() if found})


def need(user: str, *extras: str) -> None:
    """Raise `MissingEngine` if a package of the extras that `user` (a command, an engine) needs is missing."""
    if sentence := lacking(user, *extras):
        raise MissingEngine(sentence)


def explain(error: ModuleNotFoundError, user: str = "this") -> MissingEngine | None:
    """What to install after a failed import; None if the module belongs to no extra."""
    module = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    return None if extra is None else MissingEngine(_sentence(user, {extra: [EXTRAS[extra][module]]}))


def _sentence(user: str, missing: Mapping[str, Iterable[str]]) -> str:
    names = dict.fromkeys(package for packages in missing.values() for package in packages)
    kind = "package" if len(names) == 1 else "packages"
    return f"{user} needs the {kind} {', '.join(map(repr, names))}; run {remedy(missing)}" if names else ""
