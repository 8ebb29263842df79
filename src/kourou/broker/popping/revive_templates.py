"""Bodies and properties of checkpoints and acks, from templates. Pure.

Those of one group and queue differ in numbers only. Templates are cut from the encodings of a
sample, each of whose names and numbers occurs nowhere else; so the form of the records has one
home, `revive_records.py`. They are formats of formats: the names are filled in once for each queue,
the numbers for each record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from kourou.broker.popping.checkpoint import CheckpointKey
from kourou.broker.timer.scheduling import schedule
from kourou.model import properties as names
from kourou.model.properties import encode_properties
from kourou.protocol.popping.revive_records import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECKPOINT_LEAD_MS,
    CHECKPOINT_TAG,
    NO_ACK_OFFSET,
    AckRecord,
    CheckpointRecord,
    ack_properties,
    checkpoint_properties,
    encode_ack,
    encode_checkpoint,
)
from kourou.store.timer.slot_choice import out_ms

_TEMPLATES_MAX: Final = 4096
"""Limit on queues with templates; those of a queue take about 3 KB."""
_FOREVER_MS: Final = 10**18

# Names and numbers of the sample.
_TOPIC: Final = "topic of the sample"
_GROUP: Final = "group of the sample"
_BROKER: Final = "broker of the sample"
_REVIVE_TOPIC: Final = "revive topic of the sample"
_QUEUE: Final = 212_121_212
_START: Final = 11_111_111_111_111_111
_POP: Final = 12_121_212_121_212_121
_INVISIBLE: Final = 1_313_131_313_131
_REVIVE_AT: Final = _POP + _INVISIBLE
_COUNT: Final = 141_414_141
_DIFFS: Final = "[15151515151]"
_LOG_END: Final = 161_616_161_616_161_616
_NEXT: Final = 171_717_171_717_171_717
_REVIVE_QUEUE: Final = 181_818_181
_OFFSET: Final = 19_191_919_191_919_191
_OFFSETS: Final = f"[{_OFFSET}]"

_encode: Final = msgspec.json.Encoder().encode


class ReviveText(NamedTuple):
    """A checkpoint or an ack that waits in the timer topic.

    Attributes:
        properties: the property text, with its destination and time; the first one is the unique
            id.
        tags: its kind.
        due_at_ms: when the timer delivers it, in epoch milliseconds.
    """

    body: bytes
    properties: bytes
    tags: str
    due_at_ms: int


class PlainCheckpoint(NamedTuple):
    """The values of a checkpoint as a pop writes it.

    Attributes:
        start: the offset from which the pop read.
        offsets: queue offsets of the messages.
        log_end, next_offset: see `ReviveLog.checkpoint_draft`.
    """

    start: int
    offsets: Sequence[int]
    pop_time_ms: int
    invisible_ms: int
    log_end: int
    next_offset: int


class _Templates(NamedTuple):
    """Formats of body and properties, for records of one group and queue."""

    checkpoint: tuple[bytes, bytes]
    ack: tuple[bytes, bytes]
    batch_ack: tuple[bytes, bytes]


class ReviveTemplates:
    """Templates of one broker.

    Attributes:
        topic: the revive topic.
    """

    def __init__(self, topic: str) -> None:
        """Encode records for `topic`."""
        self.topic: Final = topic
        self._samples = _samples()
        self._templates: dict[tuple[str, str, int, str], _Templates] = {}

    def checkpoint(
        self, queue: tuple[str, str, int, str], revive_queue: int, values: PlainCheckpoint
    ) -> ReviveText:
        """Return a checkpoint of a queue: topic, group, queue id, and the broker's name."""
        start, offsets, pop_time_ms, invisible_ms, log_end, next_offset = values
        body, properties = (self._templates.get(queue) or self._add(queue)).checkpoint
        revive_at_ms = pop_time_ms + invisible_ms
        due_at_ms, count = revive_at_ms - CHECKPOINT_LEAD_MS, len(offsets)
        diffs = _dense_diffs(count) if offsets[-1] - start == count - 1 else None
        return ReviveText(
            body % (
                _encode([offset - start for offset in offsets]) if diffs is None else diffs,
                invisible_ms, count, pop_time_ms, revive_at_ms, start,
            ),
            properties % (
                start, pop_time_ms, due_at_ms, log_end, next_offset, out_ms(due_at_ms),
                revive_queue,
            ),
            CHECKPOINT_TAG,
            due_at_ms,
        )  # fmt: skip

    def ack(
        self, key: CheckpointKey, revive_queue: int, offsets: Sequence[int], revive_at_ms: int
    ) -> ReviveText:
        """Return an ack of messages of a checkpoint."""
        topic, group, queue_id, start, pop_time_ms, broker_name = key
        queue = (topic, group, queue_id, broker_name)
        templates = self._templates.get(queue) or self._add(queue)
        out_at_ms = out_ms(revive_at_ms)
        if len(offsets) == 1:
            offset = offsets[0]
            body, properties = templates.ack
            return ReviveText(
                body % (offset, pop_time_ms, start),
                properties % (offset, pop_time_ms, revive_at_ms, out_at_ms, revive_queue),
                ACK_TAG,
                revive_at_ms,
            )
        body, properties = templates.batch_ack
        return ReviveText(
            body % (_encode(offsets), pop_time_ms, start),
            properties % (pop_time_ms, revive_at_ms, out_at_ms, revive_queue),
            BATCH_ACK_TAG,
            revive_at_ms,
        )

    def _add(self, queue: tuple[str, str, int, str]) -> _Templates:
        """Fill in the names of a queue."""
        topic, group, queue_id, broker_name = queue
        quoted = [_encode(name).replace(b"%", b"%%") for name in (broker_name, group, topic)]
        broker, quoted_group, quoted_topic = quoted
        in_body = (broker, quoted_group, queue_id, quoted_topic)
        plain = [
            name.encode().replace(b"%", b"%%") for name in (topic, group, broker_name, self.topic)
        ]
        in_properties = (plain[0], queue_id, *plain[1:])
        if len(self._templates) >= _TEMPLATES_MAX:
            self._templates.clear()
        templates = self._templates[queue] = _Templates(
            *[(body % in_body, properties % in_properties) for body, properties in self._samples]
        )
        return templates


def _samples() -> _Templates:
    """Return the formats of body and properties into which the names of a queue are filled."""
    ids = (_TOPIC, _GROUP, _QUEUE, _START)
    diff, offset = int(_DIFFS[1:-1]), _OFFSET
    checkpoint = CheckpointRecord(*ids, (diff,), _COUNT, _POP, _INVISIBLE, broker_name=_BROKER)
    properties = checkpoint_properties(checkpoint)
    properties[names.POP_LOG_END] = f"{_LOG_END} {_NEXT}"
    ack = AckRecord(*ids, _POP, _BROKER, offset)
    batch_ack = AckRecord(*ids, _POP, _BROKER, NO_ACK_OFFSET, (offset,))
    broker, group, topic = f'"{_BROKER}"', f'"{_GROUP}"', f'"{_TOPIC}"'
    due_at_ms = _REVIVE_AT - CHECKPOINT_LEAD_MS
    checkpoint_end = (due_at_ms, _LOG_END, _NEXT, out_ms(due_at_ms), _REVIVE_TOPIC, _REVIVE_QUEUE)
    ack_end = (_REVIVE_AT, out_ms(_REVIVE_AT), _REVIVE_TOPIC, _REVIVE_QUEUE)
    return _Templates(
        (
            _cut(
                encode_checkpoint(checkpoint), broker, group, _DIFFS, _INVISIBLE, _COUNT, _POP,
                _QUEUE, _REVIVE_AT, _START, topic,
            ),
            _cut(
                _waiting(properties), _TOPIC, _QUEUE, _START, _GROUP, _POP, _BROKER,
                *checkpoint_end,
            ),
        ),
        (
            _cut(encode_ack(ack), _OFFSET, broker, group, _POP, _QUEUE, _START, topic),
            _cut(
                _waiting(ack_properties(ack, _REVIVE_AT)), _TOPIC, _QUEUE, _OFFSET, _GROUP, _POP,
                _BROKER, *ack_end,
            ),
        ),
        (
            _cut(encode_ack(batch_ack), _OFFSETS, broker, group, _POP, _QUEUE, _START, topic),
            _cut(
                _waiting(ack_properties(batch_ack, _REVIVE_AT)), _TOPIC, _QUEUE, _GROUP, _POP,
                _BROKER, *ack_end,
            ),
        ),
    )  # fmt: skip


def _waiting(properties: dict[str, str]) -> bytes:
    """Return the property text of a record that waits in the timer topic."""
    schedule(_REVIVE_TOPIC, _REVIVE_QUEUE, properties, 0, _FOREVER_MS)
    assert names.TIMER_OUT_MS in properties, "it is not due yet"
    return encode_properties(properties)


def _cut(sample: bytes, *values: int | str) -> bytes:
    """Return the sample as a format of the names and the queue, with formats of other numbers."""
    before, after = b"", sample
    for value in values:
        head, found, after = after.partition(str(value).encode())
        assert found, "the sample has these values in this order"
        if isinstance(value, int):
            before += head + (b"%d" if value == _QUEUE else b"%%d")
        else:
            before += head + (b"%%b" if value in (_DIFFS, _OFFSETS) else b"%b")
    return before + after


_DENSE: Final = [_encode(list(range(count))) for count in range(33)]


def _dense_diffs(count: int) -> bytes:
    """Return the differences of consecutive messages."""
    return _DENSE[count] if count < len(_DENSE) else _encode(list(range(count)))
