"""Decoder of pulled records into Arrow batches, column by column. Pure.

Nearly all records are ordinary: whole, no batch, with the checksum of their body, with regular
properties, and not compressed if the body is a column. For these, the fields of all heads are
gathered in one step, and bodies and texts are copied once, from the pulled bytes into the column;
no message object is created. All other records are decoded one by one by the client's decoder
(`kourou.protocol.record.decode`), and their rows are inserted at their positions. Both ways give
equal rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kourou.client.namespacing import remove_namespace
from kourou.errors import CodecMissingError, MalformedMessageError
from kourou.model.host import unpack_address
from kourou.model.message import MessageExt
from kourou.model.namespace import without_namespace
from kourou.model.properties import RETRY_TOPIC, TAGS, UNIQ_KEY
from kourou.model.queue import MessageQueue
from kourou.model.sysflag import COMPRESSED, INNER_BATCH, NEED_UNWRAP
from kourou.protocol.compression import DECOMPRESSED_SIZE_MAX
from kourou.protocol.record.decode import (
    DECOMPRESSED_TOTAL_MAX,
    DecodedResponse,
    UndecodableMessage,
    decode_pull_response,
)
from kourou.protocol.record.keys import message_count
from kourou.remoting.network import format_address
from kourou.spark.property_columns import Integers, PropertyColumns, split_properties
from kourou.spark.pulled_records import BORN_HOST, Flags, Records
from kourou.spark.schema import (
    COLUMNS,
    INSTANT,
    INSTANT_MAX_MS,
    OFFSET_MSG_ID,
    arrow_schema,
    build_batch,
)

BATCH_ROWS: Final = 500
"""Number of rows that completes an Arrow batch; measured faster than 2,000 and more."""

BATCH_BYTES: Final = 8 * 1024 * 1024
"""Total size of bodies and properties, in bytes, that completes an Arrow batch with fewer rows."""

_BATCHED: Final = NEED_UNWRAP | INNER_BATCH
_OFFSET_MAX: Final = (1 << 63) - 1
_PORT: Final = struct.Struct(">i")

_INT_FIELDS: Final = {
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "flag": "flag",
    "sysFlag": "sys_flag",
    "reconsumeTimes": "reconsume_times",
}
_TIME_FIELDS: Final = {"bornTimestamp": "born_at_ms", "storeTimestamp": "store_at_ms"}
_PROPERTY_COLUMNS: Final = frozenset({"msgId", "tags", "keys", "properties"})


@dataclass(frozen=True, slots=True)
class Answer:
    """The records of one pull.

    Attributes:
        queue: the queue pulled.
        raw: the stored records, one after the other; less than 1 GiB.
        start: the first queue offset of interest; rows before it are dropped.
        until: the queue offset after the last one of interest.
    """

    queue: MessageQueue
    raw: bytes
    start: int
    until: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The reason why the rest of an answer was not decoded.

    Attributes:
        offset: the queue offset from which the rest must be pulled again.
        error: None if the bodies before it decompressed to too many bytes for one call; otherwise
            the first message from `offset` on has no readable header, or a codec is missing.
    """

    offset: int
    error: MalformedMessageError | CodecMissingError | None


@dataclass(slots=True)
class Decoded:
    """The rows of some answers.

    Attributes:
        batches: all rows, in the order of the answers; none is empty.
        rows: number of rows of each answer.
        undecodable: the messages whose bodies cannot be decoded; they have no rows.
        stops: the answers that were not decoded to their ends, by index.
    """

    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    undecodable: list[UndecodableMessage] = field(default_factory=list)
    stops: dict[int, Stop] = field(default_factory=dict)


def decode_answers(
    answers: Sequence[Answer],
    names: Sequence[str],
    *,
    tags: frozenset[str] | None = None,
    namespace: str = "",
) -> Decoded:
    """Return the rows of the answers.

    A batch ends when its bodies and properties reach `BATCH_BYTES`, and at every few answers.
    All bodies together decompress to at most `DECOMPRESSED_TOTAL_MAX` bytes.

    Args:
        answers: the pulled records.
        names: the columns, in their order.
        tags: the wanted tags; None for all messages. Brokers filter by the tags' hashes only.
        namespace: removed from the topics.
    """
    decoder = _Decoder(names, tags, namespace)
    for first, until in _groups(answers):
        decoder.decode(answers[first:until], first)
    return decoder.decoded


@dataclass(frozen=True, slots=True)
class DecodedRecords:
    """The rows of some records.

    Attributes:
        batches: all rows, in the order of the records.
        record: the record of each row.
        undecodable: the messages whose bodies cannot be decoded; they have no rows.
        stop: the first record that was not decoded, nor those after it: the bodies before it
            decompressed to too many bytes for one call. None if there is none.
    """

    batches: list[pa.RecordBatch]
    record: Integers
    undecodable: list[UndecodableMessage]
    stop: int | None


def decode_records(records: Records, chosen: Integers, names: Sequence[str]) -> DecodedRecords:
    """Return the rows of records of one answer that are whole, and whose checksums are verified.

    Args:
        records: the records.
        chosen: indexes of those to decode, ascending.
        names: the columns, in their order.

    Raises:
        CodecMissingError: the package that decompresses a body is not installed.
    """
    decoder = _Decoder(names, None, "")
    is_ordinary = decoder.may_be_ordinary(records)[chosen]
    record = decoder.decode_records(
        records, [_WHOLE_LOG], 0, chosen[is_ordinary], chosen[~is_ordinary]
    )
    decoded = decoder.decoded
    for stop in decoded.stops.values():
        if stop.error is not None:
            raise stop.error
    return DecodedRecords(decoded.batches, record, decoded.undecodable, decoder.stopped.get(0))


def _groups(answers: Sequence[Answer]) -> Iterator[tuple[int, int]]:
    """Yield (first, until) of the answers to decode together: at most about `BATCH_BYTES`."""
    first = size = 0
    for number, answer in enumerate(answers, 1):
        size += len(answer.raw)
        if size >= BATCH_BYTES or number == len(answers):
            yield first, number
            first, size = number, 0


class _Decoder:
    """Decodes groups of answers into `decoded`."""

    def __init__(self, names: Sequence[str], tags: frozenset[str] | None, namespace: str) -> None:
        self._names = names
        self._tags = tags
        self._namespace = namespace
        self._needs_properties = tags is not None or not _PROPERTY_COLUMNS.isdisjoint(names)
        # Without the column, bodies are not inflated.
        self._not_ordinary = _BATCHED | COMPRESSED if "body" in names else _BATCHED
        self._budget = DECOMPRESSED_TOTAL_MAX
        self.decoded = Decoded()
        self.stopped: dict[int, int] = {}

    def may_be_ordinary(self, records: Records) -> Flags:
        """Tell for each record whether its flags are those of an ordinary one."""
        is_ordinary: Flags = records.fields["sys_flag"] & self._not_ordinary == 0
        return is_ordinary

    def decode(self, answers: Sequence[Answer], first: int) -> None:
        """Decode the answers; `first` is the index of the first one among all."""
        records = Records.read([answer.raw for answer in answers])
        if not len(records.starts):
            self.decoded.rows += [0] * len(answers)
            return
        self.decode_records(records, answers, first, *self._divide(records, answers))

    def decode_records(
        self,
        records: Records,
        answers: Sequence[Answer],
        first: int,
        ordinary: Integers,
        others: Integers,
    ) -> Integers:
        """Decode records that look ordinary, and others; return the record of each row.

        Sets `stopped` to the first record of each answer that was not decoded, by its index.
        """
        ordinary, properties, irregular = self._split_properties(records, ordinary)
        others = np.sort(np.concatenate((others, irregular)))
        messages, sources, stopped = self._decode_others(records, answers, others, first)
        self.stopped = stopped
        if stopped:
            ends = np.array([stopped.get(one, len(records.starts)) for one in range(len(answers))])
            ordinary = ordinary[ordinary < ends[records.answer[ordinary]]]
            ordinary, properties, _ = self._split_properties(records, ordinary)
        if self._tags is not None and properties is not None and len(ordinary):
            tags = pc.is_in(properties.values(properties.find(TAGS)), pa.array(self._tags))
            is_wanted = tags.to_numpy(zero_copy_only=False)
            if not is_wanted.all():
                ordinary, properties, _ = self._split_properties(records, ordinary[is_wanted])
        rows = _OrdinaryRows(records, answers, ordinary, properties, self._namespace)
        return self._append(rows, messages, np.array(sources, np.int64))

    def _divide(self, records: Records, answers: Sequence[Answer]) -> tuple[Integers, Integers]:
        """Return the records that look ordinary, and the others, without those out of range."""
        answer, fields = records.answer, records.fields
        start = np.array([one.start for one in answers], np.int64)[answer]
        until = np.array([one.until for one in answers], np.int64)[answer]
        offsets, flags = fields["queue_offset"], fields["sys_flag"]
        # A batch has as many offsets as messages, so it may reach into the range.
        may_be_in_range = (offsets < until) & ((offsets >= start) | (flags & INNER_BATCH > 0))
        is_readable = records.is_whole.copy()
        is_readable[is_readable] = _have_text_topics(records, np.flatnonzero(is_readable))
        is_ordinary = is_readable & may_be_in_range & self.may_be_ordinary(records)
        ordinary = np.flatnonzero(is_ordinary)
        body_starts = records.body_starts[ordinary]
        body_ends = body_starts + fields["body_size"][ordinary]
        checksums = records.checksums(body_starts, body_ends)
        is_ordinary[ordinary] = checksums == fields["body_crc"][ordinary]
        others = ~is_ordinary & (may_be_in_range | ~is_readable)
        return np.flatnonzero(is_ordinary), np.flatnonzero(others)

    def _split_properties(
        self, records: Records, ordinary: Integers
    ) -> tuple[Integers, PropertyColumns | None, Integers]:
        """Return the records with regular properties, these properties, and the other records."""
        if not self._needs_properties:
            return ordinary, None, _NO_RECORDS
        irregular = [_NO_RECORDS]
        while True:
            texts = records.parts(records.properties_starts[ordinary], records.ends[ordinary])
            properties, found = split_properties(list(texts))
            if not len(found):
                found = self._find_exceptions(properties)
            if not len(found):
                return ordinary, properties, np.concatenate(irregular)
            irregular.append(ordinary[found])
            ordinary = np.delete(ordinary, found)

    def _find_exceptions(self, properties: PropertyColumns) -> Integers:
        """Return the rows that need another property for an id, or whose properties change."""
        exceptions = np.zeros(properties.rows, np.bool_)
        if "msgId" in self._names:
            exceptions |= properties.find(UNIQ_KEY) < 0
        if self._namespace:
            exceptions |= properties.find(RETRY_TOPIC) >= 0
        return np.flatnonzero(exceptions)

    def _decode_others(
        self, records: Records, answers: Sequence[Answer], others: Integers, first: int
    ) -> tuple[list[MessageExt], list[int], dict[int, int]]:
        """Return the wanted messages of some records, and the record of each message.

        The third value is, by answer, the first record that is not decoded, nor those after it.
        """
        messages: list[MessageExt] = []
        sources: list[int] = []
        stopped: dict[int, int] = {}
        ends: dict[int, int] = {}
        raws = records.parts(records.starts[others], records.ends[others])
        is_compressed = records.is_whole & (records.fields["sys_flag"] & COMPRESSED > 0)
        columns = (others, records.answer[others], is_compressed[others])
        for raw, record, index, is_zip in zip(
            raws, *(one.tolist() for one in columns), strict=True
        ):
            answer, before = answers[index], record - 1
            if index in stopped:
                continue
            response = self._decode_record(raw, is_compressed=is_zip)
            if not isinstance(response, DecodedResponse):
                stopped[index] = record
                offset = answer.start
                if before >= 0 and records.answer[before] == index:
                    end = ends.get(before, int(records.fields["queue_offset"][before]) + 1)
                    offset = max(offset, end)
                if offset < answer.until:
                    self.decoded.stops[first + index] = Stop(offset, response)
                continue
            ends[record] = end = _end_offset(records, record, response)
            wanted = [
                one
                for one in response.messages
                if self._is_wanted(one, one.queue_offset + 1, answer)
            ]
            messages += wanted
            sources += [record] * len(wanted)
            self.decoded.undecodable += [
                one for one in response.undecodable if self._is_wanted(one.message, end, answer)
            ]
        return messages, sources, stopped

    def _decode_record(
        self, raw: bytes, *, is_compressed: bool
    ) -> DecodedResponse | MalformedMessageError | CodecMissingError | None:
        """Return the messages of a record, or the error; None if the budget is spent."""
        if is_compressed and self._budget < DECOMPRESSED_SIZE_MAX:
            return None
        try:
            response = decode_pull_response(raw)
        except (MalformedMessageError, CodecMissingError) as error:
            return error
        if is_compressed:
            self._budget -= sum(len(message.body) for message in response.messages)
        return response

    def _is_wanted(self, message: MessageExt, end_offset: int, answer: Answer) -> bool:
        """Tell whether the message is in range and has a wanted tag; complete its names."""
        if not message.queue_offset < answer.until or end_offset <= answer.start:
            return False
        if self._tags is not None and message.tags not in self._tags:
            return False
        message.broker_name = answer.queue.broker_name
        remove_namespace(self._namespace, (message,))
        return True

    def _append(
        self, rows: _OrdinaryRows, messages: Sequence[MessageExt], source: Integers
    ) -> Integers:
        """Append ordinary rows and messages in the order of their records.

        `source` has the record of each message. Returns the record of each row, in this order.
        """
        names = self._names
        if not messages:
            batch, sizes, source = rows.batch(names), rows.sizes(names), rows.index
        else:
            batch, sizes = build_batch(messages, names), _message_sizes(messages, names)
            if len(rows.index):
                source = np.concatenate((rows.index, source))
                order = np.argsort(source, kind="stable")
                batch = pa.concat_batches([rows.batch(names), batch]).take(pa.array(order))
                sizes = np.concatenate((rows.sizes(names), sizes))[order]
                source = source[order]
        counts = np.bincount(rows.records.answer[source], minlength=len(rows.answers))
        self.decoded.rows += counts.tolist()
        self.decoded.batches += _cut(batch, sizes)
        return source


@dataclass(frozen=True, slots=True)
class _OrdinaryRows:
    """Rows of ordinary records, as columns.

    Attributes:
        index: the records.
        properties: those of `index`; None if no column needs them.
    """

    records: Records
    answers: Sequence[Answer]
    index: Integers
    properties: PropertyColumns | None
    namespace: str

    def batch(self, names: Sequence[str]) -> pa.RecordBatch:
        """Return the rows with these columns."""
        schema = arrow_schema(names)
        if not len(self.index):
            return pa.RecordBatch.from_pylist([], schema)
        return pa.RecordBatch.from_arrays([self._column(name) for name in names], schema=schema)

    def sizes(self, names: Sequence[str]) -> Integers:
        """Return the size of each row's body and properties, if they are columns."""
        records, index = self.records, self.index
        sizes = np.zeros(len(index), np.int64)
        if "body" in names:
            sizes += records.fields["body_size"][index]
        if self.properties is not None:
            sizes += records.ends[index] - records.properties_starts[index]
        return sizes

    def _column(self, name: str) -> pa.Array:
        records, index = self.records, self.index
        if name in _INT_FIELDS:
            numbers = records.fields[_INT_FIELDS[name]][index]
            if name == "sysFlag":
                numbers &= ~COMPRESSED  # as of an inflated message
            return pa.array(numbers, COLUMNS[name].arrow_type)
        if name in _TIME_FIELDS:
            return _instants(records.fields[_TIME_FIELDS[name]][index])
        if name == "body":
            return _binary_column(
                records.data, records.body_starts[index], records.fields["body_size"][index]
            )
        if name == "topic":
            decode = partial(_decode_topic, self.namespace)
            return records.texts(records.topic_starts[index], records.topic_sizes[index], decode)
        if name == "brokerName":
            brokers = pa.array([answer.queue.broker_name for answer in self.answers], pa.string())
            return brokers.take(pa.array(records.answer[index]))
        if name == OFFSET_MSG_ID.name:
            return records.offset_msg_ids(index)
        if name == "bornHost":
            starts = records.starts[index] + BORN_HOST
            return records.texts(starts, records.host_sizes[index], _decode_host)
        return self._property_column(name)

    def _property_column(self, name: str) -> pa.Array:
        properties = self.properties
        assert properties is not None, name
        if name == "properties":
            return properties.maps()
        if name == "keys":
            return properties.keys()
        return properties.values(properties.find(TAGS if name == "tags" else UNIQ_KEY))


def _have_text_topics(records: Records, index: Integers) -> Flags:
    """Tell for each record whether its topic is UTF-8."""
    if not len(index):
        return np.ones(0, np.bool_)
    starts, sizes = records.topic_starts[index], records.topic_sizes[index]
    try:
        records.texts(starts, sizes, bytes.decode)
    except UnicodeDecodeError:
        parts = records.parts(starts, starts + sizes)
        return np.array([part.decode(errors="ignore").encode() == part for part in parts])
    return np.ones(len(index), np.bool_)


def _end_offset(records: Records, record: int, response: DecodedResponse) -> int:
    """Return the queue offset after the messages of a record that is decoded."""
    if response.messages:
        return response.messages[-1].queue_offset + 1
    properties = records.data[records.properties_starts[record] : records.ends[record]]
    count = message_count(int(records.fields["sys_flag"][record]), properties)
    return int(records.fields["queue_offset"][record]) + (count if response.undecodable else 1)


def _decode_topic(namespace: str, topic: bytes) -> str:
    return without_namespace(namespace, topic.decode())


def _decode_host(packed: bytes) -> str:
    (port,) = _PORT.unpack_from(packed, len(packed) - _PORT.size)
    return format_address((unpack_address(packed[: -_PORT.size]), port))


def _instants(times_ms: Integers) -> pa.TimestampArray:
    is_valid = (times_ms <= INSTANT_MAX_MS) & (times_ms >= -INSTANT_MAX_MS)
    missing = None if is_valid.all() else ~is_valid
    return pa.array(times_ms * 1000, mask=missing).view(INSTANT)


def _binary_column(data: bytes, starts: Integers, sizes: Integers) -> pa.BinaryArray:
    """Return a column of ascending parts of the data."""
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[::2], bounds[1::2] = starts, starts + sizes
    # The even pieces are the parts, the odd ones the gaps between them.
    pieces = pa.BinaryArray.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    return pieces.take(pa.array(np.arange(0, len(bounds), 2)))


def _message_sizes(messages: Sequence[MessageExt], names: Sequence[str]) -> Integers:
    """Return the sizes of messages as `_OrdinaryRows.sizes` does."""
    sizes = np.zeros(len(messages), np.int64)
    if "body" in names:
        sizes += [len(message.body) for message in messages]
    if not _PROPERTY_COLUMNS.isdisjoint(names):
        sizes += [
            sum(map(len, message.properties)) + sum(map(len, message.properties.values()))
            for message in messages
        ]
    return sizes


def _cut(batch: pa.RecordBatch, sizes: Integers) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of at least `BATCH_BYTES`, except the last."""
    ends = np.cumsum(sizes)
    first, before = 0, 0
    while first < len(sizes):
        until = min(int(np.searchsorted(ends, before + BATCH_BYTES)) + 1, len(sizes))
        yield batch.slice(first, until - first)
        first, before = until, int(ends[until - 1])


_NO_RECORDS: Final[Integers] = np.empty(0, np.int64)
_WHOLE_LOG: Final = Answer(MessageQueue("", "", 0), b"", -_OFFSET_MAX, _OFFSET_MAX)
"""Stands for the queues of all records of a log."""
