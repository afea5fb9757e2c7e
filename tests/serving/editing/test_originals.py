"""Images that were edited: found by their own tenant only, within a quota, whatever happens to their files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")

from hypothesis import given
from hypothesis import strategies as st

from takeup.errors import BadInput
from takeup.serving.editing.templates.store import Originals
from takeup.serving.editing.templates.template import owner_of, template_id

ONE, TWO, THREE = (template_id("alice", str(number)) for number in range(3))


def test_an_image_is_found_as_it_came_and_by_its_tenant_only(tmp_path: Path) -> None:
    kept = Originals(tmp_path, 100)

    assert kept.keep("alice", ONE, b"pixels")
    assert Originals(tmp_path, 100).find("alice", ONE) == b"pixels"
    assert kept.find("bob", ONE) is None
    assert kept.find("alice", TWO) is None


def test_the_quota_is_that_of_one_tenant_and_the_longest_unused_leaves(tmp_path: Path) -> None:
    kept = Originals(tmp_path, 10)
    kept.keep("bob", ONE, b"123456789")
    for number, template in enumerate((ONE, TWO)):
        kept.keep("alice", template, b"1234")
        os.utime(tmp_path / owner_of("alice") / f"{template}.original", (number, number))
    kept.find("alice", ONE)
    kept.keep("alice", THREE, b"1234")

    assert [kept.find("alice", one) is not None for one in (ONE, TWO, THREE)] == [True, False, True]
    assert kept.find("bob", ONE) is not None
    assert {one.template: one.size_bytes for one in kept.seen_by("alice")} == {ONE: 4, THREE: 4}


def test_what_is_too_large_or_cannot_be_written_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert not Originals(tmp_path, 3).keep("alice", ONE, b"1234")
    assert not Originals(tmp_path / "file", 100).keep("alice", ONE, b"1234")
    assert Originals(tmp_path / "file", 100).find("alice", ONE) is None


def test_what_is_removed_is_gone_and_may_be_removed_again(tmp_path: Path) -> None:
    kept = Originals(tmp_path, 100)
    kept.keep("alice", ONE, b"1")
    kept.remove("alice", ONE)
    kept.remove("alice", ONE)

    assert kept.find("alice", ONE) is None
    assert kept.seen_by("alice") == []


@given(st.text(max_size=40))
def test_names_that_are_no_templates_lead_nowhere(name: str) -> None:
    kept = Originals(Path("/nowhere"), 100)

    assert kept.find("alice", name) is None
    kept.remove("alice", name)
    with pytest.raises(BadInput, match="no template"):
        kept.keep("alice", name, b"")


@given(st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_the_same_image_has_another_name_for_another_tenant(one: str, other: str, image: str) -> None:
    assert (template_id(one, image) == template_id(other, image)) == (one == other)
    assert (owner_of(one) == owner_of(other)) == (one == other)
    assert "/" not in owner_of(one) + template_id(one, image)
