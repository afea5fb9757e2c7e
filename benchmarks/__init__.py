"""Measurements next to stock systems and peers: `python -m benchmarks.DOMAIN PART` from the project's folder.

Laboratories (small Slurm and Spark clusters, watched training jobs) are those of the tests, so `tests` is importable.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(1, str(TESTS))
