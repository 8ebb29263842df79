"""Counts of transactions: open half messages by topic, ends and checks, and their metrics.

The open ones are saved in the file `config/transactionMetrics`.

Java's counts drift with each crash; here they are recounted at each start. Java's
rocketmq_finish_message_latency is not served: its name says milliseconds, while its buckets are in
seconds. The last two metrics do not exist in Java.

Source: TransactionMetrics.java, BrokerMetricsManager.initTransactionMetrics, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Mapping
from typing import Final

from kourou.broker.config_saver import ConfigSaver, SavedFile, TextParts
from kourou.broker.transactions.ledger import State
from kourou.clock import Clock
from kourou.metrics import Family, Kind, Sample
from kourou.protocol.data_version import DataVersion
from kourou.protocol.fastjson import loads
from kourou.protocol.json_records import from_json
from kourou.protocol.json_values import as_integer, as_object, get_object
from kourou.remoting.runtime import Offload


def transaction_families(counts: TransactionCounts, base: Mapping[str, str]) -> list[Family]:
    """Return the metrics of transactions, with one series per destination topic."""
    ends = counts.ends
    totals = (
        ("commit_messages_total", "Transactions committed.", ends[State.COMMITTED]),
        ("rollback_messages_total", "Transactions rolled back.", ends[State.ROLLED_BACK]),
        ("transaction_checks_total", "Checks sent to producers.", counts.checks),
        ("transaction_given_up_total", "Transactions given up after too many checks.",
         ends[State.GIVEN_UP]),
    )  # fmt: skip
    return [
        _family("half_messages", Kind.GAUGE, "Transactions that are open.",
                counts.open_by_topic(), base),
        *(_family(name, Kind.COUNTER, text, by_topic, base) for name, text, by_topic in totals),
    ]  # fmt: skip


def _family(
    name: str, kind: Kind, text: str, by_topic: Mapping[str, int], base: Mapping[str, str]
) -> Family:
    samples = [Sample({**base, "topic": topic}, count) for topic, count in by_topic.items()]
    return Family(f"rocketmq_{name}", kind, text, samples)


FILE_NAME: Final = "config/transactionMetrics"
_ENDS: Final = (State.COMMITTED, State.ROLLED_BACK, State.GIVEN_UP)


class TransactionCounts:
    """Counts of open half messages by destination topic, and of ends and checks since the start.

    Attributes:
        ends: transactions committed, rolled back and given up since the start, by topic.
        checks: checks sent since the start, by topic.
    """

    def __init__(self, file: SavedFile, offload: Offload, clock: Clock) -> None:
        """Continue the file's version; the counts are set from the half queue.

        Raises:
            CorruptRecordError: neither the file nor its backup parses.
        """
        text = file.load()
        self._version, self._open = (
            (DataVersion(), {}) if text is None else parse_transaction_counts(text)
        )
        self._clock = clock
        self._saver = ConfigSaver(file, self._take, offload)
        self.ends: dict[State, Counter[str]] = {how: Counter() for how in _ENDS}
        self.checks: Counter[str] = Counter()

    def of(self, topic: str) -> int:
        """Return the number of open half messages for the topic."""
        return self._open.get(topic, (0, 0))[0]

    def open_by_topic(self) -> dict[str, int]:
        """Return the number of open half messages by topic."""
        return {topic: count for topic, (count, _) in self._open.items()}

    def add(self, topic: str, count: int) -> None:
        """Add to the count of open half messages; negative for those that have ended."""
        before = self._open.get(topic)
        now_ms = self._clock.now_ms()
        self._open[topic] = (max(0, before[0] + count) if before else max(0, count), now_ms)
        self._saver.changed()

    def ended(self, topic: str, how: State, count: int = 1, *, open_before: int) -> None:
        """Count ended half messages for the topic; `open_before` of them were open until now."""
        self.ends[how][topic] += count
        if open_before:
            self.add(topic, -open_before)

    def set_all(self, counts: Mapping[str, int]) -> None:
        """Replace the counts of open half messages."""
        now_ms = self._clock.now_ms()
        for topic in {*self._open, *counts}:
            count = counts.get(topic, 0)
            if self.of(topic) != count or topic not in self._open:
                self._open[topic] = (count, now_ms)
                self._saver.changed()

    def keep(self, topics: Container[str]) -> None:
        """Drop deleted topics that have no open half message."""
        for topic in [name for name, (count, _) in self._open.items() if not count]:
            if topic not in topics:
                del self._open[topic]
                for counted in (*self.ends.values(), self.checks):
                    del counted[topic]
                self._saver.changed()

    async def persist(self) -> bool:
        """Write the file if something changed; see `ConfigSaver.save`.

        Raises:
            OSError: the file could not be written; it is as it was.
        """
        return await self._saver.save()

    def _take(self) -> TextParts:
        self._version = self._version.next(self._clock.now_ms())
        version = self._version
        content = {
            "dataVersion": {
                "counter": version.counter,
                "stateVersion": version.state_version,
                "timestamp": version.timestamp,
            },
            "transactionCount": {
                topic: {"count": count, "timeStamp": at_ms}
                for topic, (count, at_ms) in self._open.items()
            },
        }
        return (json.dumps(content, separators=(",", ":")).encode(),)


def parse_transaction_counts(text: bytes) -> tuple[DataVersion, dict[str, tuple[int, int]]]:
    """Decode the file: its version, and topic -> (count, time of the last change in ms).

    Raises:
        MalformedBodyError: it is not such a file.
    """
    content = as_object(loads(text), FILE_NAME)
    counts: dict[str, tuple[int, int]] = {}
    for topic, entry in get_object(content, "transactionCount").items():
        one = as_object(entry, topic)
        count, at_ms = one.get("count", 0), one.get("timeStamp", 0)
        counts[topic] = (as_integer(count, topic), as_integer(at_ms, topic))
    return from_json(DataVersion, content.get("dataVersion"), "dataVersion"), counts
