from takeup.caching.engines.dask.client import counters as counters
from takeup.caching.engines.dask.client import install as install
from takeup.caching.engines.dask.client import uninstall as uninstall
from takeup.caching.engines.dask.spill_guide import DaskCounts as DaskCounts
