"""A sitecustomize of the user's own, which makes one rank slow: from some call on, `time.sleep` sleeps longer.

It stands for a slow processor, knows nothing of who watches, and whoever watches knows nothing of it. When ranks are
restarted it is gone, as if they were on another machine.
"""

import os
import sys
import time

SLEEP = time.sleep
CALLS = [0]


def slow_sleep(time_s: float) -> None:
    """Sleep longer, once enough calls have passed."""
    if sys._getframe(1).f_code.co_name == "compute":  # the work of the job, and nobody else's sleep
        CALLS[0] += 1
        time_s *= float(os.environ["INJECTED_FACTOR"]) if CALLS[0] > int(os.environ["INJECTED_AFTER"]) else 1.0
    SLEEP(time_s)


is_first_start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
if is_first_start and os.environ.get("RANK") is not None and os.environ.get("RANK") == os.environ.get("INJECTED_RANK"):
    time.sleep = slow_sleep  # type: ignore[assignment]
