"""Half messages: a message that waits to be committed, and what is made of it. Pure.

A half message lies in queue 0 of RMQ_SYS_TRANS_HALF_TOPIC; its properties say where it goes:

    what becomes of it          the record that is stored
    commit                      in its own topic and queue, without REAL_TOPIC and REAL_QID, with
                                the commit bits and the half record's place in the log
    its producer is asked       another half record, with TRANSACTION_CHECK_TIMES one higher; from
                                now on this one stands for the transaction
    it is given up              as it is, in TRANS_CHECK_MAX_TIME_TOPIC
    it is resumed               a half record with no checks, which follows the others of a
                                transaction that is still known, or begins one

A record that follows others, also the one that is given up, names the queue offset of the first of
them in TRAN_PREPARED_QUEUE_OFFSET, so that all records of one transaction are known as such after a
restart too. RocketMQ writes that property for messages with an immunity time only, and removes it
no more than the others when the message is committed; here consumers do not see it.

Source: TransactionalMessageBridge.java, TransactionalMessageServiceImpl.java,
EndTransactionProcessor.endMessageTransaction, apache/rocketmq 5.5.0. There a record that is stored
again loses its flag; here it keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from kourou.broker.writing.placement import Placement, delay_level_of, has_timer
from kourou.errors import MalformedMessageError, MessageIllegalError
from kourou.model import properties as names
from kourou.model.properties import decode_properties, encode_properties
from kourou.model.property_limits import fitting_properties
from kourou.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK
from kourou.model.topic import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from kourou.protocol.codes import ResponseCode
from kourou.protocol.message_layout import RecordDraft, read_record, redraft

HALF_QUEUE: Final = 0
"""The queue of half messages, of their ends, and of those given up; RocketMQ uses no other."""
_HALF: Final = TRANS_HALF_TOPIC.encode()
_GIVEN_UP: Final = TRANS_CHECK_MAX_TIME_TOPIC.encode()
BROKERS_OWN: Final = (names.TRAN_PREPARED_QUEUE_OFFSET, names.TRANSACTION_CHECK_TIMES)
"""Properties that say how a half record follows others; of clients they are not believed."""


@dataclass(slots=True)
class HalfMessage:
    """A half record of the log.

    Attributes:
        properties: as stored; nobody changes them.
        topic, queue_id: where it goes when it is committed.
        producer_group: who may end it, and is asked what became of it.
        queue_offset, physical_offset: of this record.
        first_offset: queue offset of the transaction's first record; often this one's.
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
        """How often its producers were asked; less than 0 where the property is no number."""
        return _integer(self.properties.get(names.TRANSACTION_CHECK_TIMES, "0"))

    @property
    def unique_key(self) -> str:
        """The id that the producer gave it: the id of the transaction."""
        return self.properties.get(names.UNIQ_KEY, "")

    def immunity_ms(self, timeout_ms: int) -> int | None:
        """Return the time of its own in which it is not checked; None if it has none.

        As in Java never less than `timeout_ms`, which holds for all others.
        """
        text = self.properties.get(names.CHECK_IMMUNITY_TIME_IN_SECONDS)
        return None if not text else max(_integer(text) * 1000, timeout_ms)


def place_half(
    topic: str, queue_id: int, properties: dict[str, str], producer_group: str
) -> Placement:
    """Return where a half message is stored; its properties get its destination.

    What only the broker says of half records is removed: by a TRAN_PREPARED_QUEUE_OFFSET of its
    own, a message would be taken for a later record of the transaction of another producer.

    Raises:
        MessageIllegalError: it is delayed as well. RocketMQ's clients refuse that; its broker
            takes the message, and it is lost.
    """
    if delay_level_of(properties) > 0 or has_timer(properties):
        raise MessageIllegalError(
            ResponseCode.MESSAGE_ILLEGAL, "transactional messages do not support delayed delivery"
        )
    for name in BROKERS_OWN:
        properties.pop(name, None)
    properties[names.TRANSACTION_ID] = properties[names.UNIQ_KEY]
    properties[names.REAL_TOPIC] = topic
    properties[names.REAL_QID] = str(queue_id)
    properties.setdefault(names.PGROUP, producer_group)
    return Placement(TRANS_HALF_TOPIC, HALF_QUEUE)


def read_half(record: bytes) -> HalfMessage:
    """Return the half message that a record of the log is.

    Raises:
        MalformedMessageError: it is no record of half messages, or does not say where it goes or
            whose it is.
    """
    header = read_record(record, check_crc=True)
    text = record[header.properties_start : header.properties_start + header.properties_size]
    draft = redraft(record, header, header.topic, header.queue_id, text)
    properties = decode_properties(text)
    topic = properties.get(names.REAL_TOPIC, "")
    queue_id = properties.get(names.REAL_QID, "")
    group = properties.get(names.PGROUP, "")
    known = header.topic in (TRANS_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC)
    if not (known and topic and group and _is_number(queue_id)) or topic == TRANS_HALF_TOPIC:
        raise MalformedMessageError(
            f"record at byte {header.physical_offset}, of topic {header.topic}, is no half "
            f"message: it goes to queue {queue_id!r} of topic {topic!r}, of group {group!r}"
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
        int(first) if _is_number(first) else header.queue_offset,
    )


def committed_draft(half: HalfMessage, queue_id: int, prepared_offset: int) -> RecordDraft:
    """Return the message as its consumers get it.

    Args:
        half: of which it is made.
        queue_id: the queue of its topic that takes it.
        prepared_offset: place in the log of the half record that stands for the transaction.
    """
    properties = dict(half.properties)
    for name in (names.REAL_TOPIC, names.REAL_QID, names.TRAN_PREPARED_QUEUE_OFFSET, names.CRC32):
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
    """Return the half message as it is stored again, with so many checks, or as many as before."""
    properties = dict(half.properties)
    properties.pop(names.CRC32, None)
    properties[names.TRAN_PREPARED_QUEUE_OFFSET] = str(half.first_offset)
    if check_times is not None:
        properties[names.TRANSACTION_CHECK_TIMES] = str(check_times)
    return _half_draft(half, _HALF, properties)


def resumed_draft(half: HalfMessage) -> RecordDraft:
    """Return a half message that was given up as one that begins anew."""
    properties = dict(half.properties)
    for name in (names.CRC32, names.TRAN_PREPARED_QUEUE_OFFSET):
        properties.pop(name, None)
    properties[names.TRANSACTION_CHECK_TIMES] = "0"
    return _half_draft(half, _HALF, properties)


def given_up_draft(half: HalfMessage) -> RecordDraft:
    """Return the half message as it is kept when nobody is asked about it any more."""
    properties = dict(half.properties)
    properties.pop(names.CRC32, None)
    properties[names.TRAN_PREPARED_QUEUE_OFFSET] = str(half.first_offset)
    return _half_draft(half, _GIVEN_UP, properties, waits=False)


def _half_draft(
    half: HalfMessage, topic: bytes, properties: Mapping[str, str], *, waits: bool = True
) -> RecordDraft:
    text = fitting_properties(properties, waits=waits)
    return replace(half.draft, topic=topic, queue_id=HALF_QUEUE, properties=text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def _integer(text: str) -> int:
    """Return the number, or as Java does -1 for what is none."""
    return int(text) if _is_number(text) else -1
