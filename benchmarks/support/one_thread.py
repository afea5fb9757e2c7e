"""Import first: linear algebra on one thread, because small matrices lose by more, and rates are per core."""

from __future__ import annotations

import os

for _library in ("OPENBLAS", "OMP", "MKL", "BLIS"):
    os.environ[f"{_library}_NUM_THREADS"] = "1"
