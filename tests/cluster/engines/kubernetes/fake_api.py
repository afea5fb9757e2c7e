"""A Kubernetes API server for tests, in this process: enough of it, and ready to fail on request.

Its answers are those that a real server gave; the conformance tests hold it to one where one is at hand.
"""

from __future__ import annotations

import copy
import json
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from takeup.cluster.engines.kubernetes.client import ApiAccess, Client

Json = dict[str, Any]
Answer = tuple[int, Json]
HANG_UP = 0


def status(code: int, reason: str, message: str = "") -> Answer:
    return code, {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code}


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class FakeApi:
    """Between entry and exit. `fault` may answer instead; `protected` pods have a disruption budget that says no."""

    fault: Callable[[str, str], int | None] = lambda method, path: None
    protected: set[str] = field(default_factory=set)
    eviction_version: str = "v1beta1"
    requests: list[tuple[str, str, Json]] = field(default_factory=list)
    oldest: int = 0
    _things: dict[str, dict[str, Json]] = field(default_factory=dict)
    _log: list[tuple[int, str, str, Json]] = field(default_factory=list)
    _version: int = 100
    _news: threading.Condition = field(default_factory=threading.Condition)
    is_closing: bool = False
    _era: int = 0  # no watch outlives its own

    def __enter__(self) -> FakeApi:
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closing = True
        with self._news:
            self._news.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def client(self, timeout_s: float = 60.0) -> Client:
        return Client(ApiAccess(f"http://127.0.0.1:{self._server.server_port}"), timeout_s)

    def break_off(self) -> None:
        """End all watches, as a server that restarts does."""
        with self._news:
            self._era += 1
            self._news.notify_all()

    def forget_history(self) -> None:
        """No watch can go on from before now."""
        with self._news:
            self._version += 1
            self.oldest = self._version
        self.break_off()

    def asked(self, method: str, ending: str) -> int:
        """How many requests of this kind came in."""
        return sum(it[0] == method and it[1].endswith(ending) for it in self.requests)

    # Answers ----------------------------------------------------------------------------------------------------------

    def answer(self, method: str, path: str, body: Json) -> Answer:
        with self._news:
            self.requests.append((method, path, body))
            if path == "/api/v1":
                return 200, {"resources": [self._eviction_resource()]}
            folder, name, part = _split(path)
            things = self._things.setdefault(folder, {})
            if not name:
                return self._create(folder, body) if method == "POST" else (200, self._list(folder))
            if name not in things:
                return status(404, "NotFound", f"{name} not found")
            acts = {"binding": self._bind, "eviction": self._evict, "PATCH": self._patch, "DELETE": self._delete}
            act = acts.get(part) or acts.get(method)
            return act(folder, name, body) if act else (200, copy.deepcopy(things[name]))

    def _eviction_resource(self) -> Json:
        return {"name": "pods/eviction", "group": "policy", "version": self.eviction_version, "kind": "Eviction"}

    def _list(self, folder: str) -> Json:
        found = [thing for key, things in self._things.items() if _covers(folder, key) for thing in things.values()]
        return {"items": copy.deepcopy(found), "metadata": {"resourceVersion": str(self._version)}}

    def _create(self, folder: str, body: Json) -> Answer:
        meta = body["metadata"]
        name = meta.get("name") or meta["generateName"] + uuid.uuid4().hex[:5]
        if name in self._things[folder]:
            return status(409, "AlreadyExists", f"{name} already exists")
        thing = copy.deepcopy(body)
        parts = folder.split("/")
        thing["metadata"] |= {"name": name, "uid": str(uuid.uuid4()), "creationTimestamp": now()}
        if "namespaces" in parts:
            thing["metadata"]["namespace"] = parts[parts.index("namespaces") + 1]
        if folder.endswith("/pods"):
            thing["status"] = {"phase": "Pending"}
        return 201, self._store(folder, thing, "ADDED")

    def _bind(self, folder: str, name: str, body: Json) -> Answer:
        thing = copy.deepcopy(self._things[folder][name])
        if thing["spec"].get("nodeName") or thing["metadata"].get("deletionTimestamp"):
            return status(409, "Conflict", f"pod {name} is already assigned to a node")
        if thing["spec"].get("schedulingGates"):
            return status(400, "BadRequest", "pod has scheduling gates")
        thing["spec"]["nodeName"] = body["target"]["name"]
        thing["metadata"].setdefault("annotations", {}).update(body["metadata"].get("annotations", {}))
        thing["status"]["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": now()}]
        self._store(folder, thing, "MODIFIED")
        return 201, {"kind": "Status", "status": "Success", "code": 201}

    def _evict(self, folder: str, name: str, body: Json) -> Answer:
        if body["apiVersion"] != f"policy/{self.eviction_version}":
            return status(400, "BadRequest", "no kind Eviction in this version")
        if name in self.protected:
            return status(429, "TooManyRequests", "it would violate the pod's disruption budget")
        code, answer = self._delete(folder, name, body.get("deleteOptions", {}))
        return (201 if code == 200 else code), answer

    def _delete(self, folder: str, name: str, options: Json) -> Answer:
        thing = copy.deepcopy(self._things[folder][name])
        uid = options.get("preconditions", {}).get("uid", thing["metadata"]["uid"])
        if uid != thing["metadata"]["uid"]:
            return status(409, "Conflict", "the UID in the precondition does not match")
        if options.get("gracePeriodSeconds") == 0 or not thing.get("spec", {}).get("nodeName"):
            del self._things[folder][name]
            self._note(folder, thing, "DELETED")
        else:
            thing["metadata"]["deletionTimestamp"] = now()
            self._store(folder, thing, "MODIFIED")
        return 200, thing

    def _patch(self, folder: str, name: str, change: Json) -> Answer:
        thing = copy.deepcopy(self._things[folder][name])
        node = change.get("spec", {}).get("nodeName")
        if node and thing["spec"].get("nodeName") != node:
            return status(422, "Invalid", "spec.nodeName cannot be changed")
        version = thing["metadata"]["resourceVersion"]
        if change.get("metadata", {}).get("resourceVersion", version) != version:
            return status(409, "Conflict", "the object has been modified")
        if change.get("metadata", {}).get("uid", thing["metadata"]["uid"]) != thing["metadata"]["uid"]:
            return status(422, "Invalid", "metadata.uid cannot be changed")
        return 200, self._store(folder, _merged(thing, change), "MODIFIED")

    def _store(self, folder: str, thing: Json, event: str) -> Json:
        self._things[folder][thing["metadata"]["name"]] = thing
        return self._note(folder, thing, event)

    def _note(self, folder: str, thing: Json, event: str) -> Json:
        self._version += 1
        thing["metadata"]["resourceVersion"] = str(self._version)
        self._log.append((self._version, event, folder, copy.deepcopy(thing)))
        self._news.notify_all()
        return copy.deepcopy(thing)

    # Watches ----------------------------------------------------------------------------------------------------------

    def events(self, path: str, since: int, until_s: float, write: Callable[[Json], None]) -> None:
        with self._news:
            era = self._era
            if since < self.oldest:
                return write({"type": "ERROR", "object": status(410, "Expired", "too old resource version")[1]})
        while not self.is_closing and era == self._era and monotonic() < until_s:
            with self._news:
                new = [it for it in self._log if it[0] > since and _covers(path, it[2])]
                if not new:
                    self._news.wait(0.05)
            for version, event, _, thing in new:
                write({"type": event, "object": thing})
                since = version
        return write({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(since)}}})


def _split(path: str) -> tuple[str, str, str]:
    """The folder, the name and the part of an object; an empty name for the folder itself."""
    parts = path.strip("/").split("/")
    begin = 2 if parts[0] == "api" else 3
    if len(parts) > begin + 2 and parts[begin] == "namespaces":
        begin += 2
    names = [*parts[begin + 1 :], "", ""]
    return "/" + "/".join(parts[: begin + 1]), names[0], names[1]


def _covers(path: str, folder: str) -> bool:
    """Whether a list of `path` shows what lies in `folder`: its own things, or those of all namespaces."""
    parts = folder.split("/")
    return path == folder or ("namespaces" in parts and path == "/".join([*parts[:-3], parts[-1]]))


def _merged(old: Any, change: Any) -> Any:
    if not isinstance(change, dict) or not isinstance(old, dict):
        return change
    result = dict(old)
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        elif name in {"conditions", "schedulingGates"} and isinstance(value, list):
            key = "type" if name == "conditions" else "name"
            gone = {it[key] for it in value}
            kept = [it for it in old.get(name) or [] if it[key] not in gone]
            result[name] = kept + [it for it in value if it.get("$patch") != "delete"]
        else:
            result[name] = _merged(old.get(name), value)
    return result


class _Handler(BaseHTTPRequestHandler):
    api: FakeApi
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        if query.get("watch") != "true":
            return self._reply("GET")
        if self._fails("WATCH", parts.path):
            return None
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        since, until_s = int(query["resourceVersion"]), monotonic() + float(query["timeoutSeconds"])
        try:
            self.api.events(parts.path, since, until_s, self._write_event)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True
        return None

    def do_POST(self) -> None:
        self._reply("POST")

    def do_PATCH(self) -> None:
        self._reply("PATCH")

    def do_DELETE(self) -> None:
        self._reply("DELETE")

    def _write_event(self, event: Json) -> None:
        line = json.dumps(event).encode() + b"\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))

    def _fails(self, method: str, path: str) -> bool:
        code = self.api.fault(method, path)
        if code == HANG_UP:
            self.close_connection = True
        elif code is not None:
            self._send(*status(code, "Made", "a fault on request"))
        return code is not None

    def _reply(self, method: str) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        path = urlsplit(self.path).path
        if not self._fails(method, path):
            self._send(*self.api.answer(method, path, body))

    def _send(self, code: int, answer: Json) -> None:
        content = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Tests are quiet."""
