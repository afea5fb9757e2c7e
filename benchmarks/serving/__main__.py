"""Diffusion serving, measured: `python -m benchmarks.serving PART [options]`; without a part, the parts are listed."""

import sys

from benchmarks.support.parts import run_part

PARTS = {
    "images": "the step engine compared with stock diffusers, on a CPU or one accelerator",
    "peers": "SDXL and Flux to pixels on one accelerator, compared with compiled stock, DeepCache, cache-dit",
    "images-gpu": "ways to compute a step on one accelerator, and where the time goes",
    "adapters": "adapter loads per request, compared with LRU",
    "queueing": "waiting times of a real server compared with the simulator",
    "hostile": "one tenant under idle connections and the flood of another tenant",
    "editing": "masked edits compared with stock diffusers, on a CPU or one accelerator",
    "editing-held": "masked edits of full-size pipelines, and how many templates one accelerator holds",
    "scene-quality": "what accelerations cost on trained models, and the coverage of reported errors",
    "editing-gpu": "masked edits on one accelerator, network by network",
}

if __name__ == "__main__":
    sys.exit(run_part("benchmarks.serving", PARTS))
