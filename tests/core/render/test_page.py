"""The frame of web pages: balanced, escaped, offline."""

from __future__ import annotations

import json

from takeup.core.render.html import element, json_block, page, table


def test_text_in_an_element_is_escaped() -> None:
    assert element("p", '<b> & "c"', "soft") == '<p class="soft">&lt;b&gt; &amp; &quot;c&quot;</p>'


def test_a_page_allows_no_request() -> None:
    text = page("t", ["<p>x</p>"])

    assert "default-src 'none'" in text
    assert "<title>t</title>" in text
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_numbers_are_marked_so_that_they_stand_to_the_right() -> None:
    text = table(["name", "time"], [False, True], [["<x>", "1"]])

    assert '<th scope="col">name</th><th scope="col" class="number">time</th>' in text
    assert '<td>&lt;x&gt;</td><td class="number">1</td>' in text


def test_verdicts_are_shaded() -> None:
    text = table(["verdict"], [False], [["holds"], ["FAILS"]])

    assert '<td class="good">holds</td>' in text
    assert '<td class="bad">FAILS</td>' in text


def test_data_cannot_end_its_script() -> None:
    block = json_block("data", {"a": "</script><!-- <script>"})
    inside = block.removeprefix('<script type="application/json" id="data">').removesuffix("</script>")

    assert "<" not in inside
    assert json.loads(inside) == {"a": "</script><!-- <script>"}
