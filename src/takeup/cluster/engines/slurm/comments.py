"""What jobs declare in their comments: `takeup saved_s=1794755830 checkpoint_s=600 guarantee_h=2`.

Anything before the word `takeup` is ignored. An invalid value is left out and counted; it never stops the controller,
and never makes a job look cheaper to evict than it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf, isfinite

MARK = re.compile(r"\btakeup\b:?", re.IGNORECASE)
SIGNAL = re.compile(r"(SIG)?[A-Z][A-Z0-9]{1,9}")
AHEAD_S = 60.0  # tolerated clock skew of nodes ahead of ours


@dataclass(frozen=True, slots=True)
class Remarks:
    """When work was last safe, how often it is saved, the promise asked for, the signal that asks to save now.

    A job that is parked is held by its owner and not by us.
    """

    saved_s: float = -inf
    checkpoint_s: float = inf
    guarantee_h: float = 1.0
    signal: str = ""
    is_parked: bool = False
    num_malformed: int = 0


def read_remarks(comments: tuple[str, ...], now_s: float) -> Remarks:
    """What several comments of a job say together; of equal keys the last one counts."""
    values: dict[str, float] = {}
    signal, is_parked, num_malformed = "", False, 0
    for key, text in (pair for comment in comments for pair in _pairs(comment)):
        if key == "notice" and SIGNAL.fullmatch(text):
            signal = text
        elif key == "parked" and not text:
            is_parked = True
        elif (value := _value(key, text, now_s)) is not None:
            values[key] = value
        else:
            num_malformed += 1
    return Remarks(**values, signal=signal, is_parked=is_parked, num_malformed=num_malformed)


def _pairs(comment: str) -> list[tuple[str, str]]:
    mark = MARK.search(comment)
    words = comment[mark.end() :].split() if mark else []
    return [(key, text) for key, _, text in (word.partition("=") for word in words)]


def _value(key: str, text: str, now_s: float) -> float | None:
    largest = {"saved_s": now_s + AHEAD_S, "checkpoint_s": inf, "guarantee_h": 24.0 * 365}
    try:
        value = float(text)
    except ValueError:
        return None
    is_sound = key in largest and isfinite(value) and 0 <= value <= largest[key]
    return value if is_sound and not (key == "checkpoint_s" and value == 0) else None
