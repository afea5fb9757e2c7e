"""Masked edits: `python benchmarks/editing.py [--device cpu|cuda] [--part sdxl,flux] [--tiny] [--json] [--out FOLDER]`.

On an accelerator, whole edits of networks of full size beside stock ones, steps beside their predictions, sizes of
templates at stated errors, mixed masks, and latencies under load (see editing_gpu.py). On a CPU what does not depend on
its speed: counted operations beside their floors, and milliseconds of the planner. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import sys

from dated import options_of, publish

PARTS = "sdxl,flux"


def main() -> int:
    """Run what was asked for."""
    parser = options_of(__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--part", default=PARTS, help=f"networks on an accelerator, of {PARTS}")
    parser.add_argument("--tiny", action="store_true", help="the loop of the accelerator over tiny networks, on a CPU")
    parser.add_argument("--only-host", action="store_true", help="only edits with templates in memory of the host")
    options = parser.parse_args()
    if options.device == "cuda" or options.tiny:
        from editing_gpu import measure

        report = measure(options.device, options.part.split(","), is_tiny=options.tiny, only_host=options.only_host)
        return publish(report, "editing_gpu_host" if options.only_host else "editing_gpu", options)
    from editing_cpu import measure_cpu

    return publish(measure_cpu(), "editing", options)


if __name__ == "__main__":
    sys.exit(main())
