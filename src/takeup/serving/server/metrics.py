"""Prometheus metrics: queues, images, times, and the counters of the backend."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from takeup.serving.server.admission import AdmissionQueue
from takeup.serving.server.backends import Backend

PREFIX = "takeup_serving_"
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
COUNTS = {
    "steps": "Denoising steps of all requests.",
    "network_calls": "Calls of the denoiser; several requests may share one.",
    "adapter_loads": "LoRAs read from storage.",
    "worker_restarts": "Restarts of worker processes.",
    "retries": "Images that were retried because their worker died.",
    "prepare_calls": "Images whose texts and input images were encoded.",
    "prepare_seconds": "CPU time of that.",
    "finish_calls": "Images that were decoded and compressed.",
    "finish_seconds": "CPU time of that.",
    "beside_seconds": "CPU time of both during iterations of the step loop.",
}
TURNS = {
    "turns": "Iterations of the step loop by rows, alone or with concurrent work.",
    "turn_seconds": "Seconds of these iterations.",
}
GAUGES = {"adapter_bytes": "Memory of cached LoRAs.", "workers": "Workers that can take jobs."}


class ServerMetrics:
    """One registry for each server, so that several can live in a process."""

    def __init__(self, admission_queue: AdmissionQueue, backend: Backend) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_LiveCollector(admission_queue, backend))
        self.answers = Counter(
            f"{PREFIX}requests", "Requests by endpoint and status.", ("endpoint", "status"), registry=self._registry
        )
        self.images = Counter(f"{PREFIX}images", "Images that were made.", registry=self._registry)
        self.queue_s = self._seconds("queue_seconds", "From arrival to the start of an image.")
        self.image_s = self._seconds("image_seconds", "From the start of an image to its bytes.")
        self.request_s = self._seconds("request_duration_seconds", "From arrival to answer.")

    def text(self) -> bytes:
        """The page."""
        return generate_latest(self._registry)

    def _seconds(self, name: str, what: str) -> Histogram:
        return Histogram(PREFIX + name, what, buckets=SECONDS, registry=self._registry)


class _LiveCollector(Collector):
    """Collector of values that are read at scrape time."""

    def __init__(self, admission_queue: AdmissionQueue, backend: Backend) -> None:
        self._admission_queue, self._backend = admission_queue, backend

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            f"{PREFIX}num_requests_waiting", "Images that wait for a run slot.", value=self._admission_queue.num_waiting
        )
        yield GaugeMetricFamily(
            f"{PREFIX}num_requests_running", "Images that hold a run slot.", value=self._admission_queue.num_running
        )
        yield CounterMetricFamily(f"{PREFIX}refused", "Requests answered 429.", value=self._admission_queue.num_refused)
        yield GaugeMetricFamily(f"{PREFIX}ready", "1 if images can be made.", value=float(self._backend.is_ready))
        numbers = self._backend.numbers()
        for name, what in COUNTS.items():
            yield CounterMetricFamily(PREFIX + name, what, value=numbers.get(name, 0))
        for name, what in GAUGES.items():
            yield GaugeMetricFamily(PREFIX + name, what, value=numbers.get(name, 0))
        for name, what in TURNS.items():
            yield _by_turn(name, what, numbers)


def _by_turn(name: str, what: str, numbers: Mapping[str, float]) -> Metric:
    """Backends say `name/rows/company`."""
    family = CounterMetricFamily(PREFIX + name, what, labels=("rows", "company"))
    for key, value in numbers.items():
        if key.startswith(f"{name}/"):
            family.add_metric(key.split("/")[1:], value)
    return family
