"""Our plug-ins inside real engines, beside the stock engine: `python benchmarks/caching_engines.py --engine NAME ...`.

`--engine spark` and `--engine dask` each print one table with ratios to the stock engine, measured in the same run, and
leave with exit code 1 if a bar is missed. All other options go to the benchmark of that engine; `--help` behind the
engine lists them.
"""

from __future__ import annotations

import sys

ENGINES = ("dask", "spark")


def main(argv: list[str]) -> int:
    """Hand over to the benchmark of the engine that is named."""
    if len(argv) < 2 or argv[0] != "--engine" or argv[1] not in ENGINES:
        print(f"usage: caching_engines.py --engine {{{','.join(ENGINES)}}} [options of that engine]", file=sys.stderr)
        return 2
    if argv[1] == "dask":
        from caching_engines_dask import main as measure
    else:
        from caching_engines_spark import main as measure
    return measure(argv[2:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
