"""The documentation as a site: every page is in its navigation, every link leads somewhere, and it builds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import site_links

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
NOT_COMMITTED = {"reference/api.md"}


def listed() -> list[str]:
    return re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)


def test_every_page_is_in_the_navigation_once() -> None:
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - NOT_COMMITTED

    assert sorted(listed()) == sorted(pages)


def test_links_to_files_outside_the_pages_lead_to_the_repository() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="guides/spark.md"))
    text = "[a](../../src/takeup/cli.py) [b](../concepts/caching.md#x) [c](dask.md) [d](https://x.org)"
    shown = site_links.on_page_markdown(text, page, {"repo_url": "https://g.org/t"}, None)

    assert shown == (
        "[a](https://g.org/t/blob/main/src/takeup/cli.py) [b](../concepts/caching.md#x) [c](dask.md) [d](https://x.org)"
    )


@pytest.mark.timeout(600)
def test_the_site_builds_without_a_warning_and_can_be_searched(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(words, check=False, cwd=ROOT, capture_output=True, text=True, env=os.environ)

    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "gallery" / "index.html").exists()
    assert "reference count" in (tmp_path / "site" / "search" / "search_index.json").read_text("utf-8")
