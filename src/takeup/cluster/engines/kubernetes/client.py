"""A small client of the Kubernetes API: address and credentials, and HTTP on kept-alive connections, one per thread."""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import math
import os
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from takeup.core.extras import need
from takeup.core.lazy import load
from takeup.errors import BadInput, TakeupError

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
    try:
        names = _entry(config, "contexts", chosen, "context", path)
        cluster = _entry(config, "clusters", names.get("cluster", ""), "cluster", path)
        user = _entry(config, "users", names.get("user", ""), "user", path)
        server = str(cluster.get("server", ""))
        tls = _tls(cluster, user, path.parent) if server.startswith("https") else None
        return ApiAccess(server, _token_source(user, path.parent), tls)
    except (OSError, ValueError, TypeError) as error:  # of TLS, addresses and entries that are no mapping
        raise BadInput(f"{path} cannot be used ({error}); correct its context {chosen!r}") from error


def _read_yaml(path: Path) -> dict[str, Any]:
    need("reading a kubeconfig", "k8s")
    read = load("yaml:safe_load")
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


# A small client of the Kubernetes API: plain HTTP on kept-alive connections, one for each thread ----------------------
#
# An answer is always read to its end, or its connection could not be used again. A server that answers 5xx or not at
# all is `ApiUnreachable`; one that says no is `RequestRefused`, with the status and the reason it gave.

Json = dict[str, Any]

CONTENT_TYPES = {
    "POST": "application/json",
    "PUT": "application/json",
    "DELETE": "application/json",
    "PATCH": "application/merge-patch+json",
}


class ApiUnreachable(TakeupError):
    """The API server does not answer, or says that it cannot."""


class RequestRefused(TakeupError):
    """The API server said no."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"the API server answered {status} {reason}: {message}")
        self.status = status
        self.reason = reason


@dataclass(slots=True)
class Client:
    """Speaks to one API server; any thread may use it, and closes what it used."""

    access: ApiAccess
    timeout_s: float = 10.0
    _local: threading.local = field(default_factory=threading.local)

    def get(self, path: str, **query: object) -> Json:
        """One object or one list."""
        return self.request("GET", path + (f"?{urlencode(query)}" if query else ""))

    def request(self, method: str, path: str, body: Json | None = None, content_type: str = "") -> Json:
        """What the server answers; a connection that went stale while it was idle is opened once more."""
        data = None if body is None else json.dumps(body)
        headers = self._headers(content_type or CONTENT_TYPES.get(method, ""))
        is_kept = getattr(self._local, "connection", None) is not None
        try:
            try:
                return _checked(*self._exchange(method, path, data, headers))
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                if not is_kept:
                    raise ApiUnreachable(self._lost("it hung up")) from None
                return _checked(*self._exchange(method, path, data, headers))
        except (OSError, http.client.HTTPException) as error:
            raise ApiUnreachable(self._lost(error)) from error

    def watch(self, path: str, timeout_s: float, **query: object) -> WatchStream:
        """Watch a path from now on, over a dedicated connection."""
        asked = urlencode({**query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": int(timeout_s)})
        return WatchStream(self, f"{path}?{asked}", self._connect(timeout_s + self.timeout_s))

    def close(self) -> None:
        """Close this thread's connection."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def _exchange(self, method: str, path: str, data: str | None, headers: Json) -> tuple[int, bytes]:
        if getattr(self._local, "connection", None) is None:
            self._local.connection = self._connect(self.timeout_s)
        connection: http.client.HTTPConnection = self._local.connection
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except BaseException:
            self.close()  # what is left of this answer must not be taken for the next one
            raise

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        parts = urlsplit(self.access.server)
        assert parts.hostname is not None
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout_s, context=self.access.tls)

    def _headers(self, content_type: str) -> dict[str, str]:
        token = self.access.token()
        headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        return headers | ({"Content-Type": content_type} if content_type else {})

    def _lost(self, error: object) -> str:
        return f"{self.access.server} does not answer ({error or type(error).__name__}); waiting for it"


@dataclass(slots=True)
class WatchStream:
    """Events until the server ends the watch; the first one says that it has begun."""

    client: Client
    path: str
    connection: http.client.HTTPConnection

    def __iter__(self) -> Iterator[Json]:
        with closing(self.connection):
            try:
                self.connection.request("GET", self.path, headers=self.client._headers(""))
                answer = self.connection.getresponse()
                if answer.status != http.client.OK:
                    _checked(answer.status, answer.read())
                yield {"type": "BEGUN"}
                for line in answer:
                    yield json.loads(line)
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise ApiUnreachable(self.client._lost(error)) from error

    def end(self) -> None:
        """Shut the socket down, so that a thread blocked on the next event wakes up; no more events follow."""
        sock: socket.socket | None = self.connection.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def _checked(status: int, content: bytes) -> Json:
    """The answer as an object; errors as exceptions."""
    try:
        answer = json.loads(content) if content else {}
    except ValueError:
        answer = {"message": content[:200].decode("utf-8", "replace")}
    if status < http.client.BAD_REQUEST:
        assert isinstance(answer, dict)
        return answer
    message = str(answer.get("message", "")) if isinstance(answer, Mapping) else ""
    if status >= http.client.INTERNAL_SERVER_ERROR:
        raise ApiUnreachable(f"the API server answered {status}: {message}; waiting for it")
    raise RequestRefused(status, str(answer.get("reason", "")), message)
