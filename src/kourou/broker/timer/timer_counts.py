"""Counts of scheduled messages: waiting, by topic, and put into and taken out of the wheel.

As in Java, the waiting messages are saved in `config/timermetrics`. After a kill, and after Java,
whose counts drift, they are counted again if that is quick (`count_by_topic`).

Source: TimerMetrics.java, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from kourou.broker.config_saver import ConfigSaver, SavedFile
from kourou.broker.context import BrokerContext
from kourou.broker.message_type import DELAY
from kourou.broker.writing.put import PutResult
from kourou.errors import CorruptRecordError
from kourou.protocol.brokers import TimerMetric, TimerMetrics
from kourou.protocol.data_version import DataVersion
from kourou.protocol.json_records import decode_record, encode_record
from kourou.remoting.steady_time import steady_ms
from kourou.store.timer.layouts import KIND_DELETE
from kourou.store.timer.timer_files import TimerFiles
from kourou.store.timer.timer_record import TimerRecord

log = logging.getLogger(__name__)

FILE_NAME: Final = "config/timermetrics"
_SAMPLE_MS: Final = 1_000

COUNTED_MAX: Final = 200_000
"""Messages above which a start does not count: it would take longer than half a second."""

TopicOf = Callable[[int], str | None]
"""Returns the target topic of the timer record at a commit log position; None if unknown."""


class TimerCounts:
    """The counts of one broker.

    Attributes:
        enqueued_count: messages put into the wheel since the start.
        dequeued_count: messages taken out of the wheel since the start.
    """

    def __init__(self, context: BrokerContext, file: SavedFile) -> None:
        self._stats = context.stats
        self._clock = context.clock
        self._file = file
        self._saver = ConfigSaver(file, lambda: (encode_record(self.metrics()),), context.offload)
        self._version = DataVersion()
        self._changes = 0  # since that version
        self._changed_at_ms = 0
        self._waiting: dict[str, tuple[int, int]] = {}  # -> how many, when that changed
        self.enqueued_count = 0
        self.dequeued_count = 0
        self._sampled = steady_ms(), 0, 0
        self._rates = 0.0, 0.0

    def load(self) -> None:
        """Load the file; an invalid file is logged and ignored.

        Raises:
            OSError: it cannot be read.
        """
        try:
            text = self._file.load()
        except CorruptRecordError as error:
            log.warning("timer_counts.lost reason=%s", error)
            text = None
        if text is not None:
            found = parse_timer_metrics(text)
            self._version = found.data_version or self._version
            self._waiting = {
                topic: (one.count, one.time_stamp)
                for topic, one in found.timing_count.items()
                if one.count > 0
            }

    def set_all(self, counts: Mapping[str, int]) -> None:
        """Replace the counts by those from the timer's files."""
        if {topic: count for topic, (count, _) in self._waiting.items()} == counts:
            return
        self._changed_at_ms = self._clock.now_ms()
        self._waiting = {topic: (count, self._changed_at_ms) for topic, count in counts.items()}
        self._changes += 1
        self._saver.changed()

    def follow(self, metrics: TimerMetrics) -> None:
        """Take the counts of the master."""
        counts = {
            topic: (one.count, one.time_stamp)
            for topic, one in metrics.timing_count.items()
            if one.count > 0
        }
        if counts != self._waiting:
            self._waiting = counts
            self._version, self._changes = metrics.data_version or self._version, 0
            self._saver.changed()

    async def persist(self) -> None:
        """Write the file if something changed.

        Raises:
            OSError: it could not be written; it is as it was.
        """
        await self._saver.save()

    def enqueued(self, timer: TimerRecord) -> None:
        """Count a message that was put into the wheel."""
        self.enqueued_count += 1
        if timer.counted_topic is not None:
            self._add(timer.counted_topic, 1)

    def enqueued_all(self, topic: str, count: int) -> None:
        """Count messages for a topic that were put into the wheel."""
        self.enqueued_count += count
        self._add(topic, count)

    def dropped(self, topic: str, count: int) -> None:
        """Count messages for a topic that were taken out of the wheel and not delivered."""
        self.dequeued_count += count
        self._add(topic, -count)

    def dequeued(self, topic: str | None) -> None:
        """Count a message that is not delivered: it was recalled, or had been delivered before.

        Args:
            topic: destination topic; None for a recall.
        """
        self.dequeued_count += 1
        if topic is not None:
            self._add(topic, -1)

    def delivered(self, topic: str | None, result: PutResult) -> None:
        """Count a message delivered, or stored again in the timer topic; see `dequeued`."""
        self.dequeued(topic)
        if result.appended:
            first = result.appended[0]
            self._stats.on_put(first.topic, first.queue_id, DELAY, 1, first.size, 0)

    def _add(self, topic: str, count: int) -> None:
        self._changed_at_ms = now_ms = self._clock.now_ms()
        self._changes += 1
        waiting = self._waiting.get(topic, (0, 0))[0] + count
        self._waiting[topic] = (max(0, waiting), now_ms)
        self._saver.changed()

    def rates(self) -> tuple[float, float]:
        """Return the messages put into and taken out of the wheel a second.

        The rates are computed over the time between two calls a second or more apart.
        """
        now_ms = steady_ms()
        then_ms, enqueued, dequeued = self._sampled
        if now_ms - then_ms >= _SAMPLE_MS:
            seconds = (now_ms - then_ms) / 1000
            self._rates = (
                (self.enqueued_count - enqueued) / seconds,
                (self.dequeued_count - dequeued) / seconds,
            )
            self._sampled = now_ms, self.enqueued_count, self.dequeued_count
        return self._rates

    def metrics(self) -> TimerMetrics:
        """Return the counts in the form of the file and of the answer to 61."""
        version = self._version
        if self._changes:
            counter = version.counter + self._changes
            version = DataVersion(counter, version.state_version, self._changed_at_ms)
        return TimerMetrics(
            version, {topic: TimerMetric(*one) for topic, one in self._waiting.items()}
        )


def parse_timer_metrics(text: bytes) -> TimerMetrics:
    """Decode the file.

    Raises:
        MalformedBodyError: it is not such a file.
    """
    return decode_record(TimerMetrics, text)


def count_by_topic(files: TimerFiles, topic_of: TopicOf) -> dict[str, int] | None:
    """Return the number of scheduled messages by topic, including recalled ones.

    None if there are more than `COUNTED_MAX`. Units have only the hash of the topic: topics with
    equal hashes are counted as one.

    Raises:
        OSError: the timer log cannot be read.
    """
    if files.wheel.count > COUNTED_MAX:
        return None
    names: dict[int, str | None] = {}
    counts: Counter[str] = Counter()
    for slot in files.wheel.slots():
        with suppress(CorruptRecordError):  # reported when the slot is due
            for _, unit in files.log.chain(slot.last):
                if unit.kind & KIND_DELETE:
                    continue
                name = names.get(unit.topic_hash)
                if name is None:
                    name = names[unit.topic_hash] = topic_of(unit.physical_offset)
                    if not unit.topic_hash:
                        del names[0]  # hash 0 means absent: other topics' units have it too
                if name is not None:
                    counts[name] += 1
    return dict(counts)
