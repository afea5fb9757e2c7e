"""Edge offloading, measured: `python -m benchmarks.edge PART [options]`; without a part, the parts are listed."""

import sys

from benchmarks.support.parts import run_part

PARTS = {
    "learners": "baselines of the environment for reinforcement learning",
    "library": "the instance library: gaps by setting with the worst cells, against other methods",
    "plans": "plans compared with the exact optimum and a certified bound; --play runs them for real",
}

if __name__ == "__main__":
    sys.exit(run_part("benchmarks.edge", PARTS))
