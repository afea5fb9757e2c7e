"""Pinned memory: tensors come back as they were, and take little more room than they hold."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.serving.editing.templates import template as pinned
from takeup.serving.editing.templates.template import PinnedMemory

KINDS = (torch.bfloat16, torch.float32, torch.uint8, torch.int64)


@pytest.fixture(autouse=True)
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of blocks, which are not pinned: that takes a device."""
    sizes: list[int] = []

    def block(num_bytes: int) -> torch.Tensor:
        sizes.append(num_bytes)
        return torch.empty(num_bytes, dtype=torch.uint8)

    monkeypatch.setattr(pinned, "BLOCK_BYTES", 1 << 14)
    monkeypatch.setattr(pinned, "_block", block)
    return sizes


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 70), st.integers(1, 70)), max_size=20), st.data())
def test_tensors_come_back_as_they_were(kinds: list[tuple[torch.dtype, int, int]], data: st.DataObject) -> None:
    tensors = [torch.arange(rows * width).view(rows, width).to(kind) for kind, rows, width in kinds]
    memory = PinnedMemory(data.draw(st.integers(0, 1 << 16)))

    copies = [memory.copied(one) for one in tensors]

    for one, copy in zip(tensors, copies, strict=True):
        torch.testing.assert_close(copy, one, rtol=0, atol=0)
        assert copy.data_ptr() != one.data_ptr() or not one.numel()


def test_an_empty_tensor_fits_behind_a_block_of_an_odd_size() -> None:
    memory = PinnedMemory(3)
    memory.copied(torch.zeros(3, dtype=torch.uint8))

    assert memory.copied(torch.zeros(0, 4)).shape == (0, 4)


def test_blocks_are_full(blocks: list[int]) -> None:
    memory = PinnedMemory(100 << 10)

    for _ in range(100):
        memory.copied(torch.zeros(1 << 10, dtype=torch.uint8))

    assert blocks == [1 << 14] * 6 + [4 << 10]


def test_what_is_small_takes_little(blocks: list[int]) -> None:
    memory = PinnedMemory(300)

    memory.copied(torch.zeros(300, dtype=torch.uint8))

    assert blocks == [300]


def test_a_tensor_larger_than_a_block_has_one_of_its_own(blocks: list[int]) -> None:
    memory = PinnedMemory(40_000)

    memory.copied(torch.zeros(20_000, dtype=torch.uint8))
    memory.copied(torch.zeros(20_000, dtype=torch.uint8))

    assert blocks == [20_000, 20_000]


def test_what_is_on_the_host_stays_there(blocks: list[int]) -> None:
    tensor = torch.zeros(3)

    assert PinnedMemory(12).lowered(tensor) is tensor
    assert blocks == []
