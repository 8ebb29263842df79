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
from kourou.model.host import Host, unpack_address
from kourou.model.message import MessageExt, raw_parts
from kourou.protocol.codes import LanguageCode
from kourou.protocol.record.layout import PAIR_END, SEAL_START
from kourou.proxy.bodies import INFLATED_BYTES_MAX, encoded_body
from kourou.proxy.checks import is_blank
from kourou.proxy.convert import fill_resource, index_keys, received_message
from kourou.proxy.pb import v2
from kourou.proxy.pb.v2 import DigestType, Encoding, MessageType
from kourou.proxy.varints import encode_varint

_SPECIAL_NAMES: Final = frozenset(
    {
        names.TRAN_MSG, names.DELAY, *names.TIMER_PROPERTIES, names.SHARDING_KEY, names.PRIORITY,
        names.LITE_TOPIC, names.TRACE_CONTEXT, names.DLQ_ORIGIN_TOPIC, names.DLQ_ORIGIN_MESSAGE_ID,
    }
)  # fmt: skip
"""Properties that set the type of a message or one of its optional fields."""
_TOPICS_MAX: Final = 4_096
_HOSTS_MAX: Final = 1_024
_SECONDS_MAX: Final = 1_024
_PROPERTIES_MAX: Final = 4_096
_PROPERTY_BYTES_MAX: Final = 128
"""Longer properties are not kept."""
_NANOS: Final = (b"", *(b"\x10" + encode_varint(ms * 1_000_000) for ms in range(1, 1_000)))
"""The nanoseconds of a time by its milliseconds."""
_DIGEST: Final = b"\x22\x24" + v2.Digest(type=DigestType.MD5).SerializeToString() + b"\x12\x20"
_NORMAL: Final = {
    encoding: v2.SystemProperties(
        body_encoding=encoding, message_type=MessageType.NORMAL
    ).SerializeToString()
    for encoding in (Encoding.IDENTITY, Encoding.GZIP)
}
"""Encoding and type by the encoding of the body."""
_ATTEMPTS_PLAIN_MAX: Final = 0x7F

_ID_START: Final = names.UNIQ_KEY.encode() + b"\x01"
_UNUSED_STARTS: Final = (SEAL_START, names.BORN_TIMESTAMP.encode() + b"\x01")
"""Starts of properties that differ from message to message, and that clients do not get."""

# What a property of a message becomes.
_NOTHING: Final = 0
_USER_PROPERTY: Final = 1
_TAG: Final = 2
_KEYS: Final = 3
_MESSAGE_ID: Final = 4
_BORN_HOST: Final = 5
_SPECIAL: Final = 6

_Property = tuple[int, bytes]
"""What a property becomes, and the encoded field."""
_NO_PROPERTY: Final[_Property] = (_NOTHING, b"")
_properties: dict[bytes, _Property] = {}
"""Properties of recent messages by their texts; most messages of a producer have the same ones."""


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
    plain = _encode_plain(message, receipt_handle, language, body_bytes_max)
    if plain is not None:
        return plain
    full = received_message(message, receipt_handle, language, now_ms, body_bytes_max)
    encoded = full.SerializeToString()
    return b"\x12%b%b" % (encode_varint(len(encoded)), encoded)


def _encode_plain(
    message: MessageExt, receipt_handle: str, language: LanguageCode | None, body_bytes_max: int
) -> bytes | None:
    """Return the encoded response; None if the message is not plain."""
    attempt, born_at_ms, store_at_ms = (
        message.reconsume_times + 1, message.born_at_ms, message.store_at_ms
    )  # fmt: skip
    queue_id, queue_offset = message.queue_id, message.queue_offset
    is_corrupt = (born_at_ms | store_at_ms | queue_id | queue_offset) < 0  # one of them is negative
    if is_corrupt or not 0 < attempt <= _ATTEMPTS_PLAIN_MAX:
        return None
    text, (born_host, store_host) = _text_and_hosts(message)
    parts = [_topic(message.topic)]
    tag = keys = message_id = named_host = b""
    for entry in text.split(PAIR_END):
        known = _properties.get(entry)
        kind, field = _read_property(entry) if known is None else known
        if kind == _NOTHING:
            continue
        if kind == _USER_PROPERTY:
            parts.append(field)
        elif kind == _MESSAGE_ID:
            message_id = field
        elif kind == _TAG:
            tag = field
        elif kind == _KEYS:
            keys = field
        elif kind == _BORN_HOST:
            named_host = field
        else:
            return None
    encoded = encoded_body(message.body, message.sys_flag, language, body_bytes_max)
    system = b"".join((
        tag, keys, message_id or _text(b"\x1a", message.offset_msg_id),
        _DIGEST, encoded.checksum.encode(), _NORMAL[encoded.encoding],
        _time(b"\x3a", born_at_ms), named_host or born_host,
        _time(b"\x4a", store_at_ms), store_host,
        _text(b"\x62", receipt_handle), b"\x68" + encode_varint(queue_id) if queue_id else b"",
        b"\x70", encode_varint(queue_offset), b"\x80\x01", encode_varint(attempt),
    ))  # fmt: skip
    body = encoded.body
    parts += (b"\x1a", encode_varint(len(system)), system)
    if body:
        parts += (b"\x22", encode_varint(len(body)))
    start = b"".join(parts)
    return b"".join((b"\x12", encode_varint(len(start) + len(body)), start, body))


def _text_and_hosts(message: MessageExt) -> tuple[bytes, tuple[bytes, bytes]]:
    """Return the property text, and the fields of both hosts."""
    raw = raw_parts(message)
    if raw is None:
        hosts = _text(b"\x42", message.born_host[0]), _store_host(message.store_host)
        return names.encode_properties(message.properties), hosts
    text, (born_address, _, store_address, store_port) = raw
    return text, _raw_hosts(born_address, store_address, store_port)


def _read_property(entry: bytes) -> _Property:
    """Return what a property becomes; `entry` is its text without the end.

    All are kept for the next messages but those that differ from message to message.
    """
    if entry.startswith(_UNUSED_STARTS):
        return _NO_PROPERTY
    if entry.startswith(_ID_START) and len(entry) > len(_ID_START) and entry.isascii():
        return _MESSAGE_ID, _bytes(b"\x1a", entry[len(_ID_START) :])
    read = _NO_PROPERTY
    for name, value in names.decode_properties(entry).items():  # at most one
        read = _property(name, value)
        if name in names.VARYING:
            return read
    if len(entry) <= _PROPERTY_BYTES_MAX:
        if len(_properties) >= _PROPERTIES_MAX:
            _properties.clear()
        _properties[entry] = read
    return read


def _property(name: str, value: str) -> _Property:
    if name == names.UNIQ_KEY:
        return _MESSAGE_ID, _text(b"\x1a", value)
    if name == names.KEYS:
        return _KEYS, b"".join([_text(b"\x12", key) for key in index_keys({name: value})])
    if name == names.TAGS:
        return _TAG, _text(b"\x0a", value)
    if name == names.BORN_HOST:
        return _BORN_HOST, b"" if is_blank(value) else _text(b"\x42", value)
    if name in _SPECIAL_NAMES:
        return _SPECIAL, b""
    if name in names.RESERVED:
        return _NO_PROPERTY
    return _USER_PROPERTY, _bytes(b"\x12", _text(b"\x0a", name) + _text(b"\x12", value))


@lru_cache(_HOSTS_MAX)
def _raw_hosts(born_address: bytes, store_address: bytes, store_port: int) -> tuple[bytes, bytes]:
    """Return the fields of both hosts of a record."""
    stored_at = unpack_address(store_address), store_port
    return _text(b"\x42", unpack_address(born_address)), _store_host(stored_at)


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
