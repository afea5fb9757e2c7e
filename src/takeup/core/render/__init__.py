"""Reports drawn: as text, markdown, web page and charts; the only part of the product that formats."""

from __future__ import annotations

from takeup.core.render.charts import to_png, to_svg, vega_lite
from takeup.core.render.folder import FORMATS, write
from takeup.core.render.html import to_html
from takeup.core.render.index import IndexEntry, index_html
from takeup.core.render.markdown import to_markdown
from takeup.core.render.text import to_text
from takeup.core.render.words import summary

__all__ = [
    "FORMATS",
    "IndexEntry",
    "index_html",
    "summary",
    "to_html",
    "to_markdown",
    "to_png",
    "to_svg",
    "to_text",
    "vega_lite",
    "write",
]
