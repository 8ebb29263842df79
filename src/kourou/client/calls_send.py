"""Send requests: checks and encoding of messages, requests built of them, receipts of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kourou.client.config import ProducerConfig
from kourou.client.send_receipt import COPIES, Durability, SendReceipt, SendStatus
from kourou.errors import (
    InvalidMessageError,
    InvalidTopicError,
    MalformedHeaderError,
    NoPermissionError,
    RemoteError,
)
from kourou.model import properties as names
from kourou.model.message import Message
from kourou.model.properties import encode_properties
from kourou.model.property_limits import SENT_PROPERTIES_SIZE_MAX
from kourou.model.queue import MessageQueue
from kourou.model.topic import (
    AUTO_CREATE_TOPIC,
    NOT_ALLOWED_SEND_TOPICS,
    check_topic,
    is_retry_topic,
)
from kourou.protocol.codes import RequestCode, ResponseCode
from kourou.protocol.command import RemotingCommand, request
from kourou.protocol.compression import CompressionType
from kourou.protocol.message_batch import BatchItem, encode_batch
from kourou.protocol.sending import (
    COPIES_FIELD,
    DURABILITY_FIELD,
    RecallMessageResponseHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from kourou.remoting.pool import ConnectionPool

_STORED: Final = frozenset(status.value for status in SendStatus)
_DELAYS: Final = ("delay_level", "deliver_at_ms", "delay_ms")
_DURABILITY_BY_STATUS: Final = {SendStatus.FLUSH_DISK_TIMEOUT: Durability.MEMORY}


@dataclass(slots=True)
class Outgoing:
    """A message or batch encoded for sending; all tries send the same one, and nothing changes it.

    The class is not frozen, because that would triple the time of its constructor.

    Attributes:
        msg_ids: unique ids, one for each message in order.
        properties: the encoded properties.
        is_batch: the body is an encoded batch.
        is_reply: the message is the reply to a request of another producer.
        messages: the user's messages; several for a batch.
    """

    topic: str
    msg_ids: tuple[str, ...]
    body: bytes
    properties: str
    flag: int = 0
    sys_flag: int = 0
    is_batch: bool = False
    messages: tuple[Message, ...] = ()
    is_reply: bool = False


def check_message(message: Message, config: ProducerConfig) -> None:
    """Raise if a message cannot be sent.

    Raises:
        InvalidTopicError: the name is invalid, or only brokers write to the topic.
        InvalidMessageError: the body is empty or larger than `max_message_size_bytes`.
    """
    check_topic(message.topic)
    if message.topic in NOT_ALLOWED_SEND_TOPICS:
        raise InvalidTopicError(f"topic {message.topic} is reserved for brokers; choose another")
    if not message.body:
        raise InvalidMessageError(f"the body of a message to {message.topic} is empty")
    _check_size(len(message.body), config)


def check_batch(messages: Sequence[Message], config: ProducerConfig) -> None:
    """Raise if a batch cannot be sent.

    Raises:
        InvalidTopicError: as `check_message`, or the topic is a retry topic.
        InvalidMessageError: as `check_message`; or the batch is empty, its messages differ in topic
            or `wait_store_ok`, or one of them is delayed or has a priority.
    """
    if not messages:
        raise InvalidMessageError("the batch has no message")
    first = messages[0]
    if is_retry_topic(first.topic):
        raise InvalidTopicError(f"topic {first.topic}: a batch cannot be sent to a retry topic")
    for message in messages:
        check_message(message, config)
        if message.topic != first.topic:
            raise InvalidMessageError(
                f"all messages of a batch need the same topic, not {first.topic} and "
                f"{message.topic}"
            )
        if message.wait_store_ok != first.wait_store_ok:
            raise InvalidMessageError("wait_store_ok must be the same in all messages of a batch")
        if message.is_delayed:
            option = next(name for name in _DELAYS if getattr(message, name))
            raise InvalidMessageError(
                f"{option} {getattr(message, option)} of a message in a batch: send it alone"
            )
        if message.priority is not None:
            raise InvalidMessageError(
                f"priority {message.priority} of a message in a batch, which is stored in one "
                "queue: send it alone"
            )


def encode_message(
    message: Message, msg_id: str, system_properties: Mapping[str, str] | None = None
) -> Outgoing:
    """Encode a checked message with its unique id, uncompressed.

    `system_properties` are properties that users cannot set.

    Raises:
        InvalidMessageError: the properties take more than 30,000 bytes.
    """
    properties = message.property_text(msg_id)
    if system_properties:
        properties += encode_properties(system_properties).decode()
    check_properties(message.topic, properties)
    return Outgoing(
        message.topic, (msg_id,), message.body, properties, message.flag, messages=(message,)
    )


def encode_batch_of(
    messages: Sequence[Outgoing], batch_id: str, config: ProducerConfig
) -> Outgoing:
    """Encode a batch of messages that `encode_message` returned and `check_batch` would accept.

    Raises:
        InvalidMessageError: the batch is larger than `max_message_size_bytes`.
    """
    body = encode_batch([batch_item(message) for message in messages])
    _check_size(len(body), config)
    first = messages[0].messages[0]
    batch_properties = {
        names.UNIQ_KEY: batch_id,
        names.WAIT: "true" if first.wait_store_ok else "false",
    }
    return Outgoing(
        first.topic,
        tuple(message.msg_ids[0] for message in messages),
        body,
        encode_properties(batch_properties).decode(),
        is_batch=True,
        messages=tuple(message.messages[0] for message in messages),
    )


def batch_item(message: Outgoing) -> BatchItem:
    """Return the batch item of a message that `encode_message` returned."""
    return BatchItem(message.flag, message.body, message.properties.encode())


def with_compressed_body(outgoing: Outgoing, compressed: bytes, kind: CompressionType) -> Outgoing:
    """Return the message with its compressed body, or unchanged if that body is not smaller."""
    if len(compressed) >= len(outgoing.body):
        return outgoing
    return replace(outgoing, body=compressed, sys_flag=outgoing.sys_flag | kind.sys_flag)


def send_command(
    outgoing: Outgoing,
    queue: MessageQueue,
    group: str,
    now_ms: int,
    default_queue_nums: int,
    *,
    oneway: bool = False,
    reconsume_times: int = 0,
    max_reconsume_times: int | None = None,
) -> RemotingCommand:
    """Return the request that stores `outgoing` in `queue`.

    `reconsume_times` and `max_reconsume_times` are for messages sent to retry topics.
    """
    header = SendMessageRequestHeaderV2(
        producer_group=group,
        topic=outgoing.topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=default_queue_nums,
        queue_id=queue.queue_id,
        sys_flag=outgoing.sys_flag,
        born_timestamp=now_ms,
        flag=outgoing.flag,
        properties=outgoing.properties,
        batch=outgoing.is_batch,
        reconsume_times=reconsume_times,
        max_reconsume_times=max_reconsume_times,
        broker_name=queue.broker_name,
    )
    code = RequestCode.SEND_MESSAGE_V2
    if outgoing.is_batch:
        code = RequestCode.SEND_BATCH_MESSAGE
    elif outgoing.is_reply:
        code = RequestCode.SEND_REPLY_MESSAGE_V2
    return request(code, header, outgoing.body, oneway=oneway)


async def send_message(
    pool: ConnectionPool,
    address: str,
    command: RemotingCommand,
    outgoing: Outgoing,
    queue: MessageQueue,
    *,
    timeout_s: float,
    is_retry: bool = False,
    answers: list[RemotingCommand] | None = None,
) -> list[SendReceipt]:
    """Send once and return a receipt for each message, in order.

    `is_retry` means that the server has answered an earlier try with GO_AWAY; a second
    GO_AWAY is then an error. The answer is appended to `answers`, if given.

    Raises:
        TransportError: no answer arrived; the messages may be stored.
        RemoteError: the broker did not store the messages.
        MalformedHeaderError: the answer does not contain the offsets of the messages.
    """
    answer = await pool.request(address, command, timeout_s, is_retry=is_retry)
    if answers is not None:
        answers.append(answer)
    return receipts(answer, outgoing.msg_ids, queue)


def receipts(
    answer: RemotingCommand, msg_ids: Sequence[str], queue: MessageQueue
) -> list[SendReceipt]:
    """Return a receipt for each message of the answer to a send to `queue`.

    Raises:
        RemoteError, MalformedHeaderError: as `send_message`.
    """
    if answer.code not in _STORED:
        raise RemoteError.from_response(answer.code, answer.remark)
    header = answer.header(SendMessageResponseHeader)
    status = SendStatus(answer.code)
    stored = MessageQueue(queue.topic, queue.broker_name, header.queue_id)
    offset_msg_ids = header.msg_id.split(",")
    if header.batch_uniq_id is not None or len(offset_msg_ids) == 1:
        # A batch stored as one record has one offset message id.
        offset_msg_ids = [offset_msg_ids[0]] * len(msg_ids)
    if len(offset_msg_ids) != len(msg_ids):
        raise MalformedHeaderError(
            f"response to {len(msg_ids)} messages has {len(offset_msg_ids)} offset message ids"
        )
    durability = _durability(answer, status)
    return [
        SendReceipt(
            msg_id,
            offset_msg_id,
            stored,
            header.queue_offset + index,
            durability,
            status,
            header.recall_handle,
            COPIES.get(answer.ext_fields.get(COPIES_FIELD, "")),
        )
        for index, (msg_id, offset_msg_id) in enumerate(zip(msg_ids, offset_msg_ids, strict=True))
    ]


def recalled_id(answer: RemotingCommand, broker_name: str) -> str:
    """Return the unique id of the message that a recall has cancelled.

    Raises:
        RemoteError: the broker has refused.
    """
    if answer.code == ResponseCode.NO_PERMISSION:
        raise NoPermissionError(
            answer.code,
            f"{answer.remark}: allow it by recallMessageEnable of the broker "
            f"(kourou broker set {broker_name} recallMessageEnable=true)",
        )
    if answer.code != ResponseCode.SUCCESS:
        raise RemoteError.from_response(answer.code, answer.remark)
    return answer.header(RecallMessageResponseHeader).msg_id


def traced_region(answer: RemotingCommand) -> str | None:
    """Return the region of the broker that answered; None if its messages must not be traced."""
    is_traced = answer.ext_fields.get(names.TRACE_ON, "true").lower() != "false"
    return answer.ext_fields.get(names.MSG_REGION) if is_traced else None


def _durability(answer: RemotingCommand, status: SendStatus) -> Durability:
    """Return the durability that the broker reported; MEMORY if its sync timed out."""
    try:
        reported = Durability(answer.ext_fields.get(DURABILITY_FIELD, ""))
    except ValueError:
        reported = Durability.UNKNOWN
    return _DURABILITY_BY_STATUS.get(status, reported)


def check_properties(topic: str, text: str) -> None:
    """Raise if the properties leave too little room for those that brokers add to a message.

    Raises:
        InvalidMessageError: they take more than 30,000 bytes, or are not valid Unicode.
    """
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidMessageError(f"a property is not valid Unicode text: {error}") from None
    if size > SENT_PROPERTIES_SIZE_MAX:
        raise InvalidMessageError(
            f"the properties of a message to {topic} take {size} bytes, at most "
            f"{SENT_PROPERTIES_SIZE_MAX} are allowed: put large values into the body"
        )


def _check_size(size: int, config: ProducerConfig) -> None:
    if size > config.max_message_size_bytes:
        raise InvalidMessageError(
            f"{size} bytes exceed max_message_size_bytes, {config.max_message_size_bytes}: split "
            "the message, or raise the limit here and in the broker (maxMessageSize)"
        )
