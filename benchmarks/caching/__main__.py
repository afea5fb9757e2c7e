"""Cache eviction, measured: `python -m benchmarks.caching PART [options]`; without a part, the parts are listed."""

import sys

from benchmarks.support.parts import run_part

PARTS = {
    "replay": "replay of requests and of job graphs, compared with libCacheSim",
    "spark-engine": "the plug-in in real executors, compared with stock Spark",
    "spark-everyday": "everyday jobs on Spark, each once, with what-if beside the measurement",
    "dask-engine": "spilling under each policy, compared with stock Dask",
    "dask-defaults": "everyday jobs on Dask with its own settings, compared with stock Dask",
}

if __name__ == "__main__":
    sys.exit(run_part("benchmarks.caching", PARTS))
