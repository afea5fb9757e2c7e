"""The opinion score of ITU-T P.1203 for replayed sessions, by the package `itu_p1203`, which is for research only."""

from importlib import import_module
from typing import Any

import numpy as np

from takeup.core.arrays import Floats
from takeup.errors import MissingEngine

LENGTH_S = 60.0  # of the sessions that are scored; the standard is for 1 to 5 minutes
NUM_SESSIONS = 30
PICTURE = {"codec": "h264", "fps": 25.0, "resolution": "1280x720"}
VIEWER = {"device": "mobile", "displaySize": "1280x720", "viewingDistance": "150cm"}


def p1203_package() -> Any:
    """The package, which cannot be a dependency: its licence allows research only, and no index has it."""
    try:
        return import_module("itu_p1203")
    except ImportError as error:
        hint = "pip install git+https://github.com/itu-p1203/itu-p1203"
        raise MissingEngine(
            f"the score P.1203 needs the package 'itu_p1203', free for research only\n\nhint: {hint}"
        ) from error


def mean_p1203(sessions: Floats) -> float:
    """The mean score (mode 0, 720p on a phone) of sessions of LENGTH_S, rows of `replay.QUANTITIES`.

    Some of them are scored, evenly spread; their stalls are equally long and equally far apart.
    """
    package = p1203_package()
    rows = sessions[np.linspace(0, len(sessions) - 1, min(NUM_SESSIONS, len(sessions))).astype(np.int64)]
    scores = [package.P1203Standalone(_session(row), quiet=True).calculate_complete()["O46"] for row in rows]
    return float(np.mean(scores))


def _session(row: Floats) -> dict[str, object]:
    _, num_stalls, stall_s, startup_s, bitrate_bps, _ = row.tolist()
    num = round(num_stalls)
    stalls = [[LENGTH_S * (place + 1) / (num + 1), stall_s / num] for place in range(num)]
    video = {"bitrate": bitrate_bps / 1e3, "duration": LENGTH_S, "start": 0, **PICTURE}
    audio = {"bitrate": 128, "codec": "aaclc", "duration": LENGTH_S, "start": 0}
    return {
        "I11": {"segments": [audio], "streamId": 1},
        "I13": {"segments": [video], "streamId": 1},
        "I23": {"stalling": [[0, startup_s], *stalls], "streamId": 1},
        "IGen": VIEWER,
    }
