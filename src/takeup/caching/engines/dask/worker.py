"""Worker plug-in: sets the eviction order of the spill buffer from the scheduler's messages and local task states."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from distributed import Worker
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.spill import SpillBuffer

from takeup.caching.contract import PolicySpec
from takeup.caching.engines.dask.announce import BATCH_S, FROM_WORKER, NAME, TO_WORKER
from takeup.caching.engines.dask.counts import DaskCounts
from takeup.caching.engines.dask.guide import ConsumerUpdate, SpillGuide, SpillOptions
from takeup.caching.engines.dask.metrics import serve_metrics
from takeup.caching.engines.dask.prefetch import Prefetcher
from takeup.caching.engines.dask.spill import SpillHooks, guide_buffer, release_buffer, why_not

CAN_RUN = frozenset({"waiting", "ready", "constrained"})  # waiting for data in transfer, or for a thread
STILL_RUNNING = frozenset({"executing", "long-running", "cancelled", "resumed"})

logger = logging.getLogger("takeup.dask")


class SpillPlugin(WorkerPlugin):
    """Controls the spill order of one worker from `setup` to `teardown`, or until the first failure."""

    def __init__(self, installation: str, spec: PolicySpec, options: SpillOptions) -> None:
        self.name = NAME
        self.installation = installation
        self.spec = spec
        self.options = options
        self.hooks: SpillHooks | None = None
        self._queued_messages: dict[str, list[Hashable]] = {}
        self._bytes_before: dict[str, float] = {}

    # What distributed calls -------------------------------------------------------------------------------------------

    def setup(self, worker: Worker) -> None:
        """Take over the spill order, or log in one line why not."""
        self.worker = worker
        try:
            reason = why_not(worker.data)
            if reason is None:
                self._guide(worker, worker.data)  # type: ignore[arg-type]
        except Exception as error:
            release_buffer(worker.data)
            reason = repr(error)
        if reason is not None:
            logger.warning("worker %s stays on stock behaviour: %s", worker.address, reason)

    def teardown(self, worker: Worker) -> None:
        """Restore the stock spill order."""
        if self.hooks is not None:
            self.hooks = None
            release_buffer(worker.data)
            self._send("bye")

    def transition(self, key: Any, start: Any, finish: Any, **kwargs: Any) -> None:
        """A task changed its state: pin the inputs of running tasks."""
        hooks = self.hooks
        if hooks is None or hooks.failed:
            return
        if finish == "executing":
            inputs = [dependency.key for dependency in self.worker.state.tasks[key].dependencies]
            hooks.tell(hooks.guide.started, key, inputs)
            if self.options.prefetch:
                hooks.tell(self.prefetcher.consider)
        elif finish in CAN_RUN:
            hooks.tell(hooks.guide.assigned, key)
        elif finish not in STILL_RUNNING:
            hooks.tell(hooks.guide.ended, key)
        if finish == "memory" and hooks.guide.is_unannounced(key):
            self._queue_message("ask", key)

    # ------------------------------------------------------------------------------------------------------------------

    def counts(self) -> DaskCounts:
        """The counters of this worker so far; zero if it is on stock behaviour."""
        if self.hooks is None or self.hooks.failed:
            return DaskCounts()
        counts = self.hooks.guide.now()
        counts.copies_bytes = self.hooks.copies.total_bytes
        counts.read_bytes, counts.written_bytes = (
            int(self._disk_bytes(label) - self._bytes_before[label]) for label in ("disk-read", "disk-write")
        )
        return counts

    def handle_message(
        self,
        installation: str,
        news: Iterable[ConsumerUpdate] = (),
        moved: Iterable[tuple[Hashable, bool]] = (),
        num_workers: int = 1,
        num_graphs: int = 0,
        is_bye: bool = False,
        is_failed: bool = False,
    ) -> None:
        """Handle a message from the scheduler; messages of other installations are ignored."""
        if installation != self.installation:
            return
        if is_bye:
            self.worker.stream_handlers.pop(TO_WORKER, None)
        elif is_failed:
            self._release_soon()
        elif self.hooks is not None:
            self.hooks.tell(self.hooks.guide.apply_message, news, moved, num_workers, num_graphs)

    def _guide(self, worker: Worker, data: SpillBuffer) -> None:
        guide = SpillGuide(self.spec, data.n, self.options)
        self.hooks = guide_buffer(data, guide, self._report, self._release_soon)
        self.prefetcher = Prefetcher(worker.state.ready, data, guide.counts)
        self._bytes_before = {label: self._disk_bytes(label) for label in ("disk-read", "disk-write")}
        worker.stream_handlers[TO_WORKER] = self.handle_message
        serve_metrics(worker, counts_of)
        self._send("hello")

    def _disk_bytes(self, label: str) -> float:
        data: Any = self.worker.data
        return float(data.cumulative_metrics.get((label, "bytes"), 0))

    def _report(self, key: Hashable, is_lost: bool) -> None:
        self._queue_message("lost" if is_lost else "cached", key)

    def _release_soon(self) -> None:
        """Tear down from the event loop, because the failed call is still inside a method of the buffer."""
        self._later(0, lambda: self.teardown(self.worker))

    def _queue_message(self, said: str, key: Hashable) -> None:
        if not self._queued_messages:
            self._later(BATCH_S, self._flush_messages)
        self._queued_messages.setdefault(said, []).append(key)

    def _flush_messages(self) -> None:
        words, self._queued_messages = self._queued_messages, {}
        for said, keys in words.items() if self.hooks is not None else ():
            self._send(said, keys)

    def _send(self, said: str, keys: list[Hashable] | None = None) -> None:
        self.worker.batched_send(
            {"op": FROM_WORKER, "installation": self.installation, "said": said, "keys": keys or []}
        )

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        loop = self.worker.loop
        loop.add_callback(lambda: loop.call_later(delay_s, action))


def counts_of(worker: Worker) -> DaskCounts:
    """The counters of this worker since the plug-in was installed; zero without the plug-in."""
    plugin = worker.plugins.get(NAME)
    return plugin.counts() if isinstance(plugin, SpillPlugin) else DaskCounts()
