"""`takeup doctor`: what works on this machine, what is missing, and the command that installs it."""

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from takeup.core.extras import packages, remedy
from takeup.core.lazy import load
from takeup.core.render.text import clean
from takeup.core.report import Column, Report, Table
from takeup.errors import TakeupError
from takeup.output import output_options, show


@dataclass(frozen=True, slots=True)
class Requirement:
    """A part of the product: the packages, extras, programs and permissions it needs, and how to get them."""

    part: str
    extras: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    remedy: str = ""  # beyond the extras
    needs_root: bool = False
    why_not: str = ""  # a function of the first package's version that returns the obstacle, if any
    core: tuple[str, ...] = ()
    asks: str = ""  # a function that asks the engine, and returns its answer and whether it can be used

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages of the core and of the extras."""
        return self.core + packages(self.extras)

    @property
    def how_to_get_it(self) -> str:
        """What to install."""
        return " and ".join(filter(None, [remedy(self.extras) if self.extras else "", self.remedy]))


ANSWER_S = 1.0  # an engine has to answer
ROUTER = "install iproute2 and be root, or use the user-space link"
REQUIREMENTS = (
    Requirement("core", remedy="pip install takeup", core=("click", "numba", "numpy", "pydantic", "rich", "scipy")),
    Requirement("charts", ("charts",)),
    Requirement("tables in Parquet, large tables", ("traces",)),
    Requirement(
        "caching engine spark",
        ("spark",),
        ("java",),
        "a JDK of version 17",
        why_not="takeup.caching.engines.spark.plugin_jar:why_not",
    ),
    Requirement("caching engine dask", ("dask",), why_not="takeup.caching.engines.dask.plugins:why_unsupported"),
    Requirement(
        "cluster engine slurm",
        programs=("squeue", "sinfo", "scontrol", "sacctmgr"),
        remedy="install the clients of Slurm (slurm-client) and let them reach a controller",
        asks="takeup.doctor:ask_slurm",
    ),
    Requirement(
        "cluster engine kubernetes",
        ("k8s",),
        remedy="a kubeconfig that can be used",
        asks="takeup.doctor:ask_kubernetes",
    ),
    Requirement("edge engine cloudlet"),
    Requirement("edge link namespaces", programs=("ip", "tc"), remedy=ROUTER, needs_root=True),
    Requirement("edge environment for learners", ("gym",)),
    Requirement("serving engine diffusers", ("diffusion",)),
    Requirement("serving over HTTP (takeup serve)", ("web", "diffusion")),
    Requirement("serving workers on Ray", ("ray",)),
    Requirement("training engine pytorch", ("torch",)),
    Requirement("sweeps on a Dask cluster", ("dask",)),
)


def examine(need: Requirement) -> tuple[bool, str]:
    """Whether the part works, and its versions or what is missing."""
    versions = {package: _version(package) for package in need.packages}
    missing = [package for package, found in versions.items() if found is None]
    missing += [program for program in need.programs if shutil.which(program) is None]
    missing += ["root"] if need.needs_root and not _is_root() else []
    if missing:
        return False, f"missing: {', '.join(missing)}"
    if need.why_not and (reason := load(need.why_not)(versions[need.packages[0]])):
        return False, reason
    found = [f"{package} {number}" for package, number in versions.items()]
    found += [*need.programs, *(["root"] if need.needs_root else [])]
    works, answer = load(need.asks)() if need.asks else (True, "")
    return works, ", ".join(filter(None, [*found, answer]))


def ask_slurm() -> tuple[bool, str]:
    """Whether a controller of Slurm answers within `ANSWER_S`, and what it says."""
    try:
        asked = subprocess.run(["scontrol", "ping"], capture_output=True, text=True, timeout=ANSWER_S, check=False)
    except subprocess.TimeoutExpired:
        return False, f"no controller answers within {ANSWER_S:g} s"
    except OSError as error:
        return False, f"scontrol cannot be run: {error.strerror}"
    lines = (asked.stdout or asked.stderr).strip().splitlines() or ["scontrol ping says nothing"]
    return asked.returncode == 0 and " is UP" in asked.stdout, clean(lines[0])


def ask_kubernetes() -> tuple[bool, str]:
    """Whether the API server of the usual kubeconfig is ready within `ANSWER_S`."""
    from takeup.cluster.engines.kubernetes.client import Client, find_access

    try:
        client = Client(find_access(), timeout_s=ANSWER_S)
        try:
            client.get("/readyz")
        finally:
            client.close()
    except TakeupError as error:
        return False, clean(str(error))
    return True, f"{client.access.server} is ready"


def _state(works: bool, found: str) -> str:
    return "works" if works else "missing" if found.startswith("missing") else "no answer"


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@click.command()
@output_options
@click.pass_context
def doctor(ctx: click.Context, as_json: bool, out: Path | None, quiet: bool) -> None:
    """Check which parts work on this machine, and what is missing; engines are asked and have a second to answer.

    Exit code 1 if the core itself is broken.
    """
    findings = {need: examine(need) for need in REQUIREMENTS}
    rows = tuple(
        (need.part, _state(works, found), found, "" if works else need.how_to_get_it)
        for need, (works, found) in findings.items()
    )
    columns = (Column("part"), Column("state"), Column("found"), Column("to get it"))
    table = Table(f"Python {platform.python_version()} on {platform.system()}", columns, rows)
    show(Report("takeup doctor", "takeup", {}, 0, (table,)), as_json=as_json, out=out)
    ctx.exit(0 if all(works for need, (works, _) in findings.items() if need.core) else 1)
