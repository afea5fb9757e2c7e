"""A real control plane for tests that ask for one: started once by scripts/kube-lab, stopped when Python ends."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from takeup.cluster.engines.kubernetes import Client, find_access
from takeup.cluster.engines.kubernetes.client import RequestRefused
from takeup.core.lazy import load

ROOT = Path(__file__).parents[4]
SCRIPT, MANIFESTS = ROOT / "scripts" / "kube-lab", ROOT / "deploy" / "kubernetes"
CACHE = Path(
    os.environ.get("TAKEUP_KUBE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "takeup/kube"
)


def require_lab() -> Path:
    """The folder of a lab that runs; skips the test where none can be started."""
    if not (CACHE / "kube-apiserver").exists():
        pytest.skip(f"needs a kube-apiserver in {CACHE}: run scripts/kube-lab build (3 to 10 minutes)")
    return _start()


@cache
def _start() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="takeup-kube-"))
    atexit.register(_stop, folder)
    subprocess.run([SCRIPT, "start", folder], check=True, capture_output=True, timeout=250)
    return folder


def _stop(folder: Path) -> None:
    subprocess.run([SCRIPT, "stop", folder], capture_output=True, check=False)
    shutil.rmtree(folder, ignore_errors=True)


def lab_client(user: str) -> Client:
    """A client of the lab in the name of admin, scheduler or takeup."""
    return Client(find_access(require_lab() / f"{user}.kubeconfig"))


def apply_manifests(client: Client, *names: str) -> None:
    """What `kubectl apply` would do with files of deploy/kubernetes."""
    for name in names:
        for thing in load("yaml:safe_load_all")((MANIFESTS / name).read_text("utf-8")):
            group = "/api" if "/" not in thing["apiVersion"] else "/apis"
            space = thing["metadata"].get("namespace")
            folder = f"{group}/{thing['apiVersion']}" + (f"/namespaces/{space}" if space else "")
            kind = thing["kind"].lower()
            with suppress_conflict():
                client.request("POST", f"{folder}/{kind}{'es' if kind.endswith('s') else 's'}", thing)


@contextmanager
def suppress_conflict() -> Iterator[None]:
    """What is there already may stay."""
    try:
        yield
    except RequestRefused as error:
        if error.status != 409:
            raise
