"""How many messages wait for a time, by topic, and how many came and went.

Source: TimerMetrics.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import Final

from kourou.broker.message_type import DELAY
from kourou.broker.put import PutResult
from kourou.broker.statistics.stats import BrokerStats
from kourou.clock import Clock
from kourou.protocol.bodies import DataVersion
from kourou.protocol.bodies_timer import TimerMetric, TimerMetrics
from kourou.store.timer.timer_record import TimerRecord

_SAMPLE_MS: Final = 1_000


class TimerCounts:
    """The counts of one broker.

    Attributes:
        came_count: messages put into the wheel since the start; `left_count`, taken out of it.
    """

    def __init__(self, stats: BrokerStats, clock: Clock) -> None:
        self._stats = stats
        self._clock = clock
        self._version = DataVersion()
        self._waiting: dict[str, TimerMetric] = {}
        self.came_count = 0
        self.left_count = 0
        self._sampled = clock.now_ms(), 0, 0
        self._rates = 0.0, 0.0

    def came(self, timer: TimerRecord) -> None:
        """Count a message that was put into the wheel."""
        self.came_count += 1
        if not timer.is_delete:
            self._add(timer.topic, 1)

    def left(self, topic: str) -> None:
        """Count one that is not delivered: it was taken back, or had been delivered."""
        self.left_count += 1
        self._add(topic, -1)

    def delivered(self, topic: str, result: PutResult) -> None:
        """Count one that was stored for its consumers, or again in the timer topic."""
        self.left(topic)
        if result.appended:
            first = result.appended[0]
            self._stats.on_put(first.topic, first.queue_id, DELAY, 1, first.size, 0)

    def _add(self, topic: str, count: int) -> None:
        now_ms = self._clock.now_ms()
        self._version = self._version.next(now_ms)
        old = self._waiting.get(topic)
        waiting = max(0, count if old is None else old.count + count)
        self._waiting[topic] = TimerMetric(waiting, now_ms)

    def rates(self) -> tuple[float, float]:
        """Return how many came and left a second, since this was asked a second ago or earlier."""
        now_ms = self._clock.now_ms()
        then_ms, came, left = self._sampled
        if now_ms - then_ms >= _SAMPLE_MS:
            seconds = (now_ms - then_ms) / 1000
            self._rates = (self.came_count - came) / seconds, (self.left_count - left) / seconds
            self._sampled = now_ms, self.came_count, self.left_count
        return self._rates

    def metrics(self) -> TimerMetrics:
        """Return the counts in the form of an answer."""
        return TimerMetrics(self._version, dict(self._waiting))
