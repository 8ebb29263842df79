"""Messages in flight: popped, invisible, and not acknowledged. Pure.

All live checkpoints of a broker are here, so that an ack, a change or a timer's delivery is decided
without the log. A checkpoint is live until it is settled: each message is acknowledged, revived or
in another checkpoint.

Order of calls
--------------
A pop calls `add` before it puts the checkpoint, because one with a short invisible time is
delivered at once; and `settle` if the put fails. An ack calls `ack` when its record is stored: the
checkpoint is needed until then. A change calls `change` before it puts the new checkpoint and the
ack, and then `change_stored` or `change_failed`. A revival calls `revive` when the messages are
stored again. After a start, all checkpoints that are not handled are added, then their acks are
applied, and those that were stored meanwhile (`apply_unknown_acks`).

Memory
------
A million checkpoints of a message each are common. Each is an entry of a dictionary of integers,
which the garbage collector does not examine:

    key      pop time << 64 | start offset
    value    bits of the messages in flight << 88 | position of the record << 40 | invisible time

The position is that of the checkpoint's record in the log, 0 if it is not known. Bit n stands for
the message at start offset + n. A filter examines few enough messages for that; in records of Java,
a difference may be larger: then the value is a tuple of the integer and the differences, and bit n
stands for the n-th of them. The key is a tuple if the broker had another name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint

DENSE_DIFF_MAX: Final = 1_023
"""Largest difference of an offset from the start offset that is a bit. (A filtered read examines at
most 800 messages.)"""

SKIPPED_MAX: Final = 200_000
"""Limit of checkpoints whose acks are skipped; acks of the earliest are delivered in vain."""

_INVISIBLE_BITS: Final = 40
_INVISIBLE: Final = (1 << _INVISIBLE_BITS) - 1
_POSITION_BITS: Final = 48
_POSITION: Final = (1 << _POSITION_BITS) - 1
_BITS_AT: Final = _INVISIBLE_BITS + _POSITION_BITS
_OFFSET_BITS: Final = 64
_OFFSET: Final = (1 << _OFFSET_BITS) - 1

_EntryKey = int | tuple[int, int, str]
_Value = int | tuple[int, tuple[int, ...]]


class Acked(Enum):
    """Outcome of an ack or a change.

    NEWLY: the message was in flight.
    ALREADY: the checkpoint is live, but the message is acknowledged, about to be changed, or no
        message of the checkpoint.
    UNKNOWN: the checkpoint is settled, or never existed.
    """

    NEWLY = 0
    ALREADY = 1
    UNKNOWN = 2


@dataclass(slots=True)
class _Queue:
    """Live checkpoints of a group in a queue, and the number of messages in flight."""

    entries: dict[_EntryKey, _Value] = field(default_factory=dict)
    count: int = 0


class InFlight:
    """Live checkpoints of a broker."""

    def __init__(self, broker_name: str) -> None:
        """Start empty.

        Args:
            broker_name: the broker's; checkpoints with another name use more memory.
        """
        self._broker_name = broker_name
        self._queues: dict[tuple[str, str, int], _Queue] = {}
        self._changing: set[tuple[CheckpointKey, int]] = set()
        self.checkpoint_count = 0
        """Number of live checkpoints."""
        self.message_count = 0
        """Number of messages in flight."""
        self._unknown_acks: list[tuple[CheckpointKey, tuple[int, ...]]] | None = []

    def add(self, checkpoint: PopCheckpoint) -> None:
        """Add a checkpoint with the messages that are not acknowledged.

        A checkpoint that was added before keeps its invisible time and gets the new messages.
        """
        key, offsets = checkpoint.key, checkpoint.unacked()
        if not offsets:
            return
        queue = self._queues.get(key[:3])
        if queue is None:
            queue = self._queues[key[:3]] = _Queue()
        entry = self._entry_key(key)
        if entry in queue.entries:
            checkpoint = self._joined(checkpoint)
            self.settle(key)
            self.add(checkpoint)
            return
        start = key.start_offset
        diffs = [offset - start for offset in offsets]
        invisible = max(0, min(checkpoint.invisible_ms, _INVISIBLE))
        if min(diffs) >= 0 and max(diffs) <= DENSE_DIFF_MAX:
            bits = 0
            for diff in diffs:
                bits |= 1 << diff
            queue.entries[entry] = bits << _BITS_AT | invisible
        else:
            bits = (1 << len(diffs)) - 1
            queue.entries[entry] = bits << _BITS_AT | invisible, tuple(diffs)
        queue.count += len(diffs)
        self.message_count += len(diffs)
        self.checkpoint_count += 1

    def add_consecutive(self, key: CheckpointKey, count: int, invisible_ms: int) -> None:
        """Add a checkpoint whose messages are the first `count` from its start offset on."""
        name = key[:3]
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = _Queue()
        entry = self._entry_key(key)
        if entry in queue.entries or not 0 < count <= DENSE_DIFF_MAX:
            offsets = tuple(range(key[3], key[3] + count))
            self.add(PopCheckpoint(key, offsets, invisible_ms))
            return
        invisible = max(0, min(invisible_ms, _INVISIBLE))
        queue.entries[entry] = (1 << count) - 1 << _BITS_AT | invisible
        queue.count += count
        self.message_count += count
        self.checkpoint_count += 1

    def set_position(self, key: CheckpointKey, position: int) -> None:
        """Set the log position of the record of a live checkpoint; 0 if it is not known."""
        queue = self._queues.get(key[:3])
        entry = self._entry_key(key)
        value = None if queue is None else queue.entries.get(entry)
        if queue is not None and isinstance(value, int) and position <= _POSITION:
            cleared = value & ~(_POSITION << _INVISIBLE_BITS)
            queue.entries[entry] = cleared | position << _INVISIBLE_BITS

    def position_of(self, key: CheckpointKey) -> int:
        """Return the log position of the record of a live checkpoint; 0 if it is not known."""
        value = self._value(key)
        return value >> _INVISIBLE_BITS & _POSITION if isinstance(value, int) else 0

    def ack_bits(self, key: CheckpointKey, bits: int) -> int | None:
        """Acknowledge messages whose acks are stored, as `ack_all`; bit n: start offset + n.

        Returns:
            The position of the checkpoint's record if the last message was acknowledged, 0 if it is
            not known; None if messages are left, or the checkpoint is not live.
        """
        queue = self._queues.get(key[:3])
        entry = self._entry_key(key)
        value = None if queue is None else queue.entries.get(entry)
        if queue is None or value is None:
            if self._unknown_acks is not None:
                self._unknown_acks.append((key, tuple(offsets_of(bits, key[3]))))
            return None
        if not isinstance(value, int):
            self.ack_all(key, offsets_of(bits, key[3]))
            return None if self.is_live(key) else 0
        acked = value & bits << _BITS_AT
        if self._changing:
            acked &= ~self._changing_bits(key, value)
        if not acked:
            return None
        self._clear(queue, key, entry, value, acked)
        is_settled = not (value ^ acked) >> _BITS_AT
        return value >> _INVISIBLE_BITS & _POSITION if is_settled else None

    def in_flight_bits(self, key: CheckpointKey) -> tuple[int, int] | None:
        """Return bits of the messages in flight, and the time of their revival.

        None if it is not live, or is changed at present, or its messages are no bits.
        """
        if self._changing:
            return None
        queue = self._queues.get(key[:3])
        value = None if queue is None else queue.entries.get(self._entry_key(key))
        if not isinstance(value, int):
            return None
        return value >> _BITS_AT, key[4] + (value & _INVISIBLE)

    def ack(self, key: CheckpointKey, offset: int) -> Acked:
        """Acknowledge a message whose ack is stored."""
        queue = self._queues.get(key[:3])
        entry = self._entry_key(key)
        value = None if queue is None else queue.entries.get(entry)
        if queue is None or value is None:
            return Acked.UNKNOWN
        bit = _bit(value, offset - key.start_offset)
        if not _packed(value) & bit or self._is_changing(key, offset):
            return Acked.ALREADY
        self._clear(queue, key, entry, value, bit)
        return Acked.NEWLY

    def apply_unknown_acks(self) -> None:
        """Apply the acks whose checkpoints were not known; from now on all checkpoints are."""
        acks, self._unknown_acks = self._unknown_acks or (), None
        for key, offsets in acks:
            self.ack_all(key, offsets)

    def ack_all(self, key: CheckpointKey, offsets: Sequence[int]) -> list[int]:
        """Acknowledge messages whose acks are stored; return those that were in flight.

        Until `apply_unknown_acks`, acks of checkpoints that are not known yet are kept.
        """
        queue = self._queues.get(key[:3])
        entry = self._entry_key(key)
        value = None if queue is None else queue.entries.get(entry)
        if queue is None or value is None:
            if self._unknown_acks is not None:
                self._unknown_acks.append((key, tuple(offsets)))
            return []
        start = key.start_offset
        size = value.bit_length() if isinstance(value, int) else 0
        wanted = 0
        for offset in offsets:
            diff = offset - start + _BITS_AT
            if _BITS_AT <= diff < size:
                wanted |= 1 << diff
            elif not size:
                wanted |= _bit(value, offset - start)
        bits = _packed(value) & wanted
        if self._changing:
            bits &= ~self._changing_bits(key, value)
        if not bits:
            return []
        self._clear(queue, key, entry, value, bits)
        if bits.bit_count() == len(offsets):
            return list(offsets)
        return _offsets(bits if isinstance(value, int) else (bits, value[1]), start)

    def change(self, key: CheckpointKey, offset: int, changed: PopCheckpoint) -> Acked:
        """Begin to change the invisible time of a message; add its new checkpoint if NEWLY.

        Until `change_stored` or `change_failed`, further acks and changes of `key` get ALREADY.
        """
        if not self.is_live(key):
            return Acked.UNKNOWN
        if not self.is_in_flight(key, offset):
            return Acked.ALREADY
        self._changing.add((key, offset))
        self.add(changed)
        return Acked.NEWLY

    def change_stored(self, key: CheckpointKey, offset: int) -> None:
        """Acknowledge the message in its old checkpoint: that and the new one are stored."""
        self._changing.discard((key, offset))
        self.ack(key, offset)

    def change_failed(self, key: CheckpointKey, offset: int, changed: CheckpointKey) -> None:
        """Remove the new checkpoint, which could not be stored."""
        self._changing.discard((key, offset))
        self.settle(changed)

    def settle(self, key: CheckpointKey) -> int:
        """Remove a checkpoint, and return the number of its messages in flight."""
        queue = self._queues.get(key[:3])
        value = None if queue is None else queue.entries.pop(self._entry_key(key), None)
        if queue is None or value is None:
            return 0
        count = (_packed(value) >> _BITS_AT).bit_count()
        self.checkpoint_count -= 1
        self._subtract(queue, key[:3], count)
        return count

    def revive(
        self, key: CheckpointKey, offsets: Sequence[int], later: Iterable[PopCheckpoint] = ()
    ) -> None:
        """Remove messages that are revived, or in later checkpoints, which are added.

        A later checkpoint may have the same key.
        """
        left = [offset for offset in self.unacked(key) if offset not in offsets]
        revive_at_ms = self.revive_at_ms(key)
        self.settle(key)
        if revive_at_ms is not None and left:
            self.add(PopCheckpoint(key, tuple(left), revive_at_ms - key.pop_time_ms))
        for checkpoint in later:
            self.add(checkpoint)

    def is_live(self, key: CheckpointKey) -> bool:
        """Return whether a message of the checkpoint is in flight."""
        queue = self._queues.get(key[:3])
        return queue is not None and self._entry_key(key) in queue.entries

    def is_in_flight(self, key: CheckpointKey, offset: int) -> bool:
        """Return whether the message is neither acknowledged nor about to be changed."""
        value = self._value(key)
        if value is None or not _packed(value) & _bit(value, offset - key.start_offset):
            return False
        return not self._is_changing(key, offset)

    def unacked(self, key: CheckpointKey) -> list[int]:
        """Return the offsets of the checkpoint's messages in flight."""
        value = self._value(key)
        return [] if value is None else _offsets(value, key.start_offset)

    def revive_at_ms(self, key: CheckpointKey) -> int | None:
        """Return the time at which the messages become visible; None if it is not live."""
        value = self._value(key)
        return None if value is None else key.pop_time_ms + (_packed(value) & _INVISIBLE)

    def count(self, topic: str, group: str, queue_id: int) -> int:
        """Return the number of messages in flight of a group in a queue."""
        queue = self._queues.get((topic, group, queue_id))
        return 0 if queue is None else queue.count

    def counts(self) -> dict[tuple[str, str, int], int]:
        """Return the number of messages in flight by topic, group and queue."""
        return {name: queue.count for name, queue in self._queues.items()}

    def checkpoints(
        self, topic: str, group: str, queue_id: int, offsets: range | None = None
    ) -> Iterator[tuple[CheckpointKey, int, list[int]]]:
        """Yield live checkpoints with the time of their revival and offsets in flight.

        Checkpoints may be added and removed meanwhile. If `offsets` are given, those that have no
        message at any of them may be left out.
        """
        queue = self._queues.get((topic, group, queue_id))
        for entry in list(queue.entries) if queue is not None else ():
            assert queue is not None
            value = queue.entries.get(entry)
            if value is None:
                continue
            pop_time_ms, start, broker = self._parts(entry)
            if (
                offsets is not None
                and isinstance(value, int)
                and not offsets.start - DENSE_DIFF_MAX <= start < offsets.stop
            ):
                continue
            key = CheckpointKey(topic, group, queue_id, start, pop_time_ms, broker)
            yield key, pop_time_ms + (_packed(value) & _INVISIBLE), _offsets(value, start)

    def forget(
        self, topic: str | None = None, group: str | None = None, queue_id: int | None = None
    ) -> int:
        """Remove checkpoints of a topic, of a group, or of both, or of one queue.

        Called when it is deleted: what is in flight of it is neither acknowledged nor revived any
        more. Returns the number of these messages.
        """
        wanted = (topic, group, queue_id)
        found = [
            name
            for name in self._queues
            if all(one is None or one == part for one, part in zip(wanted, name, strict=True))
        ]
        count = 0
        for name in found:
            queue = self._queues.pop(name)
            count += queue.count
            self.checkpoint_count -= len(queue.entries)
        self.message_count -= count
        return count

    def _joined(self, checkpoint: PopCheckpoint) -> PopCheckpoint:
        """Return the checkpoint with the messages in flight of the live one of its key."""
        key = checkpoint.key
        offsets = tuple(sorted({*checkpoint.unacked(), *self.unacked(key)}))
        revive_at_ms = self.revive_at_ms(key)
        assert revive_at_ms is not None, "it is live"
        return PopCheckpoint(key, offsets, revive_at_ms - key.pop_time_ms)

    def _entry_key(self, key: CheckpointKey) -> _EntryKey:
        if key[5] == self._broker_name:
            return key[4] << _OFFSET_BITS | key[3] & _OFFSET
        return key[4], key[3], key[5]

    def _parts(self, entry: _EntryKey) -> tuple[int, int, str]:
        """Return pop time, start offset and broker name of an entry."""
        if isinstance(entry, tuple):
            return entry
        start = entry & _OFFSET
        if start >> (_OFFSET_BITS - 1):
            start -= 1 << _OFFSET_BITS
        return entry >> _OFFSET_BITS, start, self._broker_name

    def _value(self, key: CheckpointKey) -> _Value | None:
        queue = self._queues.get(key[:3])
        return None if queue is None else queue.entries.get(self._entry_key(key))

    def has_changing(self, key: CheckpointKey) -> bool:
        """Return whether a message of the checkpoint is about to be changed."""
        return any(other == key for other, _ in self._changing)

    def _is_changing(self, key: CheckpointKey, offset: int) -> bool:
        return bool(self._changing) and (key, offset) in self._changing

    def _changing_bits(self, key: CheckpointKey, value: _Value) -> int:
        bits = 0
        for other, offset in self._changing:
            if other == key:
                bits |= _bit(value, offset - key.start_offset)
        return bits

    def _clear(
        self, queue: _Queue, key: CheckpointKey, entry: _EntryKey, value: _Value, bits: int
    ) -> None:
        """Clear bits that are set, and remove the checkpoint with its last one."""
        packed = _packed(value) ^ bits
        if not packed >> _BITS_AT:
            del queue.entries[entry]
            self.checkpoint_count -= 1
        elif isinstance(value, int):
            queue.entries[entry] = packed
        else:
            queue.entries[entry] = packed, value[1]
        self._subtract(queue, key[:3], bits.bit_count())

    def _subtract(self, queue: _Queue, name: tuple[str, str, int], count: int) -> None:
        queue.count -= count
        self.message_count -= count
        if not queue.entries:
            del self._queues[name]


def offsets_of(bits: int, start: int) -> list[int]:
    """Return the offsets whose bits are set; bit n stands for `start` + n."""
    if not bits & (bits + 1):
        return list(range(start, start + bits.bit_length()))
    return [start + diff for diff in range(bits.bit_length()) if bits >> diff & 1]


def _packed(value: _Value) -> int:
    return value if isinstance(value, int) else value[0]


def _bit(value: _Value, diff: int) -> int:
    """Return the bit of a difference from the start offset; 0 if no message has it."""
    if not isinstance(value, int):
        return 1 << value[1].index(diff) + _BITS_AT if diff in value[1] else 0
    if 0 <= diff < value.bit_length() - _BITS_AT:
        return 1 << diff + _BITS_AT
    return 0


def _offsets(value: _Value, start: int) -> list[int]:
    """Return the offsets whose bits are set."""
    bits = _packed(value) >> _BITS_AT
    diffs = range(bits.bit_length()) if isinstance(value, int) else value[1]
    return [start + diff for index, diff in enumerate(diffs) if bits >> index & 1]


class DueCopies:
    """Decides which due revive records the timer needs to deliver.

    A checkpoint whose messages are all acknowledged needs no copy in the revive queue when it is
    due, and then its acks need none either. After a crash the timer decides again, but not on what
    it had delivered: the acks of a checkpoint that is in the queue are needed there.
    """

    def __init__(self, in_flight: InFlight, skipped_max: int = SKIPPED_MAX) -> None:
        """Decide by the live checkpoints; deliver everything until `is_complete` is set.

        Args:
            in_flight: live checkpoints.
            skipped_max: limit of skipped checkpoints whose acks are not due yet.
        """
        self.is_complete = False
        """Whether `in_flight` has all checkpoints of the log."""
        self._in_flight = in_flight
        self._skipped_max = skipped_max
        self._skipped: set[CheckpointKey] = set()
        self._by_time: deque[tuple[int, CheckpointKey]] = deque()

    def needs_checkpoint(self, key: CheckpointKey, revive_at_ms: int) -> bool:
        """Return whether a checkpoint that is due must be delivered."""
        if not self.is_complete or self._in_flight.is_live(key):
            return True
        if key not in self._skipped:
            self._skipped.add(key)
            self._by_time.append((revive_at_ms, key))
            if len(self._skipped) > self._skipped_max:
                self._skipped.remove(self._by_time.popleft()[1])
        return False

    def needs_ack(self, key: CheckpointKey, due_ms: int) -> bool:
        """Return whether an ack that is due must be delivered."""
        by_time = self._by_time
        while by_time and by_time[0][0] < due_ms:
            self._skipped.remove(by_time.popleft()[1])
        return key not in self._skipped
