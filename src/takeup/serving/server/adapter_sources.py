"""LoRAs by path, hub id or URL, as far as the operator allows their sources."""

import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from takeup.errors import BadInput
from takeup.serving.server.errors import ApiError

HUB, HUB_URL, HUB_FILE = "hub:", "https://huggingface.co", "pytorch_lora_weights.safetensors"
TIMEOUT_S = 30.0


def check_prefixes(allowed: Sequence[str]) -> None:
    """Refuse prefixes that end within a name, and so would allow others that begin alike."""
    for prefix in allowed:
        if (
            not prefix.startswith(("/", "https://", "http://", HUB))
            or not prefix.endswith("/")
            or prefix.endswith("//")
        ):
            raise BadInput(f"the source {prefix!r} is no prefix; write /folder/, https://host/ or hub:owner/")


@contextmanager
def opened(source: str, allowed: Sequence[str], max_bytes: int) -> Iterator[BinaryIO]:
    """The file of a source: an absolute path, a URL, or `owner/name` with or without `/file` of the hub.

    `allowed` are prefixes: folders and URLs that end with `/`, and `hub:owner/` for the repositories of an owner.
    """
    location = _location(source, allowed)
    try:
        file: Any = location.open("rb") if isinstance(location, Path) else _downloaded(location, allowed)
        with closing(file):
            yield LimitedFile(file, max_bytes)  # type: ignore[misc]
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "reason", None) or getattr(problem, "strerror", None) or problem
        raise ApiError(400, f"{source} cannot be read ({reason})", param="source", code="invalid_source") from problem


def _location(source: str, allowed: Sequence[str]) -> Path | str:
    if source.startswith("/"):
        location = Path(source).resolve()
        names = str(location)
    else:
        is_url = source.startswith(("https://", "http://"))
        names = source if is_url else f"{HUB}{source}"
        location = source if is_url else _hub_url(source)  # type: ignore[assignment]
    if ".." in unquote(source) or not names.startswith(tuple(allowed) or ("\0",)):
        message = f"{source} is not among the allowed sources ({', '.join(allowed) or 'none'}); upload the file"
        raise ApiError(403, message, param="source", code="source_not_allowed")
    return location


def _hub_url(source: str) -> str:
    owner, _, rest = source.partition("/")
    name, _, file = rest.partition("/")
    if not (owner and name):
        message = f"{source!r} is no path, URL or hub id; write such as owner/name"
        raise ApiError(400, message, param="source", code="invalid_source")
    return f"{HUB_URL}/{owner}/{name}/resolve/main/{file or HUB_FILE}"


class _AllowedRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect must not lead to where the operator allows nothing; only the hub may send to its storage."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = tuple(allowed)

    def redirect_request(self, asked: Any, file: Any, code: int, message: str, headers: Any, url: str) -> Any:
        from_hub = asked.origin_req_host == urlsplit(HUB_URL).hostname and url.startswith("https://")
        if not from_hub and (".." in unquote(url) or not url.startswith(self._allowed)):
            raise OSError(f"it redirects to {urlsplit(url).hostname}, which is not allowed")
        return super().redirect_request(asked, file, code, message, headers, url)


def _downloaded(url: str, allowed: Sequence[str]) -> Any:
    return urllib.request.build_opener(_AllowedRedirects(allowed)).open(url, timeout=TIMEOUT_S)


class LimitedFile:
    """A file of at most so many bytes."""

    def __init__(self, file: BinaryIO, max_bytes: int) -> None:
        self._file, self._left = file, max_bytes

    def read(self, num_bytes: int) -> bytes:
        """The next bytes."""
        data = self._file.read(num_bytes)
        self._left -= len(data)
        if self._left < 0:
            raise ApiError(413, "the file is longer than LoRAs may be", param="source", code="body_too_large")
        return data
