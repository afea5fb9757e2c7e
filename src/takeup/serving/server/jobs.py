"""What is fetched later: images under a URL until they expire, and asynchronous jobs with their webhooks."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from takeup.errors import BadInput
from takeup.serving.server.errors import ApiError, api_error

if TYPE_CHECKING:
    from takeup.serving.server.service import AcceptedRequest, Caller, FinishedImage

log = logging.getLogger("takeup.serving.server")

# Images under a URL that cannot be guessed ----------------------------------------------------------------------------

KEPT_S, MAX_KEPT_BYTES = 3600.0, 256 * 2**20


class ExpiringFiles:
    """Files by name, for `kept_s` seconds; the oldest go first when they are more than `max_bytes`."""

    def __init__(
        self, kept_s: float = KEPT_S, max_bytes: int = MAX_KEPT_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kept_s, self._max_bytes, self._clock = kept_s, max_bytes, clock
        self._files: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._num_bytes = 0

    def add(self, data: bytes, suffix: str) -> str:
        """Keep a file; returns its name."""
        name = f"{secrets.token_urlsafe(24)}.{suffix}"
        self._files[name] = self._clock() + self._kept_s, data
        self._num_bytes += len(data)
        self._drop_old()
        return name

    def find(self, name: str) -> bytes:
        """The file of this name."""
        self._drop_old()
        if name not in self._files:
            raise ApiError(404, "this image has expired or never was; make it again", code="not_found")
        return self._files[name][1]

    def _drop_old(self) -> None:
        while self._files:
            until_s, data = next(iter(self._files.values()))
            if until_s > self._clock() and self._num_bytes <= self._max_bytes:
                return
            self._files.popitem(last=False)
            self._num_bytes -= len(data)


# Asynchronous jobs: submitted, watched, cancelled, and announced to a webhook -----------------------------------------

MAX_FINISHED = 64
"""Of each tenant; older ones are forgotten."""
WAITS_S = (0.0, 2.0, 10.0)
WEBHOOK_S = 10.0
MAX_ANNOUNCED = 256
Status = Literal["running", "done", "failed", "cancelled"]


@dataclass(slots=True, eq=False)
class Job:
    """A job of a tenant; `result` is the answer, or the error."""

    id: str
    tenant: str
    webhook: str | None
    created_s: float = field(default_factory=time.time)
    status: Status = "running"
    result: dict[str, Any] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None

    def facts(self) -> dict[str, Any]:
        """What the API says of it."""
        return {"id": self.id, "object": "job", "status": self.status, "created": int(self.created_s), **self.result}


def check_webhooks(prefixes: Sequence[str]) -> None:
    """Refuse prefixes that end within the name of a host."""
    for prefix in prefixes:
        if prefix.count("/") < 3 or not prefix.startswith(("http://", "https://")):
            raise BadInput(f"the webhook prefix {prefix!r} is no origin; write such as https://app.example/")


class Jobs:
    """The jobs of all tenants, in memory. `webhooks` are the prefixes of the URLs that may be called."""

    def __init__(self, webhooks: Sequence[str] = (), waits_s: Sequence[float] = WAITS_S) -> None:
        self._webhooks, self._waits_s = tuple(webhooks), waits_s
        self._jobs: dict[tuple[str, str], Job] = {}
        self._announcing = ThreadPoolExecutor(2, thread_name_prefix="webhook")
        self._num_announced = 0

    def check(self, webhook: str | None) -> None:
        """Refuse a URL that the operator does not allow."""
        if webhook is not None and not webhook.startswith(self._webhooks or ("\0",)):
            known = ", ".join(self._webhooks) or "none"
            message = f"this webhook is not allowed (allowed: {known}); leave it out, or ask the operator"
            raise ApiError(400, message, param="webhook", code="invalid_value")

    def start(
        self,
        caller: Caller,
        work: AcceptedRequest,
        webhook: str | None,
        answer_of: Callable[[list[FinishedImage]], dict[str, Any]],
    ) -> Job:
        """Make the images of an accepted request without a client that waits."""
        job = self._jobs[caller.tenant, caller.request] = Job(caller.request, caller.tenant, webhook)
        job.task = asyncio.create_task(self._run(job, work, answer_of))
        return job

    def find(self, tenant: str, identity: str) -> Job:
        """A job of this tenant."""
        if (tenant, identity) not in self._jobs:
            raise ApiError(404, f"no job {identity!r}; finished ones are forgotten after a while", code="not_found")
        return self._jobs[tenant, identity]

    async def cancel(self, tenant: str, identity: str) -> Job:
        """Cancel a job that runs; returns it when it has ended."""
        job = self.find(tenant, identity)
        if job.task is not None:
            job.task.cancel()
            await asyncio.wait({job.task})
        return job

    def close(self) -> None:
        """Announce nothing more."""
        self._announcing.shutdown(wait=False, cancel_futures=True)

    async def _run(
        self, job: Job, work: AcceptedRequest, answer_of: Callable[[list[FinishedImage]], dict[str, Any]]
    ) -> None:
        try:
            made = await work.run()
            job.status, job.result = "done", {"result": answer_of(made)}
        except asyncio.CancelledError:
            job.status = "cancelled"
        except Exception as problem:
            job.status, job.result = "failed", {"error": api_error(problem).detail.model_dump()}
        finally:
            work.close()
            self._forget_old(job.tenant)
            self._announce(job)

    def _forget_old(self, tenant: str) -> None:
        over = [key for key, job in self._jobs.items() if key[0] == tenant and job.status != "running"]
        for key in over[:-MAX_FINISHED]:
            del self._jobs[key]

    def _announce(self, job: Job) -> None:
        if job.webhook is None or self._num_announced >= MAX_ANNOUNCED:
            return
        self._num_announced += 1
        told = {name: value for name, value in job.facts().items() if name != "result"}
        self._announcing.submit(self._post, job.webhook, json.dumps(told).encode())

    def _post(self, url: str, body: bytes) -> None:
        """Tell that a job has ended; its images are not sent, so that they stay with holders of the key."""
        try:
            for wait_s in self._waits_s:
                time.sleep(wait_s)
                if _sent(url, body):
                    return
            log.warning("the webhook %s could not be called", url)
        finally:
            self._num_announced -= 1


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could lead to where the operator allows nothing."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _sent(url: str, body: bytes) -> bool:
    asked = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.build_opener(_NoRedirect).open(asked, timeout=WEBHOOK_S):
            return True
    except (OSError, ValueError):
        return False
