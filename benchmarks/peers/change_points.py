"""Other people's detectors of change points behind one function each: stream in, alarms out.

`pip install --target FOLDER --no-deps Rbeast river ruptures narwhals`, and FOLDER on PYTHONPATH. They see logarithms,
as ours does; those that look at a stream as a whole (PELT, BEAST) have hindsight that nobody has online. All may verify
(`least_ratio`): medians on both sides of a change must differ by so much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from takeup.core.arrays import Floats

Alarm = tuple[int, bool]
PEERS = {"ADWIN": "river", "Page-Hinkley": "river", "PELT": "ruptures", "BEAST": "Rbeast"}
NUM_BESIDE = 8  # points by which the direction of an alarm is told


def is_installed(name: str) -> bool:
    """Whether the package of a peer is there."""
    return find_spec(PEERS[name]) is not None


def adwin(times_s: Floats, *, delta: float = 0.002, least_ratio: float = 0.0) -> list[Alarm]:
    """ADWIN of river, its defaults."""
    from river.drift import ADWIN  # type: ignore[import-not-found]

    return _streamed(ADWIN(delta=delta), times_s, least_ratio)


def page_hinkley(
    times_s: Floats, *, threshold: float = 50.0, delta: float = 0.005, least_ratio: float = 0.0
) -> list[Alarm]:
    """Page-Hinkley of river, its defaults."""
    from river.drift import PageHinkley

    return _streamed(PageHinkley(threshold=threshold, delta=delta), times_s, least_ratio)


def _streamed(detector: object, times_s: Floats, least_ratio: float) -> list[Alarm]:
    found, began = list[Alarm](), 0
    update: Callable[[float], object] = detector.update  # type: ignore[attr-defined]
    for point, value in enumerate(np.log(times_s).tolist()):
        update(value)
        if detector.drift_detected:  # type: ignore[attr-defined]
            before, after = _beside(times_s[: point + 1], point + 1 - NUM_BESIDE, began)
            if abs(np.log(after / before)) > np.log1p(least_ratio):
                found.append((point, bool(after > before)))
            began = point
    return found


def pelt(times_s: Floats, *, penalty: float = 3.0, least_ratio: float = 0.0) -> list[Alarm]:
    """PELT of ruptures with squares, its default steps; the penalty in units of log(n) times the variance of noise."""
    from ruptures import Pelt  # type: ignore[import-not-found]

    logs = np.log(times_s)
    noise = (1.048 * np.median(np.abs(np.diff(logs)))) ** 2
    places = Pelt(model="l2").fit(logs).predict(pen=penalty * np.log(len(logs)) * noise)[:-1]
    return _told(times_s, places, least_ratio)


def beast(times_s: Floats, *, least_probability: float = 0.8, least_ratio: float = 0.1) -> list[Alarm]:
    """BEAST as the authors of the paper run it: trend only, outliers allowed, segments of more than ten, verified."""
    trend = _trend(times_s.tobytes())
    places = [int(place) - 1 for place, p in zip(trend.cp, trend.cpPr, strict=True) if p >= least_probability]
    apart = [
        place for number, place in enumerate(sorted(places)) if number == 0 or place - sorted(places)[number - 1] > 10
    ]
    return _told(times_s, apart, least_ratio)


@lru_cache(maxsize=1000)
def _trend(times: bytes) -> Any:
    import Rbeast  # type: ignore[import-not-found]

    quiet = {"quiet": True, "print_progress": False, "print_options": False, "print_param": False}
    logs = np.log(np.frombuffer(times))
    return Rbeast.beast(logs, season="none", hasOutlier=True, mcmc_seed=1, **quiet).trend


def _told(times_s: Floats, places: Sequence[int], least_ratio: float) -> list[Alarm]:
    """Directions of changes found in hindsight, by the medians of the segments on both sides."""
    edges = [0, *places, len(times_s)]
    found = []
    for before, place, after in zip(edges, edges[1:], edges[2:], strict=False):
        ratio = np.median(times_s[place:after]) / np.median(times_s[before:place])
        if abs(np.log(ratio)) > np.log1p(least_ratio):
            found.append((place, bool(ratio > 1)))
    return found


def _beside(times_s: Floats, start: int, began: int) -> tuple[float, float]:
    """Medians of the latest points and of those before them."""
    start = max(start, 1)
    return float(np.median(times_s[max(0, min(began, start - 1), start - 64) : start])), float(
        np.median(times_s[start:])
    )
