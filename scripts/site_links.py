"""A hook of mkdocs: links of pages to files of the repository outside docs/ lead to the repository on the web."""

from __future__ import annotations

import posixpath
import re
from typing import Any

LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The text of a page with such links made absolute."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def absolute(found: re.Match[str]) -> str:
        target = posixpath.normpath(f"{folder}/{found[2]}")
        return found[0] if target.startswith("docs/") else f"{found[1]}{config['repo_url']}/blob/main/{target}"

    return LINK.sub(absolute, markdown)
