"""Checkpoint of a pop: the messages of one queue that one pop made invisible. Pure.

Records may be odd. Old brokers wrote no differences: the messages have consecutive offsets. `n` may
be negative, or not the number of differences: the lower of both counts. The bits are those of a
32-bit integer, although `n` may be 127. If an offset is repeated, the bits are ignored: a message
that is delivered twice is better than one that is lost.

A slave that acts for its master sends its checkpoints and acks to a master of another broker name,
which revives them (`foreign_revivals.py`). A sent record has a property that no broker's own has.
So the checkpoints that a broker stored under an earlier name of its own are not taken for these.

Source: PopCheckPoint.java, PopReviveService.rePutCK, PopBufferMergeService, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from kourou.model.properties import CLUSTER
from kourou.protocol.popping.revive_records import AckRecord, CheckpointRecord, re_put_count

RE_PUT_AFTER_S: Final = (
    *(10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600),
    *(1200, 1800, 3600, 7200),
)
"""Delays before further attempts to revive a message, by the number of attempts."""

_TIMES_KEPT: Final = 16
_NO_STARTS: Final[set[str]] = set()
_BITS: Final = 32
_UNSIGNED: Final = (1 << _BITS) - 1
_SIGN: Final = 1 << (_BITS - 1)


class CheckpointKey(NamedTuple):
    """Identity of a checkpoint; acks have it too.

    Attributes:
        topic: the topic that holds the messages, which may be a retry topic.
        start_offset: offset from which the pop read, at most that of the first message.
        pop_time_ms: epoch milliseconds.
    """

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_time_ms: int
    broker_name: str


@dataclass(slots=True)
class PopCheckpoint:
    """Invisible messages, and which of them are acknowledged.

    Attributes:
        offsets: queue offsets of the messages: at most 32 of a pop, at most 127 of any record.
        bits: bit n is set if the n-th message is acknowledged.
        re_puts: number of checkpoints that this one replaces, because reviving failed.
        is_suspended: a revived message keeps its number of deliveries.
        log_end: end of the commit log at the pop; None in records of Java.
        is_foreign: the messages are another broker's, and `log_end` is of its log.
    """

    key: CheckpointKey
    offsets: tuple[int, ...]
    invisible_ms: int
    bits: int = 0
    re_puts: int = 0
    is_suspended: bool = False
    log_end: int | None = None
    is_foreign: bool = False

    @property
    def revive_at_ms(self) -> int:
        """Time at which the messages become visible again, in epoch milliseconds."""
        return self.key.pop_time_ms + self.invisible_ms

    @property
    def is_acknowledged(self) -> bool:
        """Whether all messages are acknowledged."""
        return self.bits == (1 << len(self.offsets)) - 1

    def unacked(self) -> list[int]:
        """Return the offsets of the messages that are not acknowledged."""
        bits = self.bits
        if not bits:
            return list(self.offsets)
        return [offset for index, offset in enumerate(self.offsets) if not bits >> index & 1]

    def ack(self, offset: int) -> bool:
        """Acknowledge a message; return False if it was acknowledged before, or is no message."""
        bit = self._bit(offset)
        if not bit or self.bits & bit:
            return False
        self.bits |= bit
        return True

    def ack_all(self, offsets: Iterable[int]) -> None:
        """Acknowledge messages; other offsets are ignored."""
        acked = frozenset(offsets)
        bit = 1
        for offset in self.offsets:
            if offset in acked:
                self.bits |= bit
            bit <<= 1

    def without(self, offsets: Collection[int]) -> PopCheckpoint:
        """Return the checkpoint of the other messages."""
        others = PopCheckpoint(
            self.key,
            tuple([offset for offset in self.offsets if offset not in offsets]),
            self.invisible_ms,
            0,
            self.re_puts,
            self.is_suspended,
            self.log_end,
            self.is_foreign,
        )
        others.ack_all(set(self.offsets).difference(self.unacked()))
        return others

    def covers(self, position: int) -> bool:
        """Return whether a message at this position of the commit log may be one of the pop's.

        Offsets are used again if a topic is deleted and created again: what is then at an offset
        was stored after the pop. Positions show that even if the clock was set back.
        """
        return self.log_end is None or position < self.log_end

    def record(self) -> CheckpointRecord:
        """Return the checkpoint as it is stored."""
        key, bits = self.key, self.bits & _UNSIGNED
        start = key.start_offset
        return CheckpointRecord(
            key.topic,
            key.group,
            key.queue_id,
            start,
            tuple([offset - start for offset in self.offsets]),
            len(self.offsets),
            key.pop_time_ms,
            self.invisible_ms,
            key.broker_name,
            bits - (1 << _BITS) if bits & _SIGN else bits,
            str(self.re_puts) if self.re_puts else None,
            self.is_suspended,
        )

    def re_put(self, offset: int, now_ms: int) -> PopCheckpoint:
        """Return the checkpoint of one message that could not be revived, to revive it later.

        Its invisible time ends after the next of `RE_PUT_AFTER_S`. (In Java it is counted from the
        end of the last one, so that attempts follow each other at once after a long downtime.)
        """
        invisible_ms = self.invisible_ms
        if self.revive_at_ms <= now_ms:
            delay_s = RE_PUT_AFTER_S[min(self.re_puts, len(RE_PUT_AFTER_S) - 1)]
            invisible_ms = now_ms - self.key.pop_time_ms + delay_s * 1000
        return PopCheckpoint(
            self.key._replace(start_offset=offset),
            (offset,),
            invisible_ms,
            re_puts=self.re_puts + 1,
            is_suspended=self.is_suspended,
            log_end=self.log_end,
            is_foreign=self.is_foreign,
        )

    def _bit(self, offset: int) -> int:
        """Return the bit of a message; 0 if the offset is none of the checkpoint's."""
        offsets = self.offsets
        index = offset - self.key.start_offset  # of a message that no filter precedes
        if 0 <= index < len(offsets) and offsets[index] == offset:
            return 1 << index
        return 1 << offsets.index(offset) if offset in offsets else 0


def is_relayed(properties: Mapping[str, str]) -> bool:
    """Return whether a record of the revive topic was sent, which only other brokers may do."""
    return CLUSTER in properties


def checkpoint_of(
    record: CheckpointRecord,
    broker_name: str,
    log_end: int | None = None,
    *,
    relayed: bool = False,
) -> PopCheckpoint:
    """Return the checkpoint of a record.

    Args:
        record: the body of the record.
        broker_name: of the broker that reads it; a blank name in the record counts as that.
        log_end: see `PopCheckpoint`.
        relayed: whether the record was sent; see `is_relayed`.
    """
    count = max(record.count, 0)
    start, bits = record.start_offset, record.bits
    if record.diffs:
        offsets = tuple([start + diff for diff in record.diffs[:count]])
        if len(frozenset(offsets)) < len(offsets):
            offsets, bits = tuple(dict.fromkeys(offsets)), 0
    else:
        offsets = tuple(range(start, start + count))
    name = _or_own(record.broker_name, broker_name)
    return PopCheckpoint(
        CheckpointKey(
            record.topic,
            record.group,
            record.queue_id,
            start,
            record.pop_time_ms,
            name,
        ),
        offsets,
        record.invisible_ms,
        bits & _UNSIGNED & (1 << len(offsets)) - 1,
        re_put_count(record),
        record.is_suspended,
        log_end,
        relayed and name != broker_name,
    )


def key_of_ack(record: AckRecord, broker_name: str) -> CheckpointKey:
    """Return the key of the ack's checkpoint; a blank broker name counts as `broker_name`."""
    return CheckpointKey(
        record.topic,
        record.group,
        record.queue_id,
        record.start_offset,
        record.pop_time_ms,
        _or_own(record.broker_name, broker_name),
    )


def _or_own(name: str | None, own: str) -> str:
    return own if name is None or name == "" or name.isspace() else name


class PopTimes:
    """Pop times that make checkpoints distinct, also for Java.

    Java joins the parts of a checkpoint's key without separator: queue 1 with offset 11 and queue
    11 with offset 1 have the same key if they were popped in the same millisecond. The later one
    gets the next millisecond. The same holds for a message whose invisible time is changed in the
    millisecond of its pop.
    """

    def __init__(self) -> None:
        self._starts_by_time: dict[int, set[str]] = {}

    def take(self, starts: Collection[str], now_ms: int) -> int:
        """Return the time of a pop or of a change: `now_ms`, or the next that is free.

        Args:
            starts: `start_text` of each checkpoint.
            now_ms: the time.
        """
        by_time = self._starts_by_time
        while not by_time.get(now_ms, _NO_STARTS).isdisjoint(starts):
            now_ms += 1
        by_time.setdefault(now_ms, set()).update(starts)
        if len(by_time) > _TIMES_KEPT:
            del by_time[next(iter(by_time))]
        return now_ms


def start_text(topic: str, group: str, queue_id: int, offset: int) -> str:
    """Return the text of a checkpoint's start in its key, as Java's broker joins it."""
    return f"{topic}{group}{queue_id}{offset}"
