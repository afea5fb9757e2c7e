"""API server address and credentials: from inside a pod, from a kubeconfig, or given explicitly."""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from takeup.core.lazy import load
from takeup.errors import BadInput, MissingEngine

POD_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PLUGIN_TIMEOUT_S = 30
PLUGIN_TOKEN_S = 60.0  # a program that gives tokens is too slow to be asked for every request


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """An API server. `token` is called for every request, because tokens expire."""

    server: str
    token: Callable[[], str] = field(default=str)
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        if urlsplit(self.server).scheme not in {"http", "https"} or not urlsplit(self.server).hostname:
            raise BadInput(f"the API server is {self.server!r}; expected an address such as https://10.0.0.1:6443")


def find_access(kubeconfig: Path | None = None, context: str = "") -> ApiAccess:
    """The kubeconfig that was named, else the pod we run in, else $KUBECONFIG, else ~/.kube/config."""
    if kubeconfig is None and not context and (POD_FOLDER / "token").exists():
        return _from_pod(POD_FOLDER, os.environ)
    named = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0]
    path = kubeconfig or Path(named or Path.home() / ".kube" / "config")
    if not path.exists():
        raise BadInput(f"found no kubeconfig at {path}; name one with --kubeconfig, or run inside the cluster")
    return _from_kubeconfig(path, context)


def _from_pod(folder: Path, environment: Mapping[str, str]) -> ApiAccess:
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise BadInput(f"found {folder} but not KUBERNETES_SERVICE_HOST; name a kubeconfig with --kubeconfig")
    name = f"[{host}]" if ":" in host else host
    tls = ssl.create_default_context(cafile=folder / "ca.crt")
    return ApiAccess(f"https://{name}:{port}", lambda: (folder / "token").read_text().strip(), tls)


def _from_kubeconfig(path: Path, context: str) -> ApiAccess:
    config = _read_yaml(path)
    chosen = context or config.get("current-context", "")
    names = _entry(config, "contexts", chosen, "context", path)
    cluster = _entry(config, "clusters", names.get("cluster", ""), "cluster", path)
    user = _entry(config, "users", names.get("user", ""), "user", path)
    server = str(cluster.get("server", ""))
    tls = _tls(cluster, user, path.parent) if server.startswith("https") else None
    return ApiAccess(server, _token_source(user, path.parent), tls)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        read = load("yaml:safe_load")
    except ImportError:
        raise MissingEngine(
            "reading a kubeconfig needs the package 'pyyaml'\n\nhint: pip install 'takeup[k8s]'"
        ) from None
    try:
        config = read(path.read_text("utf-8"))
    except Exception as error:  # the library's own errors cannot be named before it is imported
        raise BadInput(f"{path} cannot be read as a kubeconfig: {error}") from error
    if not isinstance(config, dict):
        raise BadInput(f"{path} is no kubeconfig; expected contexts, clusters and users")
    return config


def _entry(config: Mapping[str, Any], key: str, name: str, inner: str, path: Path) -> dict[str, Any]:
    entries = {str(entry.get("name")): entry for entry in config.get(key) or [] if isinstance(entry, dict)}
    if name not in entries:
        known = ", ".join(entries) or "none"
        raise BadInput(f"{path} has no entry {name!r} in {key} (known: {known}); choose one with --context")
    return dict(entries[name].get(inner) or {})


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> ssl.SSLContext:
    authority = _bytes(cluster, "certificate-authority", folder)
    tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    certificate, key = (_bytes(user, name, folder) for name in ("client-certificate", "client-key"))
    if certificate and key:
        with tempfile.TemporaryDirectory() as private:  # the library takes files only
            paths = Path(private) / "certificate", Path(private) / "key"
            for path, content in zip(paths, (certificate, key), strict=True):
                path.write_bytes(content)
            tls.load_cert_chain(*paths)
    return tls


def _bytes(entry: Mapping[str, Any], name: str, folder: Path) -> bytes:
    """What `name-data` holds, or the file that `name` points to; empty without either."""
    try:
        if entry.get(f"{name}-data"):
            return base64.b64decode(str(entry[f"{name}-data"]))
        return (folder / str(entry[name])).read_bytes() if entry.get(name) else b""
    except (OSError, binascii.Error) as error:
        raise BadInput(f"{name} of the kubeconfig cannot be read: {error}") from error


def _token_source(user: Mapping[str, Any], folder: Path) -> Callable[[], str]:
    if user.get("exec"):
        return _cached(lambda: _ask_plugin(user["exec"]))
    if user.get("tokenFile"):
        return lambda: (folder / str(user["tokenFile"])).read_text().strip()
    return lambda: str(user.get("token") or "")


def _cached(ask: Callable[[], str]) -> Callable[[], str]:
    """Cache the token for `PLUGIN_TOKEN_S` seconds."""
    known, until_s = "", -math.inf

    def token() -> str:
        nonlocal known, until_s
        if time.monotonic() >= until_s:
            known, until_s = ask(), time.monotonic() + PLUGIN_TOKEN_S
        return known

    return token


def _ask_plugin(plugin: Mapping[str, Any]) -> str:
    command = [str(plugin.get("command", "")), *map(str, plugin.get("args") or ())]
    added = {str(pair["name"]): str(pair["value"]) for pair in plugin.get("env") or ()}
    asked = {"apiVersion": plugin.get("apiVersion"), "kind": "ExecCredential", "spec": {"interactive": False}}
    environment = {**os.environ, **added, "KUBERNETES_EXEC_INFO": json.dumps(asked)}
    try:
        answer = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=PLUGIN_TIMEOUT_S)
        return str(json.loads(answer.stdout)["status"]["token"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{command[0]!r} of the kubeconfig gave no token ({error}); run it by hand and see") from error
