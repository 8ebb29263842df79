"""Metric families in Prometheus' text format. Needs the extra `server`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import (
    GC_COLLECTOR,
    PLATFORM_COLLECTOR,
    PROCESS_COLLECTOR,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from kourou.metrics import Distribution, Family, Kind


def exposition(families: Iterable[Family]) -> bytes:
    """Return the families in Prometheus' text format, version 0.0.4."""
    return generate_latest(_FamilyCollector(families))


def process_exposition() -> bytes:
    """Return the metrics of this process: `process_*` (on Linux), `python_gc_*`, `python_info`."""
    collectors = (PROCESS_COLLECTOR, GC_COLLECTOR, PLATFORM_COLLECTOR)
    return b"".join(map(generate_latest, collectors))


class _FamilyCollector(Collector):
    """Collector of families; `generate_latest` takes it in place of a registry."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Yield the families as types of prometheus_client."""
        for family in self._families:
            yield _metric(family)


def _metric(family: Family) -> Metric:
    if family.kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(family.name, family.text)
        names = [f"{family.name}{end}" for end in ("_bucket", "_count", "_sum")]
        for sample in family.samples:
            assert isinstance(sample, Distribution), f"{family.name} must hold distributions"
            _add(histogram, names, sample)
        return histogram
    kind = CounterMetricFamily if family.kind is Kind.COUNTER else GaugeMetricFamily
    metric: Metric = kind(family.name, family.text)
    for sample in family.samples:
        assert not isinstance(sample, Distribution), f"{family.name} is not a histogram"
        metric.add_sample(family.name, dict(sample.labels), sample.value)
    return metric


def _add(histogram: Metric, names: list[str], sample: Distribution) -> None:
    """Add a distribution: cumulative counts by bound, the total count and the sum."""
    bucket, count, total = names
    labels = dict(sample.labels)
    cumulative = 0
    for bound, count_in_bucket in zip((*sample.bounds, float("inf")), sample.counts, strict=True):
        cumulative += count_in_bucket
        le = "+Inf" if bound == float("inf") else str(float(bound))
        histogram.add_sample(bucket, {**labels, "le": le}, cumulative)
    histogram.add_sample(count, labels, cumulative)
    histogram.add_sample(total, labels, sample.total)
