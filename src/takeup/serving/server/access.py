"""What is checked before a route sees a request: where it comes from, and how large it is. Answers are counted."""

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from takeup.serving.server.errors import ApiError, response_of
from takeup.serving.server.metrics import ServerMetrics
from takeup.serving.server.settings import ServerLimits

UPLOADS = "/v1/adapters"
FORM_BYTES = 2**16  # names and borders around a file


def is_loopback(host: str | None) -> bool:
    """Whether only this machine can mean it."""
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:  # a name, and names can lead anywhere
        return False


class LimitsMiddleware:
    """Around the whole app. `only_loopback`: no keys are asked for, so pages of other sites must not come through."""

    def __init__(self, app: ASGIApp, limits: ServerLimits, only_loopback: bool) -> None:
        self._app, self._limits, self._only_loopback = app, limits, only_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        counting = _counted(scope, send)
        problem = self._problem(scope)
        if problem is not None:
            await response_of(problem)(scope, receive, counting)
            return
        await self._app(scope, _limited(receive, self._most(scope)), counting)

    def _problem(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        if self._only_loopback and not _is_local_origin(headers):
            return ApiError(403, "this server answers programs of its own machine only", code="foreign_origin")
        told = headers.get("content-length", "0")
        if told.isdigit() and int(told) > self._most(scope):
            return ApiError(413, _too_long(self._most(scope)), code="body_too_large")
        return None

    def _most(self, scope: Scope) -> int:
        limits = self._limits
        return limits.max_adapter_bytes + FORM_BYTES if scope["path"] == UPLOADS else limits.max_body_bytes


def _is_local_origin(headers: Headers) -> bool:
    """A browser says which page asks, and under which name it found this server: a foreign name may lead here too."""
    host = urlsplit(f"//{headers.get('host', '')}").hostname
    origin = headers.get("origin")
    return is_loopback(host) and (origin is None or is_loopback(urlsplit(origin).hostname))


def _limited(receive: Receive, max_bytes: int) -> Receive:
    num_bytes = 0

    async def receive_some() -> Message:
        nonlocal num_bytes
        message = await receive()
        num_bytes += len(message.get("body", b""))
        if num_bytes > max_bytes:
            raise HTTPException(413, _too_long(max_bytes))
        return message

    return receive_some


def _too_long(max_bytes: int) -> str:
    return f"the body is longer than the limit of {max_bytes} bytes; send less"


def _counted(scope: Scope, send: Send) -> Send:
    async def send_and_count(message: Message) -> None:
        if message["type"] == "http.response.start":
            route = scope.get("route")
            metrics: ServerMetrics | None = scope["app"].state.service.metrics if "app" in scope else None
            if metrics is not None:
                metrics.answers.labels(getattr(route, "path", "other"), message["status"]).inc()
        await send(message)

    return send_and_count
