"""Half messages, and the records that are built from them. Pure.

Half messages are stored in queue 0 of RMQ_SYS_TRANS_HALF_TOPIC. Properties hold the destination.

    event                       record that is stored
    commit                      the message in its destination queue, without REAL_TOPIC and
                                REAL_QID, with the commit bits and the log position of the half
                                record
    a check is sent             another half record, with TRANSACTION_CHECK_TIMES one higher; from
                                then on it is the current record of the transaction
    the message is given up     the same message in TRANS_CHECK_MAX_TIME_TOPIC
    its checks are resumed      a half record with a check count of 0. It follows the other records
                                if the transaction is known, else it begins a new transaction

A record that follows others, and the record of a given-up message, hold the queue offset of the
transaction's first record in TRAN_PREPARED_QUEUE_OFFSET. So the records of a transaction can be
matched after a restart. RocketMQ writes that property only for messages with an immunity time, and
leaves it in the committed message; here it is removed.

Source: TransactionalMessageBridge.java, TransactionalMessageServiceImpl.java,
EndTransactionProcessor.endMessageTransaction, apache/rocketmq 5.5.0. There a record that is stored
again loses its flag; here it keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from kourou.broker.writing.placement import Placement, delay_level_of, has_timer
from kourou.decimals import decimal_or, is_decimal
from kourou.errors import MalformedMessageError, MessageIllegalError
from kourou.model import properties as names
from kourou.model.properties import decode_properties, encode_properties
from kourou.model.property_limits import encode_fitting_properties
from kourou.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK
from kourou.model.topic import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from kourou.protocol.codes import ResponseCode
from kourou.protocol.record.encode import RecordDraft, draft_from_record
from kourou.protocol.record.read import read_record

GROUP: Final = "CID_RMQ_SYS_TRANS"
"""Group under which the progress of the half and op queues is committed."""
HALF_QUEUE: Final = 0
"""Queue of half messages, op messages and given-up messages; RocketMQ uses no other."""
_HALF: Final = TRANS_HALF_TOPIC.encode()
_GIVEN_UP: Final = TRANS_CHECK_MAX_TIME_TOPIC.encode()
_RESERVED: Final = (names.TRAN_PREPARED_QUEUE_OFFSET, names.TRANSACTION_CHECK_TIMES)
"""Properties that link a half record to others; they are not accepted from clients."""
_NOT_COMMITTED: Final = (
    names.REAL_TOPIC, names.REAL_QID, names.TRAN_PREPARED_QUEUE_OFFSET, names.CRC32
)  # fmt: skip
"""Properties of a half message that the committed message does not have."""
INTERPRETED: Final = frozenset(
    {*_RESERVED, *_NOT_COMMITTED, names.TRANSACTION_ID, names.CHECK_IMMUNITY_TIME_IN_SECONDS}
)
"""Properties that the broker sets, removes or reads in half messages. The fast paths leave half
messages that arrive with one of them to the general path."""


@dataclass(slots=True)
class HalfMessage:
    """A half record of the log.

    Attributes:
        properties: as stored; must not be changed.
        topic, queue_id: destination of the message.
        producer_group: group whose producers may end the transaction, and get its checks.
        queue_offset, physical_offset: position of this record.
        first_offset: queue offset of the transaction's first record, often this one.
    """

    draft: RecordDraft
    properties: Mapping[str, str]
    topic: str
    queue_id: int
    producer_group: str
    queue_offset: int
    physical_offset: int
    store_at_ms: int
    first_offset: int

    @property
    def check_times(self) -> int:
        """Number of checks sent so far; -1, as in Java, if the property is not a number."""
        return decimal_or(self.properties.get(names.TRANSACTION_CHECK_TIMES, "0"), -1)

    @property
    def unique_key(self) -> str:
        """Unique id from the producer; also the transaction id."""
        return self.properties.get(names.UNIQ_KEY, "")

    def immunity_ms(self, timeout_ms: int) -> int | None:
        """Return the message's own immunity time, in which it is not checked; None for none.

        As in Java it is at least `timeout_ms`, the default for messages without one.
        """
        text = self.properties.get(names.CHECK_IMMUNITY_TIME_IN_SECONDS)
        return None if not text else max(decimal_or(text, -1) * 1000, timeout_ms)


def place_half(
    topic: str, queue_id: int, properties: dict[str, str], producer_group: str
) -> Placement:
    """Return the placement of a half message, and add its destination to the properties.

    Properties that only the broker may set are removed: with a TRAN_PREPARED_QUEUE_OFFSET of its
    own, a message would be taken for a later record of another producer's transaction.

    Raises:
        MessageIllegalError: it is delayed too. RocketMQ's clients refuse that; its broker accepts
            the message and loses it.
    """
    if delay_level_of(properties) > 0 or has_timer(properties):
        raise MessageIllegalError(
            ResponseCode.MESSAGE_ILLEGAL, "transactional messages do not support delayed delivery"
        )
    for name in _RESERVED:
        properties.pop(name, None)
    properties[names.TRANSACTION_ID] = properties[names.UNIQ_KEY]
    properties[names.REAL_TOPIC] = topic
    properties[names.REAL_QID] = str(queue_id)
    properties.setdefault(names.PGROUP, producer_group)
    return Placement(TRANS_HALF_TOPIC, HALF_QUEUE)


def read_half(record: bytes) -> HalfMessage:
    """Decode a record of a half message.

    Raises:
        MalformedMessageError: it is not a record of a half message, or its destination or producer
            group is missing.
    """
    header = read_record(record, check_crc=True)
    text = header.properties(record)
    draft = draft_from_record(record, header, header.topic, header.queue_id, text)
    properties = decode_properties(text)
    topic = properties.get(names.REAL_TOPIC, "")
    queue_id = properties.get(names.REAL_QID, "")
    group = properties.get(names.PGROUP, "")
    is_half = header.topic in (TRANS_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC)
    if not (is_half and topic and group and is_decimal(queue_id)) or topic == TRANS_HALF_TOPIC:
        raise MalformedMessageError(
            f"record at byte {header.physical_offset}, of topic {header.topic}, is not a half "
            f"message: it names queue {queue_id!r} of topic {topic!r}, and group {group!r}"
        )
    first = properties.get(names.TRAN_PREPARED_QUEUE_OFFSET, "")
    return HalfMessage(
        draft,
        properties,
        topic,
        int(queue_id),
        group,
        header.queue_offset,
        header.physical_offset,
        header.store_at_ms,
        decimal_or(first, header.queue_offset),
    )


def committed_draft(half: HalfMessage, queue_id: int, prepared_offset: int) -> RecordDraft:
    """Return the record draft of a committed message.

    Args:
        half: the half message.
        queue_id: destination queue.
        prepared_offset: log position of the transaction's current half record.
    """
    properties = dict(half.properties)
    for name in _NOT_COMMITTED:
        properties.pop(name, None)
    return replace(
        half.draft,
        topic=half.topic.encode(),
        queue_id=queue_id,
        sys_flag=half.draft.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT,
        prepared_transaction_offset=prepared_offset,
        properties=encode_properties(properties),
    )


def renewed_draft(half: HalfMessage, check_times: int | None) -> RecordDraft:
    """Return the draft of the next half record, with the check count set unless it is None."""
    properties = dict(half.properties)
    properties.pop(names.CRC32, None)
    properties[names.TRAN_PREPARED_QUEUE_OFFSET] = str(half.first_offset)
    if check_times is not None:
        properties[names.TRANSACTION_CHECK_TIMES] = str(check_times)
    return _half_draft(half, _HALF, properties)


def resumed_draft(half: HalfMessage) -> RecordDraft:
    """Return the draft of a first half record for a message that was given up."""
    properties = dict(half.properties)
    for name in (names.CRC32, names.TRAN_PREPARED_QUEUE_OFFSET):
        properties.pop(name, None)
    properties[names.TRANSACTION_CHECK_TIMES] = "0"
    return _half_draft(half, _HALF, properties)


def given_up_draft(half: HalfMessage) -> RecordDraft:
    """Return the draft of the record in the topic of given-up messages."""
    properties = dict(half.properties)
    properties.pop(names.CRC32, None)
    properties[names.TRAN_PREPARED_QUEUE_OFFSET] = str(half.first_offset)
    return _half_draft(half, _GIVEN_UP, properties, waits=False)


def _half_draft(
    half: HalfMessage, topic: bytes, properties: Mapping[str, str], *, waits: bool = True
) -> RecordDraft:
    text = encode_fitting_properties(properties, is_pending=waits)
    return replace(half.draft, topic=topic, queue_id=HALF_QUEUE, properties=text)
