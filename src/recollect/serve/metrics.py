"""What Prometheus is told."""

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess

from recollect.serve.settings import METRICS_FOLDER

requests = Counter("recollect_requests", "Requests answered.", ["method", "route", "status"])
seconds = Histogram(
    "recollect_request_seconds",
    "From the end of a request's head to the end of its answer.",
    ["route"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
received = Counter("recollect_received_bytes", "Bytes of request bodies.")
batch = Histogram(
    "recollect_batch_pictures", "Pictures in a pass of the extractor.", buckets=(1, 2, 4, 8, 16, 32, 64)
)
waiting = Gauge(
    "recollect_waiting_pictures", "Pictures accepted and not answered yet.", multiprocess_mode="livesum"
)
refused = Counter("recollect_refused", "Requests refused for want of room.", ["reason"])


def page() -> bytes:
    """Return all figures, those of other worker processes included."""
    if METRICS_FOLDER in os.environ:
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
    return generate_latest()


def close() -> None:
    """Take this process out of the figures that count what is going on now."""
    if METRICS_FOLDER in os.environ:
        multiprocess.mark_process_dead(os.getpid())  # type: ignore[no-untyped-call]
