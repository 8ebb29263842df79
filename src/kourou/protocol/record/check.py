"""Verifies that stored bytes are the whole record that a queue entry refers to.

A record that ends in a seal takes about 1.2 us plus 50 ns a KB; one without a seal, as Java writes
by default, about 5 us. Without a seal only the body has a
checksum. The check then compares the record's position, sizes, topic, queue and tag with the queue
entry and requires the properties to be UTF-8, as Java writes them; any other flipped bit in the
properties stays undetected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kourou.errors import MalformedMessageError
from kourou.model.topic import SCHEDULE_TOPIC
from kourou.protocol.hashing import crc32, tags_code
from kourou.protocol.record.keys import (
    LIGHT_TOPIC_PREFIX,
    TAGS_START,
    light_queues,
    queue_tags_code,
)
from kourou.protocol.record.layout import (
    HEAD_BYTES,
    HOST_FLAGS,
    MAGIC_V1,
    PAIR_END,
    PROPERTIES_SIZE_BYTES,
    SEAL_BYTES,
    encode_seal,
    head_struct,
    is_sealed,
    topic_field,
)
from kourou.protocol.record.read import read_checked
from kourou.protocol.record.scan import LOG_HEAD

_FIELDS: Final = head_struct(
    "total_size", "magic", "queue_id", "queue_offset", "physical_offset", "sys_flag", "body_size"
).unpack_from
_PAIR_END_NUMBER: Final = PAIR_END[0]
_LIGHT_QUEUE_ID: Final = 0
_EXTENSION_BELOW: Final = -(1 << 31)
"""Smaller codes are addresses in extension files, an option of Java's."""
_NO_ADDRESSES: Final = -(1 << 63)


class ExpectedRecord(NamedTuple):
    """A queue entry together with its queue offset."""

    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int


class RecordCheck:
    """Verifies records against the entries of one queue.

    Args:
        topic: the queue's topic.
        queue_id: the queue's id.
        delay_levels_ms: the delays of the levels, for the due times of delayed messages.
        has_extension: whether the queue's entries may refer to extension units instead of tags.
    """

    __slots__ = (
        "_addresses_below", "_codes", "_delay_levels_ms", "_is_schedule", "_topic_field",
        "queue_id", "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        queue_id: int,
        delay_levels_ms: Sequence[int],
        *,
        has_extension: bool = False,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self._delay_levels_ms = delay_levels_ms
        self._addresses_below = _EXTENSION_BELOW if has_extension else _NO_ADDRESSES
        self._is_schedule = topic == SCHEDULE_TOPIC
        self._codes: dict[bytes, int] = {}
        self._topic_field = topic_field(topic.encode())  # longer names take the general path

    def check(self, data: bytes, at: int, expected: ExpectedRecord) -> None:
        """Verify that the record at byte `at` is the expected one.

        Raises:
            MalformedMessageError: it is corrupt, or it is another record.
        """
        if not self._is_expected_and_sealed(data, at, memoryview(data), expected):
            self._check_fully(data, at, expected)

    def first_wrong(
        self, data: bytes, expected: Sequence[ExpectedRecord]
    ) -> tuple[int, str] | None:
        """Return the index of the first record that is not the expected one, and the reason.

        The records follow one another in `data`. None if all are as expected.
        """
        at, view, is_expected = 0, memoryview(data), self._is_expected_and_sealed
        for number, one in enumerate(expected):
            if not is_expected(data, at, view, one):
                try:
                    self._check_fully(data, at, one)
                except MalformedMessageError as error:
                    return number, str(error)
            at += one[2]
        return None

    def _is_expected_and_sealed(
        self, data: bytes, at: int, view: memoryview, expected: ExpectedRecord
    ) -> bool:
        """Tell whether the record certainly is the expected one, by a cheap test of sealed records.

        False means that `_check_fully` must decide.
        """
        queue_offset, physical_offset, size, code = expected
        end = at + size
        seal_at = end - SEAL_BYTES
        if seal_at < at + HEAD_BYTES or end > len(data):
            return False
        own_size, magic, queue_id, own_offset, own_position, sys_flag, body_size = _FIELDS(data, at)
        if (
            own_offset != queue_offset
            or own_position != physical_offset
            or own_size != size
            or magic != MAGIC_V1
            or queue_id != self.queue_id
            or sys_flag & HOST_FLAGS
            or data[seal_at:end] != encode_seal(crc32(view[at:seal_at]))
        ):
            return False
        topic_at = at + HEAD_BYTES + body_size
        if not data.startswith(self._topic_field, topic_at):
            return False
        if self._is_schedule:
            return False  # due times are rare enough for the general path
        tag_at = data.rfind(TAGS_START, topic_at, seal_at)
        if tag_at < 0:
            return code == 0 or code < self._addresses_below
        if (
            data[tag_at - 1] != _PAIR_END_NUMBER
            and tag_at != topic_at + len(self._topic_field) + PROPERTIES_SIZE_BYTES
        ):
            return False  # it is the end of a longer property name
        tag_at += len(TAGS_START)
        tag = data[tag_at : data.find(PAIR_END, tag_at)]
        return code == self._code_of(tag) or code < self._addresses_below

    def _code_of(self, tag: bytes) -> int:
        """Return a tag's code, cached because the tags of a queue repeat."""
        code = self._codes.get(tag)
        if code is None:
            code = self._codes[tag] = tags_code(tag.decode(errors="replace"))
        return code

    def _check_fully(self, data: bytes, at: int, expected: ExpectedRecord) -> None:
        header = read_checked(data, at)
        if header.physical_offset != expected.physical_offset:
            raise MalformedMessageError(f"it claims to be at {header.physical_offset}")
        if header.total_size != expected.size:
            raise MalformedMessageError(f"it has {header.total_size} bytes, not {expected.size}")
        queue_fields = (header.topic, header.queue_id, header.queue_offset)
        properties = header.properties(data)
        if (
            queue_fields != (self.topic, self.queue_id, expected.queue_offset)
            and self.light_offset(properties) != expected.queue_offset
        ):
            raise MalformedMessageError(
                f"it is message {header.queue_offset} of queue {header.queue_id} of {header.topic}"
            )
        if not (is_sealed(properties) or _is_text(properties)):
            raise MalformedMessageError("its properties are not UTF-8")
        code = self.tags_code(header.topic, properties, header.store_at_ms)
        if expected.tags_code != code and expected.tags_code >= self._addresses_below:
            raise MalformedMessageError(
                f"its tags code is {code}, and its queue entry says {expected.tags_code}"
            )

    def may_match(self, head: bytes, expected: ExpectedRecord) -> bool:
        """Tell from a record's first bytes whether it may be the expected one."""
        if len(head) < LOG_HEAD.size:
            return False
        size, _, queue_id, queue_offset, physical_offset, _ = LOG_HEAD.unpack_from(head)
        if (size, physical_offset) != (expected.size, expected.physical_offset):
            return False
        is_own = (queue_id, queue_offset) == (self.queue_id, expected.queue_offset)
        return is_own or self.topic.startswith(LIGHT_TOPIC_PREFIX)

    def light_offset(self, properties: bytes) -> int | None:
        """Return the record's offset in this queue if it is a light queue of it; else None."""
        if self.queue_id != _LIGHT_QUEUE_ID:
            return None
        return dict(light_queues(properties)).get(self.topic)

    def tags_code(self, topic: str, properties: bytes, store_at_ms: int) -> int:
        """Return the tags code for the record's entry: the tag's hash, or the due time."""
        return queue_tags_code(topic.encode(), properties, store_at_ms, self._delay_levels_ms)


def _is_text(properties: bytes) -> bool:
    try:
        properties.decode()
    except UnicodeDecodeError:
        return False
    return True
