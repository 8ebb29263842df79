"""Metrics of pop consumption, under the names and labels of Java's exporter.

rocketmq_pop_in_flight_messages does not exist in Java. Gauges of revive queues also have the label
`topic`: after the cluster was renamed there are two revive topics. The name of
rocketmq_pop_revive_lag_milliseconds is Java's, although it is a number of records.

Source: PopMetricsManager.java, PopMetricsConstant.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kourou.broker.config import BrokerConfig
from kourou.broker.popping.pop_counts import SCAN_BOUNDS_MS, PopCounts, Series
from kourou.broker.popping.popping import Popping
from kourou.metrics import Distribution, Family, Kind, Sample

DIFFERING_MAX: Final = 20
"""Limit on the groups that are named."""


def pop_info(popping: Popping, differing_groups: Sequence[str]) -> dict[str, str]:
    """Return the entries of the answer to GET_BROKER_RUNTIME_INFO (28), which Java does not have.

    Args:
        popping: the components.
        differing_groups: groups whose members have different subscriptions.
    """
    loops = popping.revives.loops
    info = {
        "kourouPopInFlight": str(popping.in_flight.message_count),
        "kourouReviveBehindMessages": str(sum(one.lag for one in loops)),
        "kourouReviveBehindMs": str(max((one.latency_ms for one in loops), default=0)),
    }
    if differing_groups:
        info["kourouDifferingGroups"] = ",".join(differing_groups[:DIFFERING_MAX])
    return info


def pop_families(popping: Popping, config: BrokerConfig, base: Mapping[str, str]) -> list[Family]:
    """Return the metrics of pops; none if `enablePopMetrics` is off."""
    if not config.pop.enable_pop_metrics:
        return []
    buffer, loops = popping.scans.buffer, popping.revives.loops
    by_queue = [({"queue_id": str(one.queue_id), "topic": one.topic}, one) for one in loops]
    in_flight: Counter[tuple[str, str]] = Counter()
    for (topic, group, _), count in popping.in_flight.counts().items():
        in_flight[topic, group] += count
    gauges: tuple[tuple[str, str, Iterable[tuple[Mapping[str, str], float]]], ...] = (
        ("pop_offset_buffer_size", "Pops whose offsets the merge buffer has not committed.",
         [({}, buffer.offset_count)]),
        ("pop_checkpoint_buffer_size", "Checkpoints in the merge buffer.", [({}, len(buffer))]),
        ("pop_revive_lag_milliseconds", "Records of a revive queue that are not handled.",
         [(labels, one.lag) for labels, one in by_queue]),
        ("pop_revive_latency_milliseconds",
         "Time for which the first checkpoint of a revive queue has been due.",
         [(labels, one.latency_ms) for labels, one in by_queue]),
        ("pop_in_flight_messages", "Messages that are popped and not acknowledged.",
         [({"topic": topic, "consumer_group": group}, count)
          for (topic, group), count in in_flight.items()]),
    )  # fmt: skip
    return [
        *(_family(name, Kind.GAUGE, text, base, values) for name, text, values in gauges),
        *_counters(popping.counts, base),
        _scans(popping.counts, base),
    ]


def _counters(counts: PopCounts, base: Mapping[str, str]) -> list[Family]:
    rows = (
        ("pop_revive_in_message_total", "Checkpoints and acks that were stored.", counts.puts,
         "put_status"),
        ("pop_revive_out_message_total", "Checkpoints and acks that were read when due.",
         counts.reads, "queue_id"),
        ("pop_revive_retry_messages_total", "Messages that became visible again.", counts.retries,
         "put_status"),
    )  # fmt: skip
    return [
        _family(
            name,
            Kind.COUNTER,
            text,
            base,
            [(_labels(series, detail), count) for series, count in table.items()],
        )
        for name, text, table, detail in rows
    ]


def _labels(series: Series, detail: str) -> dict[str, str]:
    labels = {"topic": series.topic, "consumer_group": series.group, detail: series.detail}
    return labels | ({"revive_message_type": series.kind} if series.kind else {})


def _scans(counts: PopCounts, base: Mapping[str, str]) -> Family:
    return Family(
        "rocketmq_pop_buffer_scan_time_consume_milliseconds",
        Kind.HISTOGRAM,
        "Duration of a scan of the merge buffer.",
        [Distribution(dict(base), SCAN_BOUNDS_MS, tuple(counts.scans), counts.scans_ms)],
    )


def _family(
    name: str,
    kind: Kind,
    text: str,
    base: Mapping[str, str],
    values: Iterable[tuple[Mapping[str, str], float]],
) -> Family:
    samples = [Sample({**base, **labels}, value) for labels, value in values]
    return Family(f"rocketmq_{name}", kind, text, samples)
