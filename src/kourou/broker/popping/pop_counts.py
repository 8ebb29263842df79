"""Counts of pop consumption since the start, by topic and group, for the metrics.

Source: PopMetricsManager.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from kourou.broker.popping.checkpoint import CheckpointKey
from kourou.broker.writing.put import PutStatus

SCAN_BOUNDS_MS: Final = (1, 10, 100, 1_000, 2_000, 3_000)
"""Upper bounds of the histogram of scans of the merge buffer, as in Java."""

SERIES_MAX: Final = 50_000
"""Limit of each table; further topics and groups are counted under empty names. As Java's
`metricsOtelCardinalityLimit`."""

CHECKPOINT: Final = "CK"
ACK: Final = "ACK"
"""Kinds of revive records, as Java names them in the label `revive_message_type`."""

_PUT_STATUS: Final = {
    PutStatus.OK: "PUT_OK",
    PutStatus.FLUSH_DISK_TIMEOUT: "FLUSH_DISK_TIMEOUT",
    PutStatus.FLUSH_SLAVE_TIMEOUT: "FLUSH_SLAVE_TIMEOUT",
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: "IN_SYNC_REPLICAS_NOT_ENOUGH",
    PutStatus.BUSY: "OS_PAGE_CACHE_BUSY",
    PutStatus.MESSAGE_ILLEGAL: "MESSAGE_ILLEGAL",
    PutStatus.TOPIC_REFUSED: "SERVICE_NOT_AVAILABLE",
    PutStatus.SERVICE_NOT_AVAILABLE: "SERVICE_NOT_AVAILABLE",
}
"""The nearest of Java's states of a put."""


class Series(NamedTuple):
    """Labels of one count.

    Attributes:
        topic, group: of the messages.
        kind: of the revive record; empty for retries.
        detail: the status of a put, or the queue that was read.
    """

    topic: str
    group: str
    kind: str
    detail: str


class PopCounts:
    """Counts of one broker.

    Attributes:
        puts: revive records that were stored, or refused.
        reads: revive records that were read from the revive topic.
        retries: messages that were stored in a retry topic, or refused.
        scans: scans of the merge buffer by duration; one count more than `SCAN_BOUNDS_MS`.
        scans_ms: their duration in all.
    """

    def __init__(self, series_max: int = SERIES_MAX) -> None:
        """Start at 0; each table holds at most `series_max` topics and groups of their own."""
        self._series_max = series_max
        self.puts: Counter[Series] = Counter()
        self.reads: Counter[Series] = Counter()
        self.retries: Counter[Series] = Counter()
        self.scans = [0] * (len(SCAN_BOUNDS_MS) + 1)
        self.scans_ms = 0

    def on_put(self, kind: str, key: CheckpointKey, status: PutStatus) -> None:
        """Count a put of a checkpoint, or of an ack of one."""
        self._add(self.puts, Series(key.topic, key.group, kind, _PUT_STATUS[status]), 1)

    def on_read(self, kind: str, key: CheckpointKey, queue_id: int) -> None:
        """Count a record that was read from a revive queue."""
        self._add(self.reads, Series(key.topic, key.group, kind, str(queue_id)), 1)

    def on_retry(self, key: CheckpointKey, status: PutStatus, count: int) -> None:
        """Count a put of messages of a checkpoint in their retry topic."""
        self._add(self.retries, Series(key.topic, key.group, "", _PUT_STATUS[status]), count)

    def on_scan(self, took_ms: int) -> None:
        """Count a scan of the merge buffer."""
        self.scans[bisect_left(SCAN_BOUNDS_MS, took_ms)] += 1
        self.scans_ms += took_ms

    def remove_topic(self, topic: str) -> None:
        """Remove the counts of a topic."""
        self._remove(lambda one: one.topic == topic)

    def remove_group(self, group: str) -> None:
        """Remove the counts of a group."""
        self._remove(lambda one: one.group == group)

    def _remove(self, is_removed: Callable[[Series], bool]) -> None:
        for table in (self.puts, self.reads, self.retries):
            for one in [one for one in table if is_removed(one)]:
                del table[one]

    def _add(self, table: Counter[Series], series: Series, count: int) -> None:
        if series not in table and len(table) >= self._series_max:
            series = Series("", "", series.kind, series.detail)
        table[series] += count
