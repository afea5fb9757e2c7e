"""A policy on a running Dask cluster: `install`, `uninstall`, `counters`, and the plug-ins of scheduler and workers.

With an asynchronous client the three functions return an awaitable.
"""

import logging
import uuid
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, fields
from tempfile import TemporaryDirectory
from typing import Any

from distributed import Client, Scheduler, Worker
from distributed.diagnostics.plugin import SchedulerPlugin, WorkerPlugin
from distributed.scheduler import TaskState, WorkerState
from distributed.spill import SpillBuffer
from tornado.web import RequestHandler

from takeup.caching.contract import PolicySpec
from takeup.caching.engines.dask.spill import SpillHooks, guide_buffer, release_buffer, why_not
from takeup.caching.engines.dask.spill_guide import ConsumerUpdate, DaskCounts, SpillGuide, SpillOptions
from takeup.caching.policies import find_deployable
from takeup.errors import UnknownName


def install(client: Client, policy: str | PolicySpec = "dag", **options: Any) -> Any:
    """Make all current and future workers of this cluster spill by the policy. See `SpillOptions`.

    Install again to change policy or options.
    """
    return client.sync(_install, client, find_deployable(policy, "Dask"), _read(options))  # type: ignore[no-untyped-call]


def uninstall(client: Client) -> Any:
    """Restore stock behaviour on all workers."""
    return client.sync(_uninstall, client)  # type: ignore[no-untyped-call]


def counters(client: Client) -> Any:
    """The sum of the `DaskCounts` of all workers."""
    return client.sync(_counters, client)  # type: ignore[no-untyped-call]


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


# Scheduler plug-in: sends each worker the future readers of the values it holds, in execution order -------------------
#
# How it works. A task that is submitted and not computed is a *consumer* of its dependencies. A worker is notified of
# a consumer when it holds one of them or soon will: on submission (values in memory or being computed: a graph's first
# tasks start before its last are known), when a task starts there (for its result, and for the inputs it will fetch),
# and on an `ask` (values that arrived otherwise). It is notified again when the consumer is computed, fails or is
# released. So the number of messages grows with the edges of the graph, not with the number of workers. Messages are
# batched every ten milliseconds; the first is sent immediately.
#
# Messages are sent to a worker only between its `hello` and its `bye`: a message without a handler would close its
# connection. Workers without the plug-in get none. Every message carries the unique name of its installation, so that a
# late message of a previous installation is ignored.

NAME = "takeup-caching"
TO_WORKER, FROM_WORKER = "takeup-caching-news", "takeup-caching-word"

BATCH_S = 0.010
MAX_PEERS = 64  # of a group announced as a whole; larger groups are never complete in memory
USER_STEPS, GENERATION_STEPS, GRAPH_STEPS = 1e12, 1e7, 2.0**-16  # weights that pack a priority tuple into one float
OPEN_STATES = frozenset({"waiting", "queued", "no-worker", "processing"})
OVER_STATES = frozenset({"memory", "erred", "released", "forgotten"})

logger = logging.getLogger("takeup.dask")


@dataclass(slots=True)
class Outbox:
    """Messages for one worker that are not sent yet, oldest first."""

    news: list[ConsumerUpdate] = field(default_factory=list)
    moved: list[tuple[Hashable, bool]] = field(default_factory=list)
    is_due: bool = False


class Announcer(SchedulerPlugin):
    """Tracks the scheduler's task transitions and notifies the workers."""

    def __init__(self, installation: str, *, uses_table: bool, follows_peers: bool) -> None:
        self.name = NAME
        self.installation = installation
        self.uses_table = uses_table
        self.follows_peers = follows_peers
        self.is_silent = False
        self.notified: dict[Hashable, set[str]] = {}  # consumer -> workers notified of it
        self.outboxes: dict[str, Outbox] = {}  # one for each worker that sent hello
        self._stages: dict[str, float] = {}
        self._num_graphs = 0
        self._is_flush_due = False
        self._last_flush_s = 0.0

    async def start(self, scheduler: Scheduler) -> None:
        """Register the handler for messages from workers."""
        self.scheduler = scheduler
        self._first_generation = scheduler.generation
        scheduler.stream_handlers[FROM_WORKER] = self.handle_message

    # Called by distributed -------------------------------------------------------------------------------------------

    def update_graph(self, scheduler: Scheduler, **kwargs: Any) -> None:
        """A client submitted a graph."""
        self._num_graphs += 1

    def transition(self, key: Any, start: Any, finish: Any, *args: Any, **kwargs: Any) -> None:
        """A task changed its state."""
        if self.uses_table and self.outboxes:
            self._safely(self._follow, self.scheduler.tasks[key], finish)

    def remove_worker(self, scheduler: Scheduler, worker: str, **kwargs: Any) -> None:
        """A worker was removed, with or without a `bye`."""
        self._forget(worker)

    # Messages from workers --------------------------------------------------------------------------------------------

    def handle_message(self, worker: str, installation: str, said: str, keys: Iterable[Hashable] = ()) -> None:
        """Handle `hello` (send all), `ask` (readers of keys), `lost` or `cached` (group state changed), or `bye`."""
        if installation != self.installation:
            return
        if said == "bye":
            self._on_bye(worker)
        elif worker in self.scheduler.workers and not self.is_silent:
            self._safely(self._answer, worker, said, keys)

    def stop(self) -> None:
        """Stop sending. The handler is removed after the last `bye`: an unhandled message closes the connection."""
        self.is_silent = True
        self.scheduler.plugins.pop(NAME, None)
        self._remove_handler()

    # ------------------------------------------------------------------------------------------------------------------

    def _follow(self, ts: TaskState, finish: str) -> None:
        if finish == "waiting":
            for dependency in ts.dependencies:
                for holder in _homes(dependency):
                    self._announce(holder.address, ts, dependency)
        elif finish == "processing" and ts.processing_on is not None:
            self._announce_start(ts.processing_on.address, ts)
        elif finish in OVER_STATES:
            for worker in self.notified.pop(ts.key, ()):
                self._write(worker).news.append((ts.key,))

    def _announce_start(self, worker: str, ts: TaskState) -> None:
        for other in self.notified.get(ts.key, set()) - {worker}:
            self._write(other).news.append((ts.key, True))
        for consumer in ts.waiters or ():
            self._announce(worker, consumer, ts)
        for dependency in ts.dependencies:
            if all(holder.address != worker for holder in dependency.who_has or ()):  # it will be fetched
                self._announce(worker, ts, dependency)

    def _announce(self, worker: str, consumer: TaskState, block: TaskState) -> None:
        if worker not in self.outboxes or consumer.priority is None:
            return
        is_whole = self.follows_peers and len(consumer.dependencies) <= MAX_PEERS
        blocks = tuple(sorted((ts.key for ts in consumer.dependencies), key=str)) if is_whole else (block.key,)
        position = self._position(consumer.priority)
        self._write(worker).news.append((consumer.key, position, self._stage(consumer, position), blocks))
        self.notified.setdefault(consumer.key, set()).add(worker)

    def _answer(self, worker: str, said: str, keys: Iterable[Hashable]) -> None:
        if said == "hello":
            self.outboxes[worker] = Outbox()
            keys = [ts.key for ts in self.scheduler.workers[worker].has_what]
        for ts in filter(None, map(self.scheduler.tasks.get, keys if self.uses_table else ())):  # type: ignore[arg-type]
            consumers = [consumer for consumer in ts.waiters or () if consumer.state in OPEN_STATES]
            if said in ("hello", "ask"):
                for consumer in consumers:
                    self._announce(worker, consumer, ts)
            else:
                for other in {name for consumer in consumers for name in self.notified.get(consumer.key, ())} - {
                    worker
                }:
                    self._write(other).moved.append((ts.key, said == "lost"))
        self._write(worker)

    def _position(self, priority: tuple[float, ...]) -> float:
        """The priority (user, generation, index in the graph) as one number of the same order. Equal ones, as of single
        tasks submitted one by one, run last-in first-out."""
        user, generation, place = (0.0, 0.0, 0.0, *priority)[-3:]
        steps = user * USER_STEPS + (generation - self._first_generation) * GENERATION_STEPS + place
        return steps - self._num_graphs % 2**16 * GRAPH_STEPS

    def _stage(self, consumer: TaskState, position: float) -> float:
        """Tasks of one task group form one stage; its position is that of its first announced task."""
        if len(self._stages) > 2 * len(self.scheduler.task_groups) + 64:
            self._stages = {name: at for name, at in self._stages.items() if name in self.scheduler.task_groups}
        return self._stages.setdefault(consumer.group.name, position)

    # Messages ---------------------------------------------------------------------------------------------------------

    def _write(self, worker: str) -> Outbox:
        """The worker's outbox, with a flush scheduled; for an unknown worker, a discarded one."""
        outbox = self.outboxes.get(worker)
        if outbox is None:
            return Outbox()
        outbox.is_due = True
        if not self._is_flush_due:
            self._is_flush_due = True
            loop = self.scheduler.loop.asyncio_loop  # type: ignore[attr-defined]
            loop.call_later(max(0.0, self._last_flush_s + BATCH_S - loop.time()), self._safely, self._flush)
        return outbox

    def _flush(self) -> None:
        self._is_flush_due = False
        self._last_flush_s = self.scheduler.loop.asyncio_loop.time()  # type: ignore[attr-defined]
        for worker, outbox in self.outboxes.items():
            if outbox.is_due and worker in self.scheduler.stream_comms:
                self.outboxes[worker] = Outbox()
                sizes = {"num_workers": len(self.scheduler.workers), "num_graphs": self._num_graphs}
                self._send(worker, news=outbox.news, moved=outbox.moved, **sizes)

    def _send(self, worker: str, **content: object) -> None:
        self.scheduler.worker_send(worker, {"op": TO_WORKER, "installation": self.installation, **content})

    def _safely(self, action: Callable[..., None], *details: object) -> None:
        if self.is_silent:
            return
        try:
            action(*details)
        except Exception:
            logger.exception("announcing tasks failed; all workers go on with stock behaviour")
            self.is_silent = True
            for worker in self.outboxes.keys() & self.scheduler.stream_comms.keys():
                self._send(worker, is_failed=True)

    def _on_bye(self, worker: str) -> None:
        self._forget(worker)
        if worker in self.scheduler.stream_comms:
            self._send(worker, is_bye=True)
        self._remove_handler()

    def _forget(self, worker: str) -> None:
        self.outboxes.pop(worker, None)
        for consumer in [consumer for consumer, workers in self.notified.items() if worker in workers]:
            self.notified[consumer].discard(worker)

    def _remove_handler(self) -> None:
        handlers = self.scheduler.stream_handlers
        if (
            self.scheduler.plugins.get(NAME) is not self
            and not self.outboxes
            and handlers.get(FROM_WORKER) == self.handle_message
        ):
            del handlers[FROM_WORKER]


def _homes(ts: TaskState) -> list[WorkerState]:
    """The workers that hold the value, and the one that is computing it."""
    return [*(ts.who_has or ()), *([ts.processing_on] if ts.processing_on is not None else [])]


# The counters of a worker for Prometheus: an extra endpoint, `/takeup/metrics`, next to the worker's `/metrics` -------
#
# Separate, because Dask's endpoint needs a package that many clusters do not have, and this one is plain text.

PATH = "/takeup/metrics"
_GAUGES = ("num_workers", "copies_bytes", "num_open_consumers", "num_pinned")
_SERVED = "_takeup_serves_metrics"


def prometheus(counts: DaskCounts) -> str:
    """The counters in Prometheus's text format."""
    lines = []
    for counter in fields(counts):
        is_gauge = counter.name in _GAUGES
        name = f"takeup_caching_dask_{counter.name.removeprefix('num_')}{'' if is_gauge else '_total'}"
        lines.append(f"# TYPE {name} {'gauge' if is_gauge else 'counter'}")
        lines.append(f"{name} {getattr(counts, counter.name)}")
    return "\n".join(lines) + "\n"


def serve_metrics(worker: Worker, counts: Callable[[Worker], DaskCounts]) -> None:
    """Add the endpoint to the worker's web server. It remains after the plug-in is removed, with all counters zero."""
    application: Any = getattr(worker, "http_application", None)
    if application is not None and not hasattr(application, _SERVED):
        setattr(application, _SERVED, True)
        application.add_handlers(".*$", [(PATH, _MetricsHandler, {"text": lambda: prometheus(counts(worker))})])


class _MetricsHandler(RequestHandler):
    def initialize(self, text: Callable[[], str]) -> None:
        self.text = text

    def get(self) -> None:
        self.set_header("Content-Type", "text/plain; version=0.0.4")
        self.write(self.text())


# Worker plug-in: sets the eviction order of the spill buffer from the scheduler's messages and local task states ------

CAN_RUN = frozenset({"waiting", "ready", "constrained"})  # waiting for data in transfer, or for a thread
STILL_RUNNING = frozenset({"executing", "cancelled", "resumed"})


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
        if hooks is None or hooks.failed or hooks.is_asleep:
            return
        if finish == "executing":
            inputs = [dependency.key for dependency in self.worker.state.tasks[key].dependencies]
            hooks.tell(hooks.guide.started, key, inputs)
        elif finish in CAN_RUN:
            hooks.tell(hooks.guide.assigned, key)
        elif finish == "long-running":
            hooks.tell(hooks.guide.seceded, key)
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
        self._bytes_before = {label: self._disk_bytes(label) for label in ("disk-read", "disk-write")}
        worker.stream_handlers[TO_WORKER] = self.handle_message
        serve_metrics(worker, counts_of)
        self.hooks = guide_buffer(data, guide, self._report, self._release_soon, lambda: self._woke(guide))

    def _woke(self, guide: SpillGuide) -> None:
        """Memory fills up: learn from the scheduler what will be read, and pin what is being read."""
        for task in self.worker.state.executing:
            guide.started(task.key, [dependency.key for dependency in task.dependencies])
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


# Whether the plug-in supports the installed Dask; used by `takeup doctor` ---------------------------------------------


def why_unsupported(distributed_version: str) -> str:
    """Why the plug-in does not support this version, empty if it does; tested on a real buffer."""
    with TemporaryDirectory() as folder:
        reason = why_not(SpillBuffer(folder, target=1))
    return f"with distributed {distributed_version} workers stay on stock behaviour: {reason}" if reason else ""
