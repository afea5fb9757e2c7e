"""Real engines: `local` in this process, the plug-ins for `spark` and `dask`."""
