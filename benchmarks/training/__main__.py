"""Pipelines and stragglers, measured: `python -m benchmarks.training PART`; without a part, the parts are listed."""

import sys

from benchmarks.support.parts import run_part

PARTS = {
    "pipelines": "pipelines with slow links in real processes, compared with stock 1F1B and ZB-H1",
    "pipelines-caps": "plans under memory caps against the optimum of CP-SAT",
    "pipelines-gpu": "the same on one accelerator",
    "stragglers": "slow jobs noticed, named and helped, compared with published detectors",
    "stragglers-gpu": "watching NCCL on one accelerator",
    "stragglers-capture": "graphs captured while watched, and what watching costs, on one accelerator",
    "stragglers-record": "record watched jobs into a folder",
}

if __name__ == "__main__":
    sys.exit(run_part("benchmarks.training", PARTS))
