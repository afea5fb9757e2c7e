"""Attention in parts is attention; which ways there are for which tensors, and which is the usual one."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'takeup[diffusion]'")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.stock import ENGINE_MARKS, gap
from takeup.serving.diffusion.execution import ops as attending
from takeup.serving.diffusion.execution.ops import (
    attention_implementations,
    fits_triton,
    self_attention,
    split_key_attention,
    token_attention,
    tuned_attention,
)

pytestmark = ENGINE_MARKS


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def by_hand(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Rows and heads one by one."""
    answer = torch.empty_like(query)
    for row in range(len(query)):
        for head in range(query.shape[2]):
            weights = (query[row, :, head] @ key[row, :, head].T / query.shape[3] ** 0.5).softmax(-1)
            answer[row, :, head] = weights @ value[row, :, head]
    return answer.flatten(2)


@settings(deadline=None, max_examples=25)
@given(
    num_rows=st.integers(1, 3),
    num_tokens=st.integers(1, 9),
    num_heads=st.integers(1, 3),
    num_parts=st.integers(1, 4),
    per_part=st.integers(1, 6),
    stretch=st.sampled_from([0.0, 1.0, 30.0]),
)
def test_keys_in_parts_are_the_same_attention(
    num_rows: int, num_tokens: int, num_heads: int, num_parts: int, per_part: int, stretch: float
) -> None:
    query = drawn(num_rows, num_tokens, num_heads, 8, seed=1) * stretch
    key, value = (drawn(num_rows, num_parts * per_part, num_heads, 8, seed=seed) for seed in (2, 3))

    assert gap(split_key_attention(num_parts, query, key, value), by_hand(query, key, value)) < 1e-5


def test_a_part_that_says_much_outweighs_the_others() -> None:
    query = torch.ones(1, 1, 1, 8)
    key = torch.cat([torch.full((1, 2, 1, 8), -40.0), torch.full((1, 2, 1, 8), 40.0)], dim=1)
    value = torch.arange(4.0).view(1, 4, 1, 1).repeat(1, 1, 1, 8)

    assert split_key_attention(2, query, key, value).flatten().tolist() == pytest.approx([2.5] * 8)


@pytest.mark.parametrize("num_keys", [3, 8])
def test_tokens_attend_to_others_head_by_head(num_keys: int) -> None:
    query, key, value = drawn(2, 5, 3, 8, seed=1), drawn(2, num_keys, 3, 8, seed=2), drawn(2, num_keys, 3, 8, seed=3)

    assert gap(tuned_attention(query, key, value), by_hand(query, key, value)) < 1e-5
    assert torch.equal(token_attention(query, key, value), tuned_attention(query, key, value))


def test_packed_tokens_are_unpacked_first() -> None:
    packed = drawn(2, 6, 3 * 16)
    query, key, value = packed.view(2, 6, 3, 2, 8).unbind(2)

    assert gap(self_attention(packed, 2), by_hand(query, key, value)) < 1e-5


def test_compilers_are_told_the_shape_that_comes_out() -> None:
    tensors = drawn(2, 5, 3, 8), drawn(2, 7, 3, 8), drawn(2, 7, 3, 8)

    torch.library.opcheck(token_attention, tensors, test_utils=("test_schema", "test_faketensor"))


# Ways -----------------------------------------------------------------------------------------------------------------


def tensors(num_tokens: int, num_keys: int, width: int = 64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tuple(torch.empty(1, count, 2, width) for count in (num_tokens, num_keys, num_keys))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("num_tokens", "num_keys", "width", "usual"),
    [
        (1024, 1024, 64, "own 64x128, 2 stages"),
        (4096, 4096, 64, "as torch does"),
        (928, 4608, 128, "as torch does"),
        (128, 1024, 64, "as torch does"),
        (1000, 1000, 64, "as torch does"),
        (1024, 1024, 40, "as torch does"),
    ],
)
def test_the_usual_way_is_our_kernel_for_few_tokens_among_themselves(
    num_tokens: int, num_keys: int, width: int, usual: str
) -> None:
    assert next(iter(attention_implementations(*tensors(num_tokens, num_keys, width)))) == usual


@pytest.mark.parametrize(
    ("num_keys", "parts"),
    [(4608, ["2 parts", "3 parts", "4 parts"]), (1024, ["2 parts", "4 parts"]), (512, ["2 parts"]), (256, [])],
)
def test_keys_are_parted_evenly_and_not_too_small(num_keys: int, parts: list[str]) -> None:
    assert [name for name in attention_implementations(*tensors(64, num_keys)) if name.endswith("parts")] == parts


def test_every_library_is_a_way_and_the_newest_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    without = set(attention_implementations(*tensors(64, 256)))
    monkeypatch.setattr(attending, "find_spec", lambda name: object())
    with_it = set(attention_implementations(*tensors(64, 256)))

    assert {"cudnn", "flash", "efficient"} <= without
    assert with_it - without == {"flash_attn_interface"}


@pytest.mark.parametrize("answers", [lambda out: out, lambda out: (out, None)])
def test_the_newest_library_answers_with_or_without_logarithms(monkeypatch: pytest.MonkeyPatch, answers: Any) -> None:
    def flash_attn_func(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        return answers(by_hand(query, key, value).view(query.shape))

    monkeypatch.setattr(attending, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "flash_attn_interface", SimpleNamespace(flash_attn_func=flash_attn_func))
    query, key, value = drawn(1, 4, 2, 8, seed=1), drawn(1, 6, 2, 8, seed=2), drawn(1, 6, 2, 8, seed=3)

    answer = attention_implementations(query, key, value)["flash_attn_interface"](query, key, value)
    assert gap(answer, by_hand(query, key, value)) < 1e-6


def test_our_kernel_wants_heads_side_by_side_and_whole_blocks_of_keys() -> None:
    query, key, value = tensors(10, 256)
    packed = torch.empty(1, 256, 3, 2, 64).unbind(2)
    apart = torch.empty(1, 2, 256, 64).transpose(1, 2)

    assert fits_triton(query, key, value)
    assert fits_triton(*packed)
    assert not fits_triton(query, key[:, :200], value[:, :200])
    assert not fits_triton(apart, key, value)
    assert not fits_triton(query, key, packed[2])


@pytest.mark.parametrize(("library", "asked"), [("cudnn", (None, False)), ("flash", ()), ("efficient", (None, False))])
def test_a_library_is_called_by_its_name(monkeypatch: pytest.MonkeyPatch, library: str, asked: tuple[Any, ...]) -> None:
    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *others: Any) -> Any:
        assert others == asked
        return torch.nn.functional.scaled_dot_product_attention(query, key, value), None

    monkeypatch.setattr(torch.ops.aten, f"_scaled_dot_product_{library}_attention", attention)
    query, key, value = drawn(1, 4, 2, 8, seed=1), drawn(1, 6, 2, 8, seed=2), drawn(1, 6, 2, 8, seed=3)

    assert (
        gap(attention_implementations(query, key, value)[library](query, key, value), by_hand(query, key, value)) < 1e-5
    )
