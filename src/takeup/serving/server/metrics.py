"""What a Prometheus server reads: queues, images, times, and the numbers of the backend."""

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
    "worker_restarts": "Worker processes that were started again.",
    "retries": "Images that were begun again because their worker died.",
    "prepare_calls": "Images that were prepared: texts encoded, images encoded.",
    "prepare_seconds": "Processor time of that.",
    "finish_calls": "Images that were decoded and written.",
    "finish_seconds": "Processor time of that.",
    "beside_seconds": "Processor time of both during turns of the step loop.",
}
TURNS = {
    "turns": "Turns of the step loop by rows, alone or shared with work beside them.",
    "turn_seconds": "Seconds of these turns.",
}
GAUGES = {"adapter_bytes": "Memory of the LoRAs that are kept.", "workers": "Workers that can take jobs."}


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
        self.request_s = self._seconds("request_seconds", "From arrival to answer.")

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
            f"{PREFIX}waiting", "Images that wait for their turn.", value=self._admission_queue.num_waiting
        )
        yield GaugeMetricFamily(
            f"{PREFIX}running", "Images that are being made.", value=self._admission_queue.num_running
        )
        yield CounterMetricFamily(f"{PREFIX}refused", "Requests sent away.", value=self._admission_queue.num_refused)
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
