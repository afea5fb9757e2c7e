"""Masked edits: `python -m benchmarks.serving editing [--device cpu|cuda] [--part sdxl,flux] [--tiny]`.

On an accelerator, whole edits of networks of full size beside stock ones, steps beside their predictions, sizes of
templates at stated errors, mixed masks, and latencies under load (see editing_gpu.py). On a CPU what does not depend on
its speed: counted operations beside their floors, and milliseconds of the planner. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

from benchmarks.support.dated import options_of, publish

PARTS = "sdxl,flux"


def main() -> int:
    """Run what was asked for."""
    parser = options_of(__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--part", default=PARTS, help=f"networks on an accelerator, of {PARTS}")
    parser.add_argument("--tiny", action="store_true", help="the loop of the accelerator over tiny networks, on a CPU")
    parser.add_argument("--only-host", action="store_true", help="only edits with templates in memory of the host")
    parser.add_argument("--slower-link", type=int, default=1, metavar="TIMES", help="the link from the host, with it")
    options = parser.parse_args()
    if options.slower_link > 1 and not options.only_host:
        parser.error("--slower-link is for templates in memory of the host; give --only-host, too")
    if options.device == "cuda" or options.tiny:
        from benchmarks.serving.editing_gpu import measure

        ways = {"only_host": options.only_host, "times_slower": options.slower_link}
        report = measure(options.device, options.part.split(","), is_tiny=options.tiny, **ways)
        slower = f"_{options.slower_link}_times_slower" if options.slower_link > 1 else ""
        return publish(report, f"editing_gpu{'_host' if options.only_host else ''}{slower}", options)
    from benchmarks.serving.editing_cpu import measure_cpu

    return publish(measure_cpu(), "editing", options)
