"""GPU scheduling, measured: `python -m benchmarks.cluster PART [options]`; without a part, the parts are listed."""

import sys

from benchmarks.support.parts import run_part

PARTS = {
    "schedulers": "scheduling passes, the whole fleet, all schedulers on one pool",
    "windows": "two-week windows of recorded and generated jobs under all schedulers, from one state",
    "labs": "the controllers of a real Slurm and a real Kubernetes API server",
    "forecast": "demand of the next hours, compared with persistence and OrgLinear",
}

if __name__ == "__main__":
    sys.exit(run_part("benchmarks.cluster", PARTS))
