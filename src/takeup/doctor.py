"""`takeup doctor`: what works on this machine, what is missing, and the command that installs it."""

import os
import platform
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

from takeup.core.lazy import load
from takeup.core.report import Column, Report, Table
from takeup.output import output_options, show


@dataclass(frozen=True, slots=True)
class Requirement:
    """A part of the product, the packages, programs and permissions it needs, and how to get them."""

    part: str
    packages: tuple[str, ...]
    remedy: str
    programs: tuple[str, ...] = ()
    needs_root: bool = False
    why_not: str = ""  # a function of the first package's version that returns the obstacle, if any

    @property
    def is_core(self) -> bool:
        return self.part == "core"


REQUIREMENTS = (
    Requirement(
        "core", ("numpy", "numba", "pyarrow", "pydantic", "rich", "scipy", "vl-convert-python"), "pip install takeup"
    ),
    Requirement("caching engine local", ("numpy",), "pip install takeup"),
    Requirement(
        "caching engine spark",
        ("pyspark",),
        "pip install 'takeup[spark]', and a JDK of version 17",
        ("java",),
        why_not="takeup.caching.engines.spark.plugin_jar:why_not",
    ),
    Requirement(
        "caching engine dask",
        ("distributed", "dask"),
        "pip install 'takeup[dask]'",
        why_not="takeup.caching.engines.dask.plugins:why_unsupported",
    ),
    Requirement("cluster engine embedded", ("numpy", "numba"), "pip install takeup"),
    Requirement(
        "cluster engine slurm",
        (),
        "install the clients of Slurm (slurm-client), or try a laboratory: scripts/slurm-lab",
        ("squeue", "sinfo", "scontrol", "sacctmgr"),
    ),
    Requirement("cluster engine kubernetes", ("pyyaml",), "pip install 'takeup[k8s]'"),
    Requirement("edge engine cloudlet", ("numpy",), "pip install takeup"),
    Requirement(
        "edge link namespaces", (), "install iproute2 and be root, or use the user-space link", ("ip", "tc"), True
    ),
    Requirement("edge environment for learners", ("gymnasium",), "pip install 'takeup[gym]'"),
    Requirement(
        "serving engine diffusers", ("torch", "diffusers", "transformers", "peft"), "pip install 'takeup[diffusion]'"
    ),
    Requirement(
        "serving over HTTP (takeup serve)",
        ("fastapi", "uvicorn", "python-multipart", "prometheus-client", "pillow", "torch", "diffusers"),
        "pip install 'takeup[web,diffusion]'",
    ),
    Requirement("serving workers on Ray", ("ray",), "pip install 'takeup[ray]'"),
    Requirement("streaming engine dash", ("numpy",), "pip install takeup"),  # its link is paced in this process
    Requirement(
        "streaming link namespaces", (), "install iproute2 and be root, or use the user-space link", ("ip", "tc"), True
    ),
    Requirement("training engine pytorch", ("torch",), "pip install 'takeup[torch]'"),
    Requirement("sweeps on a Dask cluster", ("distributed",), "pip install 'takeup[dask]'"),
    Requirement("benchmarks against libCacheSim", ("libcachesim",), "pip install 'takeup[bench]'"),
    Requirement("tests", ("pytest", "hypothesis", "mypy", "ruff"), "make test"),
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
    packages = [f"{package} {found}" for package, found in versions.items()]
    return True, ", ".join([*packages, *need.programs, *(["root"] if need.needs_root else [])])


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
    """Check which parts work on this machine, and what is missing. Exit code 1 if the core itself is broken."""
    findings = {need: examine(need) for need in REQUIREMENTS}
    rows = tuple(
        (need.part, "works" if works else "missing", found, "" if works else need.remedy)
        for need, (works, found) in findings.items()
    )
    columns = (Column("part"), Column("state"), Column("found"), Column("to get it"))
    table = Table(f"Python {platform.python_version()} on {platform.system()}", columns, rows)
    show(Report("takeup doctor", "takeup", {}, 0, (table,)), as_json=as_json, out=out)
    ctx.exit(0 if all(works for need, (works, _) in findings.items() if need.is_core) else 1)
