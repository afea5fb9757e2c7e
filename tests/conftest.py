"""Settings for the whole suite."""

from __future__ import annotations

import os

from hypothesis import settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # two workers share two cores, and our matrices are small

# Tests never judge by wall time. CI looks at the same examples every time; elsewhere each run looks at new ones.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")
