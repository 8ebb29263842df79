"""Consumption statistics by topic over the last minute and the last hour; pure.

Counters only grow. Samples are taken every 10 s; the last seven span a minute. Every 10 min a
sample is kept for the hour; the last seven of these span an hour. Rates are differences between the
ends of such a window.

Source: ConsumerStatsManager.java, StatsItem.java.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

SAMPLE_INTERVAL_MS: Final = 10_000
"""Time in ms between two samples."""

_POINTS: Final = 7
_HOUR_SAMPLE_EVERY: Final = 60
"""Every this many samples, one is kept for the hour, too."""


@dataclass(frozen=True, slots=True)
class TopicStats:
    """Statistics of a topic for the last minute, unless stated otherwise.

    Attributes:
        consume_ok_tps: messages a second whose listeners returned.
        consume_failed_tps: messages a second whose listeners raised.
        consume_rt_ms: mean time of a listener call in ms; of the last hour if the minute had no
            calls.
        pull_tps: messages pulled a second.
        pull_rt_ms: mean time in ms of a pull that found messages.
        consume_failed_messages: messages of the last hour whose listeners raised.
    """

    consume_ok_tps: float = 0.0
    consume_failed_tps: float = 0.0
    consume_rt_ms: float = 0.0
    pull_tps: float = 0.0
    pull_rt_ms: float = 0.0
    consume_failed_messages: int = 0


class TopicCounts(NamedTuple):
    """Counters of a topic since the start of counting.

    Attributes:
        ok: messages whose listeners returned.
        failed: messages whose listeners raised.
        calls: listener calls.
        call_ms: total time of the calls in ms.
        pulled: messages pulled.
        pulls: pulls that found messages.
        pull_ms: total time of these pulls in ms.
    """

    ok: int = 0
    failed: int = 0
    calls: int = 0
    call_ms: float = 0.0
    pulled: int = 0
    pulls: int = 0
    pull_ms: float = 0.0


class _Topic:
    """The counters of one topic. Mutable: replacing a tuple would cost more than a listener."""

    __slots__ = (
        "call_ms",
        "calls",
        "failed",
        "hour",
        "minute",
        "ok",
        "pull_ms",
        "pulled",
        "pulls",
    )

    def __init__(self) -> None:
        self.ok = self.failed = self.calls = self.pulled = self.pulls = 0
        self.call_ms = self.pull_ms = 0.0
        self.minute: deque[tuple[int, TopicCounts]] = deque(maxlen=_POINTS)
        self.hour: deque[tuple[int, TopicCounts]] = deque(maxlen=_POINTS)

    @property
    def counts(self) -> TopicCounts:
        """A snapshot of the counters."""
        return TopicCounts(
            self.ok,
            self.failed,
            self.calls,
            self.call_ms,
            self.pulled,
            self.pulls,
            self.pull_ms,
        )


class ConsumerStats:
    """The counters of one consumer, by topic.

    Args:
        now_ms: start of counting, in milliseconds of any clock; `sample` must use the same clock.
    """

    def __init__(self, now_ms: int = 0) -> None:
        self._began_ms = now_ms
        self._topics: dict[str, _Topic] = {}
        self._samples = 0

    def count_consumed(
        self, topic: str, messages: int, elapsed_ms: float, *, is_ok: bool, calls: int = 1
    ) -> None:
        """Count listener calls with the same outcome, which took `elapsed_ms` in total."""
        entry = self._topics.get(topic) or self._entry(topic)
        if is_ok:
            entry.ok += messages
        else:
            entry.failed += messages
        entry.calls += calls
        entry.call_ms += elapsed_ms

    def count_pulled(self, topic: str, messages: int, elapsed_ms: float) -> None:
        """Count one pull that found messages."""
        entry = self._entry(topic)
        entry.pulled += messages
        entry.pulls += 1
        entry.pull_ms += elapsed_ms

    def sample(self, now_ms: int) -> None:
        """Record a sample of all counters; to be called every `SAMPLE_INTERVAL_MS`."""
        self._samples += 1
        for topic in self._topics.values():
            topic.minute.append((now_ms, topic.counts))
            if self._samples % _HOUR_SAMPLE_EVERY == 0:
                topic.hour.append((now_ms, topic.counts))

    def topic(self, topic: str) -> TopicStats:
        """Return the statistics of one topic; all 0 for an unknown topic."""
        entry = self._topics.get(topic)
        if entry is None:
            return TopicStats()
        minute, seconds = _growth(entry.minute)
        # Before the second hourly sample, all counts are from the last hour.
        hour = _growth(entry.hour)[0] if len(entry.hour) > 1 else entry.counts
        rate = 1 / seconds if seconds else 0.0
        calls = minute if minute.calls else hour
        return TopicStats(
            consume_ok_tps=minute.ok * rate,
            consume_failed_tps=minute.failed * rate,
            consume_rt_ms=calls.call_ms / calls.calls if calls.calls else 0.0,
            pull_tps=minute.pulled * rate,
            pull_rt_ms=minute.pull_ms / minute.pulls if minute.pulls else 0.0,
            consume_failed_messages=hour.failed,
        )

    def counts(self, topic: str) -> TopicCounts:
        """Return the counters of one topic; all 0 for an unknown topic."""
        entry = self._topics.get(topic)
        return TopicCounts() if entry is None else entry.counts

    def all_topics(self) -> dict[str, TopicStats]:
        """Return the statistics of all topics, sorted by name."""
        return {topic: self.topic(topic) for topic in sorted(self._topics)}

    def _entry(self, topic: str) -> _Topic:
        entry = self._topics.get(topic)
        if entry is None:
            entry = self._topics[topic] = _Topic()
            entry.minute.append((self._began_ms, entry.counts))
            entry.hour.append((self._began_ms, entry.counts))
        return entry


def _growth(points: deque[tuple[int, TopicCounts]]) -> tuple[TopicCounts, float]:
    """Return the counts between the ends of a window, and the window's length in seconds."""
    (began_ms, first), (ended_ms, last) = points[0], points[-1]
    grown = TopicCounts(
        last.ok - first.ok,
        last.failed - first.failed,
        last.calls - first.calls,
        last.call_ms - first.call_ms,
        last.pulled - first.pulled,
        last.pulls - first.pulls,
        last.pull_ms - first.pull_ms,
    )
    return grown, (ended_ms - began_ms) / 1000
