"""Sizes as people write them: `2GB`, `512MiB`, `40%` of something, and back to text."""

import re
from dataclasses import dataclass

from takeup.errors import BadInput

_FACTORS = {"": 1, "B": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("KMGTP", start=1)
    for suffix, base in (("", 1000), ("B", 1000), ("IB", 1024))
}
_LARGEST = 2.0**63
_PATTERN = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][0-9]+)?)\s*(%|[A-Za-z]*)\s*")


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of bytes, or a share of a whole that is not known yet."""

    value: float
    is_share: bool = False

    def of(self, whole_bytes: int) -> int:
        """Bytes, where the whole is `whole_bytes`; at least one."""
        num_bytes = self.value * whole_bytes if self.is_share else self.value
        if num_bytes >= _LARGEST:
            raise BadInput(f"{num_bytes:g} bytes are more than any machine has; give a smaller size or share")
        return max(1, round(num_bytes)) if self.is_share else round(num_bytes)


def parse_amount(text: str) -> Amount:
    """Read `2GB`, `1.5GiB`, `1000` (bytes) or `40%`; zero and negative amounts are refused."""
    match = _PATTERN.fullmatch(text)
    unit = match.group(2).upper() if match else ""
    if match is None or (unit != "%" and unit not in _FACTORS):
        raise BadInput(f"{text!r} is not a size; write bytes with a unit such as '2GB' or '512MiB', or a share '40%'")
    amount = Amount(float(match.group(1)) * (0.01 if unit == "%" else _FACTORS[unit]), is_share=unit == "%")
    if amount.value <= 0:
        raise BadInput(f"{text!r} leaves no room at all; write a size above zero, such as '2GB' or '40%'")
    amount.of(1)
    return amount


def format_bytes(num_bytes: float) -> str:
    """Bytes with three significant digits and a decimal unit: `1.25 GB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(num_bytes) < 999.5 or unit == "TB":
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    raise AssertionError("the last unit always returns")
