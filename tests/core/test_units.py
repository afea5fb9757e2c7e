"""Sizes as people write them, and back to text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.core.units import Amount, format_bytes, parse_amount
from takeup.errors import BadInput


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1000", 1000),
        ("1", 1),
        ("7B", 7),
        ("2k", 2_000),
        ("2KB", 2_000),
        ("2KiB", 2_048),
        ("1.5MB", 1_500_000),
        ("512MiB", 512 * 1024**2),
        ("2GB", 2_000_000_000),
        ("2gb", 2_000_000_000),
        ("0.5GiB", 1024**3 // 2),
        (".5GB", 500_000_000),
        ("1TB", 10**12),
        ("1PiB", 1024**5),
        ("1e6", 10**6),
        ("  2 GB ", 2_000_000_000),
    ],
)
def test_sizes_are_read_with_their_units(text: str, num_bytes: int) -> None:
    assert parse_amount(text).of(123) == num_bytes


@pytest.mark.parametrize(("text", "num_bytes"), [("40%", 400), ("100%", 1000), ("0.25%", 2), ("150 %", 1500)])
def test_a_share_is_of_the_whole(text: str, num_bytes: int) -> None:
    assert parse_amount(text).of(1000) == num_bytes


def test_a_share_of_something_is_never_nothing() -> None:
    assert parse_amount("1%").of(10) == 1


@pytest.mark.parametrize("text", ["", " ", "GB", "two GB", "2XB", "-1GB", "-5%", "1,5GB", "2GB2", "%", "nan", "inf"])
def test_what_is_not_a_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadInput, match=r"is not a size; write bytes with a unit such as '2GB' or '512MiB', or a share"):
        parse_amount(text)


@pytest.mark.parametrize("text", ["0", "0GB", "0%", "0.0MiB"])
def test_nothing_at_all_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="leaves no room at all; write a size above zero"):
        parse_amount(text)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1234, "1.23 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (1.25e9, "1.25 GB"),
        (2e12, "2 TB"),
        (-1500, "-1.5 kB"),
    ],
)
def test_bytes_are_shown_with_three_digits_and_a_unit(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


@given(st.integers(1, 10**14))
def test_what_is_shown_reads_back_within_its_three_digits(num_bytes: int) -> None:
    assert parse_amount(format_bytes(num_bytes)).of(1) == pytest.approx(num_bytes, rel=0.0051)


@given(st.integers(1, 2**53))
def test_whole_bytes_are_exact(num_bytes: int) -> None:
    assert parse_amount(str(num_bytes)) == Amount(float(num_bytes))
    assert parse_amount(f"{num_bytes}B").of(1) == num_bytes


@pytest.mark.parametrize("text", ["1e400", "1e30GB", "9300PB"])
def test_more_than_any_machine_has_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="more than any machine has"):
        parse_amount(text)
