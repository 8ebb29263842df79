"""Conversion between messages of gRPC and those of the broker.

Source: SendMessageActivity.java, GrpcConverter.java, TopicMessageType.java, apache/rocketmq 5.5.0,
and recorded calls.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kourou.broker.message_type import message_type
from kourou.client.send_receipt import SendStatus
from kourou.decimals import INT_DIGITS, decimal_or
from kourou.errors import RemoteError
from kourou.model import properties as names
from kourou.model import sysflag
from kourou.model.message import MessageExt
from kourou.model.namespace import namespace_of, without_namespace
from kourou.protocol.codes import LanguageCode
from kourou.protocol.command import RemotingCommand
from kourou.protocol.sending import SendMessageResponseHeader
from kourou.proxy.bodies import INFLATED_BYTES_MAX, encoded_body
from kourou.proxy.checks import is_blank
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import DigestType, Encoding, MessageType
from kourou.proxy.status import send_status
from kourou.proxy.times import duration_ms, fill_timestamp, is_timestamp, timestamp_ms

LITE: Final = "LITE"
NORMAL: Final = "NORMAL"
FIFO: Final = "FIFO"
_TEXT_FIELDS: Final = {
    names.TAGS: "tag",
    names.SHARDING_KEY: "message_group",
    names.TRACE_CONTEXT: "trace_context",
    names.LITE_TOPIC: "lite_topic",
}
"""Property to the field of the same text."""
_WIRE_TYPES: Final = MessageType.__members__
_STORED: Final = frozenset(status.value for status in SendStatus)
_INT32_MAX: Final = 2**31 - 1


class SentMessage(NamedTuple):
    """A message to send, as brokers take it.

    Attributes:
        topic: the destination.
        body: as sent; compressed if `sys_flag` says so.
        properties: user and system properties.
        sys_flag: bits of `kourou.model.sysflag`.
        born_at_ms: epoch milliseconds by the client's clock.
    """

    topic: str
    body: bytes
    properties: dict[str, str]
    sys_flag: int
    born_at_ms: int


def sent_message(message: v2.Message, remote_host: str, now_ms: int) -> SentMessage:
    """Return the message of a checked send.

    Args:
        message: as checked by `kourou.proxy.checks.check_message`.
        remote_host: the client's address, for a message that names no born host.
        now_ms: time of the send, for a message without a valid born time.
    """
    system = message.system_properties
    sys_flag = sysflag.COMPRESSED if system.body_encoding == Encoding.GZIP else 0
    properties = dict(message.user_properties)
    if system.message_type == MessageType.TRANSACTION:
        sys_flag |= sysflag.TRANSACTION_PREPARED
        properties[names.TRAN_MSG] = "true"
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = duration_ms(system.orphaned_transaction_recovery_duration) // 1_000
            properties[names.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(seconds)
    if system.HasField("delivery_timestamp"):
        properties[names.TIMER_DELIVER_MS] = str(timestamp_ms(system.delivery_timestamp))
    if system.HasField("priority"):
        properties[names.PRIORITY] = str(system.priority)
    born_at_ms = now_ms
    if is_timestamp(system.born_timestamp):
        born_at_ms = timestamp_ms(system.born_timestamp)
        properties[names.BORN_TIMESTAMP] = str(born_at_ms)
    texts = {
        names.TAGS: system.tag,
        names.KEYS: " ".join(system.keys),
        names.UNIQ_KEY: system.message_id,
        names.RECONSUME_TIME: str(system.delivery_attempt),
        names.PGROUP: message.topic.name,  # transaction checks find their producers by it
        names.SHARDING_KEY: system.message_group,
        names.LITE_TOPIC: system.lite_topic,
        names.TRACE_CONTEXT: system.trace_context,
        names.BORN_HOST: remote_host if is_blank(system.born_host) else system.born_host,
    }
    properties |= {name: text for name, text in texts.items() if text}
    return SentMessage(message.topic.name, message.body, properties, sys_flag, born_at_ms)


def send_result(answer: RemotingCommand, message_id: str) -> v2.SendResultEntry:
    """Return the result of a send from the broker's answer.

    Args:
        answer: to SEND_MESSAGE_V2, or to SEND_BATCH_MESSAGE.
        message_id: of the message, or of the first one.

    Raises:
        RemoteError: the broker has not stored it.
        MalformedHeaderError: the answer cannot be read.
    """
    if answer.code not in _STORED:
        raise RemoteError.from_response(answer.code, answer.remark)
    header = answer.header(SendMessageResponseHeader)
    return v2.SendResultEntry(
        status=send_status(answer.code),
        message_id=message_id,
        transaction_id=header.transaction_id or "",
        offset=header.queue_offset,
        recall_handle=header.recall_handle or "",
    )


def type_of(properties: dict[str, str]) -> str:
    """Return the type of a message with these properties, as topics name it: `FIFO`."""
    kind = message_type(properties).upper()
    return LITE if kind == NORMAL and names.LITE_TOPIC in properties else kind


def received_message(
    message: MessageExt,
    receipt_handle: str | None,
    language: LanguageCode | None,
    now_ms: int,
    body_bytes_max: int = INFLATED_BYTES_MAX,
) -> v2.Message:
    """Return a stored message for a client.

    Args:
        message: with the body as stored, which may be compressed.
        receipt_handle: identifies the delivery; None if it was not popped.
        language: of the client.
        now_ms: epoch milliseconds.
        body_bytes_max: limit of a body that is decompressed for the client.
    """
    properties = message.properties
    encoded = encoded_body(message.body, message.sys_flag, language, body_bytes_max)
    # Filled in place: messages that are passed to a constructor are copied.
    received = v2.Message(body=encoded.body)
    fill_resource(received.topic, message.topic)
    users = received.user_properties
    for name, value in properties.items():
        if name not in names.RESERVED:
            users[name] = value
    system = received.system_properties
    system.message_id = message.msg_id
    system.body_encoding = encoded.encoding
    digest = system.body_digest
    digest.type = DigestType.MD5
    digest.checksum = encoded.checksum
    system.message_type = _WIRE_TYPES.get(type_of(properties), MessageType.NORMAL)
    fill_timestamp(system.born_timestamp, message.born_at_ms)
    fill_timestamp(system.store_timestamp, message.store_at_ms)
    system.born_host = born_host(message)
    host, port = message.store_host
    system.store_host = f"{host}:{port}"
    if receipt_handle is not None:
        system.receipt_handle = receipt_handle
    system.queue_id = message.queue_id
    system.queue_offset = message.queue_offset
    system.delivery_attempt = min(message.reconsume_times + 1, _INT32_MAX)
    _fill_optional(system, properties, now_ms)
    return received


def _fill_optional(system: v2.SystemProperties, properties: dict[str, str], now_ms: int) -> None:
    """Set the fields that not every message has."""
    for name, field in _TEXT_FIELDS.items():
        if name in properties:
            setattr(system, field, properties[name])
    if names.KEYS in properties:
        system.keys.extend(index_keys(properties))
    priority = decimal_or(properties.get(names.PRIORITY, ""), None)
    if priority is not None and priority <= _INT32_MAX:
        system.priority = priority
    deliver_at_ms = _deliver_at_ms(properties, now_ms)
    if deliver_at_ms is not None:
        fill_timestamp(system.delivery_timestamp, deliver_at_ms)
    if names.DLQ_ORIGIN_TOPIC in properties and names.DLQ_ORIGIN_MESSAGE_ID in properties:
        origin = system.dead_letter_queue
        origin.topic = properties[names.DLQ_ORIGIN_TOPIC]
        origin.message_id = properties[names.DLQ_ORIGIN_MESSAGE_ID]


def fill_resource(target: v2.Resource, name: str) -> None:
    """Set a field of a message to the name of a topic or group, with its namespace."""
    namespace = namespace_of(name)
    target.name = without_namespace(namespace, name)
    if namespace:
        target.resource_namespace = namespace


def index_keys(properties: dict[str, str]) -> list[str]:
    """Return the index keys; blanks between them are kept as empty keys, as in Java."""
    text = properties.get(names.KEYS, "").rstrip(" ")
    return text.split(" ") if text else []


def born_host(message: MessageExt) -> str:
    """Return the host that a client named, or from which the message came."""
    named = message.properties.get(names.BORN_HOST, "")
    return message.born_host[0] if is_blank(named) else named


def _deliver_at_ms(properties: dict[str, str], now_ms: int) -> int | None:
    if names.TIMER_DELAY_SEC in properties:
        delay_s = decimal_or(properties[names.TIMER_DELAY_SEC], None, INT_DIGITS)
        return None if delay_s is None else now_ms + delay_s * 1_000
    return decimal_or(properties.get(names.TIMER_DELIVER_MS, ""), None)
