"""Progress hub: publishes the progress events of every request to its watchers. Bound to one event loop."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Any

from takeup.serving.server.errors import ApiError

ProgressEvent = dict[str, Any]
MAX_FINISHED = 256


class RequestProgress:
    """The events of one request, from the first on, for any number of watchers; `on_end` is called when it is over."""

    def __init__(self, on_end: Callable[[], None] = lambda: None) -> None:
        self._on_end = on_end
        self._events: list[ProgressEvent] = []
        self._changed = asyncio.Event()
        self.is_over = False

    def publish(self, kind: str, **facts: Any) -> None:
        """Add an event."""
        self._events.append({"type": kind, **facts})
        self._wake()

    def end(self) -> None:
        """Mark the end of the events."""
        self.is_over = True
        self._wake()
        self._on_end()

    async def events(self) -> AsyncIterator[ProgressEvent]:
        """All events until the end; past ones immediately."""
        number = 0
        while True:
            changed = self._changed
            while number < len(self._events):
                yield self._events[number]
                number += 1
            if self.is_over:
                return
            await changed.wait()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class ProgressHub:
    """Progress by tenant and request id. The last `MAX_FINISHED` finished requests are kept for late watchers."""

    def __init__(self) -> None:
        self._requests: OrderedDict[tuple[str, str], RequestProgress] = OrderedDict()

    def open(self, tenant: str, request: str) -> RequestProgress:
        """A new request; its id must differ from those of unfinished requests."""
        known = self._requests.get((tenant, request))
        if known is not None and not known.is_over:
            raise ApiError(
                409,
                f"a request with the identity {request!r} is running; choose another X-Request-Id",
                param="X-Request-Id",
                code="request_exists",
                headers={"x-should-retry": "false"},
            )
        self._requests[tenant, request] = progress = RequestProgress(self._forget_old)
        self._requests.move_to_end((tenant, request))
        return progress

    def find(self, tenant: str, request: str) -> RequestProgress:
        """The progress of a request of this tenant."""
        if (tenant, request) not in self._requests:
            raise ApiError(404, f"no request {request!r} is running or has just ended", param="id", code="not_found")
        return self._requests[tenant, request]

    def _forget_old(self) -> None:
        over = [key for key, progress in self._requests.items() if progress.is_over]
        for key in over[:-MAX_FINISHED]:
            del self._requests[key]
