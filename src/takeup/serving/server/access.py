"""Checks before a request reaches its route: API key, origin and size. Responses are counted."""

import asyncio
import hashlib
import hmac
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from takeup.core.pages import is_loopback
from takeup.errors import BadInput
from takeup.serving.server.errors import REFUSED, ApiError, response_of
from takeup.serving.server.metrics import ServerMetrics
from takeup.serving.server.settings import ServerLimits

# Tenants and their API keys. Keys are kept as digests only, and compared in constant time -----------------------------


DEFAULT_TENANT = "default"
"""The one tenant of a server without keys."""

NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
KEY_VARIABLE, KEYS_VARIABLE = "TAKEUP_API_KEY", "TAKEUP_API_KEYS"
MIN_KEY_CHARS = 16


class ApiKeys:
    """The keys of all tenants. A tenant may have several, so that they can be changed one after the other."""

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._tenants: list[tuple[bytes, str]] = []
        for tenant, key in pairs:
            _check(tenant, key)
            self._tenants.append((_digest(key), tenant))

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def __repr__(self) -> str:
        return f"Keys of {len(self.tenants)} tenants"

    @property
    def tenants(self) -> frozenset[str]:
        """All tenants that have a key."""
        return frozenset(tenant for _, tenant in self._tenants)

    def tenant_of(self, authorization: str | None) -> str | None:
        """The tenant of the key in the header, or None if it is invalid. Constant time for wrong and right keys."""
        if not self:
            return DEFAULT_TENANT
        scheme, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip())
        found = None
        for digest, tenant in self._tenants:
            if hmac.compare_digest(digest, given):
                found = tenant
        return found if scheme.lower() == "bearer" else None


def load_keys(file: Path | None, environment: Mapping[str, str]) -> ApiKeys:
    """Keys from a file with a line `tenant:key` each, or from the environment (one key, or such lines by commas)."""
    pairs: list[tuple[str, str]] = []
    if file is not None:
        pairs += _pairs(_lines(file), str(file))
    if environment.get(KEYS_VARIABLE):
        pairs += _pairs(environment[KEYS_VARIABLE].split(","), KEYS_VARIABLE)
    if environment.get(KEY_VARIABLE):
        pairs.append((DEFAULT_TENANT, environment[KEY_VARIABLE]))
    return ApiKeys(pairs)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "no text"
        raise BadInput(
            f"the keys in {file} cannot be read ({reason}); give a text file with lines `tenant:key`"
        ) from None


def _pairs(lines: Iterable[str], where: str) -> list[tuple[str, str]]:
    pairs = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        tenant, colon, key = text.partition(":")
        if not colon:  # the line itself is not repeated: it may be a key
            raise BadInput(f"{where}, line {number}: no colon; write `tenant:key`")
        pairs.append((tenant.strip(), key.strip()))
    if not pairs:
        raise BadInput(f"{where} holds no keys; write a line `tenant:key` for each")
    return pairs


def _check(tenant: str, key: str) -> None:
    if not re.fullmatch(NAME, tenant):
        raise BadInput(f"a tenant is called {tenant!r}; use letters, digits, - and _, at most 64 of them")
    if len(key) < MIN_KEY_CHARS or not key.isascii() or not key.isprintable() or " " in key:
        raise BadInput(f"the key of {tenant} is too weak; use at least {MIN_KEY_CHARS} letters, digits or signs")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


UPLOADS = "/v1/adapters"
PUBLIC = frozenset({"/", "/docs", "/edit", "/health", "/openapi.json", "/ready"})
"""Paths that need no key."""
FILES = "/v1/files/"
"""Names below it cannot be guessed."""
FORM_BYTES = 2**16  # names and borders around a file


class LimitsMiddleware:
    """Middleware around the app: origin, key and size are checked before a byte of the body is read.

    Without keys, only programs of this machine are served, so that web pages of other sites cannot use the server.
    """

    def __init__(self, app: ASGIApp, limits: ServerLimits, keys: ApiKeys, cors: Collection[str] = ()) -> None:
        self._app, self._limits, self._keys, self._cors = app, limits, keys, cors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        counting = _Answer(scope, send)
        problem: BaseException | None = self._problem(scope)
        if problem is None:
            try:
                limited = _limited(receive, self._most(scope), self._limits.body_idle_s)
                await self._app(scope, limited, counting)
                return
            except Exception as error:  # what no handler of the app knows: answer it here, the connection stays usable
                problem = error
        if not counting.has_begun:
            await _refuse(problem, scope, receive, counting)

    def _problem(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        if not self._keys and not _is_local_origin(headers, self._cors):
            return ApiError(403, "this server answers programs on the same machine only", code="foreign_origin")
        is_public = scope["path"] in PUBLIC or scope["path"].startswith(FILES)
        if not is_public and self._keys.tenant_of(headers.get("authorization")) is None:
            return no_valid_key()
        told = headers.get("content-length", "0")
        if told.isdigit() and int(told) > self._most(scope):
            return ApiError(413, _too_long(self._most(scope)), code="body_too_large")
        return None

    def _most(self, scope: Scope) -> int:
        limits = self._limits
        return limits.max_adapter_bytes + FORM_BYTES if scope["path"] == UPLOADS else limits.max_body_bytes


def _is_local_origin(headers: Headers, allowed: Collection[str]) -> bool:
    """Whether the headers Origin and Host name this machine; a foreign name may resolve to it too."""
    host = urlsplit(f"//{headers.get('host', '')}").hostname
    origin = headers.get("origin")
    return is_loopback(host) and (origin is None or origin in allowed or is_loopback(urlsplit(origin).hostname))


def no_valid_key() -> ApiError:
    """The error for a request without a valid key."""
    message = "no valid key was sent; send one as `Authorization: Bearer KEY`"
    return ApiError(401, message, kind=REFUSED, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


async def _refuse(problem: BaseException, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer and close the connection, because the rest of the body is not read."""
    response = response_of(problem)
    response.headers["Connection"] = "close"
    await response(scope, receive, send)


def _limited(receive: Receive, max_bytes: int, idle_s: float) -> Receive:
    """`receive` with a limit on the size of the body and on the time between two parts of it."""
    num_bytes, is_complete = 0, False

    async def receive_some() -> Message:
        nonlocal num_bytes, is_complete
        try:
            async with asyncio.timeout(None if is_complete else idle_s):
                message = await receive()
        except TimeoutError:
            text = f"no part of the body arrived for {idle_s:g} s; send it faster"
            raise ApiError(408, text, code="body_too_slow", headers={"Connection": "close"}) from None
        is_complete = not message.get("more_body", False)
        num_bytes += len(message.get("body", b""))
        if num_bytes > max_bytes:
            raise HTTPException(413, _too_long(max_bytes), {"Connection": "close"})
        return message

    return receive_some


def _too_long(max_bytes: int) -> str:
    return f"the body is longer than the limit of {max_bytes} bytes; send less"


class _Answer:
    """`send` that counts answers by route and status, and knows whether one has begun."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send, self.has_begun = scope, send, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            self._count(message["status"])
            identity = self._scope.get("state", {}).get("request_id")
            if identity is not None:
                MutableHeaders(scope=message)["X-Request-Id"] = identity
        await self._send(message)

    def _count(self, status: int) -> None:
        if "app" in self._scope:
            metrics: ServerMetrics = self._scope["app"].state.service.metrics
            metrics.answers.labels(getattr(self._scope.get("route"), "path", "other"), status).inc()
