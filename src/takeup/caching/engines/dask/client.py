"""What a user calls: `install`, `uninstall`, `counters`. With an asynchronous client each returns an awaitable.

The engine does not depend on policies: the name is resolved here, and the policy spec is sent to the workers.
"""

import uuid
from dataclasses import fields
from tempfile import TemporaryDirectory
from typing import Any

from distributed import Client, Scheduler, Worker
from distributed.spill import SpillBuffer

from takeup.caching.contract import PolicySpec
from takeup.caching.engines.dask import spill
from takeup.caching.engines.dask.plugins import NAME, Announcer, SpillPlugin, counts_of
from takeup.caching.engines.dask.spill_guide import DaskCounts, SpillOptions
from takeup.caching.policies import find_policy
from takeup.errors import UnknownName

POLICIES = ("lru", "lrc", "lerc", "mrd", "next", "dag")


def install(client: Client, policy: str | PolicySpec = "dag", **options: Any) -> Any:
    """Make all current and future workers of this cluster spill by the policy. See `SpillOptions`.

    Install again to change policy or options.
    """
    return client.sync(_install, client, _find(policy), _read(options))  # type: ignore[no-untyped-call]


def uninstall(client: Client) -> Any:
    """Restore stock behaviour on all workers."""
    return client.sync(_uninstall, client)  # type: ignore[no-untyped-call]


def counters(client: Client) -> Any:
    """The sum of the `DaskCounts` of all workers."""
    return client.sync(_counters, client)  # type: ignore[no-untyped-call]


def _find(policy: str | PolicySpec) -> PolicySpec:
    spec = find_policy(policy) if isinstance(policy, str) else policy
    if spec.base not in POLICIES:
        raise UnknownName("policy for Dask", spec.base, POLICIES)
    return spec


def _read(options: dict[str, Any]) -> SpillOptions:
    known = [field.name for field in fields(SpillOptions)]
    for name in options:
        if name not in known:
            raise UnknownName("option", name, known)
    return SpillOptions(**options)


async def _install(client: Client, spec: PolicySpec, options: SpillOptions) -> None:
    await _uninstall(client)
    installation = uuid.uuid4().hex
    announcer = Announcer(installation, uses_table=spec.uses_table, follows_peers=spec.base == "lerc")
    await client.register_plugin(announcer, name=NAME)
    await client.register_plugin(SpillPlugin(installation, spec, options), name=NAME)


async def _uninstall(client: Client) -> None:
    if await client.run_on_scheduler(_is_installed):  # type: ignore[no-untyped-call]
        await client.unregister_worker_plugin(NAME)  # type: ignore[no-untyped-call]
        await client.run_on_scheduler(_stop)  # type: ignore[no-untyped-call]


async def _counters(client: Client) -> DaskCounts:
    return DaskCounts.total((await client.run(_counts)).values())


def _is_installed(dask_scheduler: Scheduler) -> bool:
    return NAME in dask_scheduler.worker_plugins


def _stop(dask_scheduler: Scheduler) -> None:
    plugin = dask_scheduler.plugins.get(NAME)
    if isinstance(plugin, Announcer):
        plugin.stop()


def _counts(dask_worker: Worker) -> DaskCounts:
    return counts_of(dask_worker)


# Whether the plug-in supports the installed Dask; used by `takeup doctor` ---------------------------------------------


def why_unsupported(distributed_version: str) -> str:
    """Why the plug-in does not support this version, empty if it does; tested on a real buffer."""
    with TemporaryDirectory() as folder:
        reason = spill.why_not(SpillBuffer(folder, target=1))
    return f"with distributed {distributed_version} workers stay on stock behaviour: {reason}" if reason else ""
