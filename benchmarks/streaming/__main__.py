"""Start-up delay and stalls, measured: `python -m benchmarks.streaming PART`; without a part, the parts are listed."""

import sys

from benchmarks.support.parts import run_part

PARTS = {
    "solvers": "solvers compared with simulations; --logs FOLDER fits links to throughput logs",
    "advice": "how often the intervals of replayed logs hold, and the errors of other predictions; --logs FOLDER",
    "browsers": "dash.js, Shaka and hls.js in Chromium compared with the replay of the same log; --logs FOLDER",
    "ring": "players on a real link compared with the equations",
}

if __name__ == "__main__":
    sys.exit(run_part("benchmarks.streaming", PARTS))
