"""A mirror of one kind of object: list once, then watch; never poll.

How it works. A list gives all objects and a version; a watch from that version gives every change since. Bookmarks
move the version on while nothing changes. A server that has forgotten our version says 410, as an answer or as an event
of the watch; then everything is listed again. While the server does not answer, the mirror is not live: what it shows
may be old, and nothing should be decided by it.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from takeup.cluster.engines.kubernetes.client import ApiUnreachable, Client, Json, RequestRefused, WatchStream
from takeup.errors import TakeupError

Thing = TypeVar("Thing")

GONE = 410
PAGE = 500
FIRST_DELAY_S, LONGEST_DELAY_S = 0.2, 15.0
STOP_S = 5.0
PAUSE_S = 0.02  # between two watches, should a server end them at once


def key_of(thing: Json) -> str:
    """Namespace and name, or the name alone."""
    meta = thing["metadata"]
    return f"{meta['namespace']}/{meta['name']}" if meta.get("namespace") else str(meta["name"])


@dataclass(slots=True)
class Informer(Generic[Thing]):
    """All objects under `path` as `read` understands them, kept by a thread; `on_change` hears of every change."""

    client: Client
    path: str
    read: Callable[[Json], Thing]
    on_change: Callable[[], None]
    watch_s: float = 30.0
    num_lists: int = field(default=0, init=False)
    num_failures: int = field(default=0, init=False)
    problem: str = field(default="it was not asked yet", init=False)
    _objects: dict[str, Thing] = field(default_factory=dict, init=False)
    _version: str = field(default="", init=False)
    _heard_s: float = field(default=0.0, init=False)
    _failures_in_a_row: int = field(default=0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _watch: WatchStream | None = field(default=None, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"mirror {self.path}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._watch is not None:
            self._watch.end()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def objects(self) -> dict[str, Thing]:
        """All objects as they were last heard of, by key."""
        with self._lock:
            return dict(self._objects)

    @property
    def has_tried(self) -> bool:
        """Whether a first list has come, or has failed."""
        return self.num_lists + self.num_failures > 0

    @property
    def is_live(self) -> bool:
        """Whether the server has been heard within two watches, and nothing has gone wrong since."""
        return not self.problem and time.monotonic() - self._heard_s < 2 * self.watch_s

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if not self._version:
                    self._list()
                self._follow()
            except RequestRefused as error:
                self._version = ""
                if error.status != GONE:
                    self._wait(error)
            except Exception as error:  # a thread that dies would leave an old mirror behind
                self._wait(error)
        self.client.close()

    def _wait(self, error: Exception) -> None:
        self.num_failures += 1
        self.problem = str(error) if isinstance(error, TakeupError) else f"{type(error).__name__}: {error}"
        if not isinstance(error, ApiUnreachable):
            self._version = ""  # what was missed is unknown
        self._stop.wait(min(FIRST_DELAY_S * 2**self._failures_in_a_row, LONGEST_DELAY_S))
        self._failures_in_a_row += 1

    def _list(self) -> None:
        found: dict[str, Thing] = {}
        page: Json = {"metadata": {"continue": ""}}
        while True:
            token = page["metadata"].get("continue", "")
            page = self.client.get(self.path, limit=PAGE, **({"continue": token} if token else {}))
            found.update((key_of(thing), self.read(thing)) for thing in page.get("items") or [])
            if not page["metadata"].get("continue"):
                break
        with self._lock:
            self._objects = found
        self._version = page["metadata"]["resourceVersion"]
        self.num_lists += 1
        self._heard()
        self.on_change()

    def _follow(self) -> None:
        self._watch = self.client.watch(self.path, self.watch_s, resourceVersion=self._version)
        for event in self._watch:
            if self._stop.is_set():
                return
            self._take(event)
        self._heard()  # the server ended the watch in its own time
        self._stop.wait(PAUSE_S)

    def _take(self, event: Json) -> None:
        thing = event.get("object", {})
        if event["type"] == "ERROR":
            raise RequestRefused(int(thing.get("code", 0)), str(thing.get("reason", "")), str(thing.get("message", "")))
        self._heard()
        if event["type"] == "BEGUN":
            return
        if event["type"] != "BOOKMARK":
            with self._lock:
                if event["type"] == "DELETED":
                    self._objects.pop(key_of(thing), None)
                else:
                    self._objects[key_of(thing)] = self.read(thing)
            self.on_change()
        self._version = thing["metadata"]["resourceVersion"]

    def _heard(self) -> None:
        self._heard_s, self.problem, self._failures_in_a_row = time.monotonic(), "", 0
