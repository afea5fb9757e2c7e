from takeup.caching.engines.dask.plugins import counters as counters
from takeup.caching.engines.dask.plugins import install as install
from takeup.caching.engines.dask.plugins import uninstall as uninstall
from takeup.caching.engines.dask.spill_guide import DaskCounts as DaskCounts
