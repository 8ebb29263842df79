"""Messages for clients, encoded field by field: those whose properties set no optional field.

A message of protobuf costs 30 us to create, fill and serialize. All other messages are encoded by
`kourou.proxy.convert.received_message`, which is complete; `tests/proxy/test_plain_messages.py`
compares the two.

Source: Message, SystemProperties and ReceiveMessageResponse in definition.proto and service.proto.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from kourou.model import properties as names
from kourou.model.host import Host
from kourou.model.message import MessageExt
from kourou.protocol.codes import LanguageCode
from kourou.proxy.bodies import INFLATED_BYTES_MAX, EncodedBody, encoded_body
from kourou.proxy.convert import born_host, fill_resource, index_keys, received_message
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import DigestType, MessageType
from kourou.proxy.varints import encode_varint

_SPECIAL: Final = frozenset(
    {
        names.TRAN_MSG, names.DELAY, *names.TIMER_PROPERTIES, names.SHARDING_KEY, names.PRIORITY,
        names.LITE_TOPIC, names.TRACE_CONTEXT, names.DLQ_ORIGIN_TOPIC, names.DLQ_ORIGIN_MESSAGE_ID,
    }
)  # fmt: skip
"""Properties that set the type of a message or one of its optional fields."""
_TOPICS_MAX: Final = 4_096
_HOSTS_MAX: Final = 1_024
_SECONDS_MAX: Final = 1_024
_NANOS: Final = (b"", *(b"\x10" + encode_varint(ms * 1_000_000) for ms in range(1, 1_000)))
"""The nanoseconds of a time by its milliseconds."""
_DIGEST: Final = b"\x22\x24" + v2.Digest(type=DigestType.MD5).SerializeToString() + b"\x12\x20"
_NORMAL: Final = v2.SystemProperties(message_type=MessageType.NORMAL).SerializeToString()
_ATTEMPTS_PLAIN_MAX: Final = 0x7F


def encode_delivery(
    message: MessageExt,
    receipt_handle: str,
    language: LanguageCode | None,
    now_ms: int,
    body_bytes_max: int = INFLATED_BYTES_MAX,
) -> bytes:
    """Return the encoded `ReceiveMessageResponse` with a popped message.

    Args:
        message: with the body as stored, which may be compressed.
        receipt_handle: identifies the delivery.
        language: of the client.
        now_ms: epoch milliseconds.
        body_bytes_max: limit of a body that is decompressed for the client.
    """
    attempt = message.reconsume_times + 1
    properties = message.properties
    is_plain = _SPECIAL.isdisjoint(properties) and 0 < attempt <= _ATTEMPTS_PLAIN_MAX
    if is_plain and message.born_at_ms >= 0 and message.store_at_ms >= 0:
        body = encoded_body(message.body, message.sys_flag, language, body_bytes_max)
        encoded = _encode_plain(message, properties, body, receipt_handle, attempt)
    else:
        full = received_message(message, receipt_handle, language, now_ms, body_bytes_max)
        encoded = full.SerializeToString()
    return b"\x12%b%b" % (encode_varint(len(encoded)), encoded)


def _encode_plain(
    message: MessageExt,
    properties: dict[str, str],
    encoded: EncodedBody,
    receipt_handle: str,
    attempt: int,
) -> bytes:
    # Lists that grow by tuples take two thirds of the time of one expression with nested lists.
    body, encoding, checksum = encoded
    system: list[bytes] = []
    if (tag := properties.get(names.TAGS)) is not None:
        system.append(_text(b"\x0a", tag))
    system += [_text(b"\x12", key) for key in index_keys(properties)]
    if message_id := message.msg_id:
        system.append(_text(b"\x1a", message_id))
    system += (
        _DIGEST, checksum.encode(), b"\x28", encode_varint(encoding), _NORMAL,
        _time(b"\x3a", message.born_at_ms),
    )  # fmt: skip
    if born := born_host(message):
        system.append(_text(b"\x42", born))
    system += (
        _time(b"\x4a", message.store_at_ms), _store_host(message.store_host),
        _text(b"\x62", receipt_handle),
    )  # fmt: skip
    if message.queue_id:
        system += (b"\x68", encode_varint(message.queue_id))
    system += (
        b"\x70", encode_varint(message.queue_offset), b"\x80\x01", encode_varint(attempt)
    )  # fmt: skip
    parts = [_topic(message.topic)]
    for name, value in properties.items():
        if name not in names.RESERVED:
            parts.append(_bytes(b"\x12", _text(b"\x0a", name) + _text(b"\x12", value)))
    encoded_system = b"".join(system)
    parts += (b"\x1a", encode_varint(len(encoded_system)), encoded_system)
    if body:
        parts += (b"\x22", encode_varint(len(body)), body)
    return b"".join(parts)


@lru_cache(_HOSTS_MAX)
def _store_host(host: Host) -> bytes:
    return _text(b"\x52", f"{host[0]}:{host[1]}")


@lru_cache(_TOPICS_MAX)
def _topic(name: str) -> bytes:
    """Return the field with a topic."""
    message = v2.Message()
    fill_resource(message.topic, name)
    return message.SerializeToString()


def _time(tag: bytes, ms: int) -> bytes:
    """Return a field with a time after 1970."""
    seconds, rest_ms = divmod(ms, 1_000)
    value = _seconds(seconds) + _NANOS[rest_ms]
    return tag + encode_varint(len(value)) + value


@lru_cache(_SECONDS_MAX)
def _seconds(seconds: int) -> bytes:
    return b"\x08" + encode_varint(seconds) if seconds else b""


def _text(tag: bytes, text: str) -> bytes:
    return _bytes(tag, text.encode())


def _bytes(tag: bytes, value: bytes) -> bytes:
    return tag + encode_varint(len(value)) + value
