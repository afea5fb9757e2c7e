"""Where workloads come from: trace files and a generator; all end in a `Workload`.

`read_trace` recognises a file by its columns; `read_plain` takes any table whose columns you name. Names are loaded on
first use: the generator needs no reader of files.
"""

from takeup.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
