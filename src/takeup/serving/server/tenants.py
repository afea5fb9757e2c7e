"""Tenants and their API keys. Keys are kept as digests only, and compared in constant time."""

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from takeup.errors import BadInput

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
        return f"Keys of {len({tenant for _, tenant in self._tenants})} tenants"

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
