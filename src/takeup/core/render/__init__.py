"""Reports drawn: as text, markdown, web page and charts; the only part of the product that formats.

Names are loaded on first use, so that a command pays only for what it draws.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from takeup.core.lazy import lazy_names

if TYPE_CHECKING:
    from takeup.core.render.charts import to_png, to_svg, vega_lite
    from takeup.core.render.folder import FORMATS, chart_names, write
    from takeup.core.render.html import to_html
    from takeup.core.render.index import IndexEntry, index_html
    from takeup.core.render.markdown import to_markdown
    from takeup.core.render.sketch import to_sketch
    from takeup.core.render.text import to_text
    from takeup.core.render.words import summary

__all__ = [
    "FORMATS",
    "IndexEntry",
    "chart_names",
    "index_html",
    "summary",
    "to_html",
    "to_markdown",
    "to_png",
    "to_sketch",
    "to_svg",
    "to_text",
    "vega_lite",
    "write",
]

_HOMES = {
    "charts": ("to_png", "to_svg", "vega_lite"),
    "folder": ("FORMATS", "chart_names", "write"),
    "html": ("to_html",),
    "index": ("IndexEntry", "index_html"),
    "markdown": ("to_markdown",),
    "sketch": ("to_sketch",),
    "text": ("to_text",),
    "words": ("summary",),
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
