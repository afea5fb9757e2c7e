"""Detection of slowdowns: change points in iteration times, and the detector that consumes call logs.

detector.py         logs of calls in, slowdown events out
change_points.py    online change-point detection
kernels.py          compiled: posterior over run lengths, and the change-point detector as one kernel
"""

from takeup.core.compiled import drop_stale_code

drop_stale_code(__file__)
