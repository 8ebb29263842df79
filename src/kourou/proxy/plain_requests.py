"""Plain SendMessage requests, read from their bytes: one message of the type NORMAL or FIFO.

    10 len              the message
      10 len              topic
      18 len              a user property, any number of times
      26 len              system properties
        10 len              tag
        18 len              a key, any number of times
        26 len              message id
        34 len              digest of the body, which the proxy does not read
        40 n, 48 n          encoding of the body, message type
        58 len              born time: 8 seconds, 16 nanoseconds
        66 len              born host
        138 1 len           message group
      34 len              body

Message id, keys, digest, born time and body differ from message to message. The rest is mostly that
of the message before: `Shapes` keeps what it means, as the general code found. All other requests,
and those with fields in another order or twice, are left to the general code.

Source: definition.proto and service.proto beside this package; protobuf's wire format.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from google.protobuf.message import DecodeError

from kourou.client.sending.send_plans import property_json
from kourou.errors import KourouError
from kourou.model import properties as names
from kourou.model.properties import encode_properties
from kourou.protocol.hashing import java_string_hash
from kourou.proxy.checks import CallLimits, check_message, check_topic
from kourou.proxy.convert import FIFO, NORMAL, sent_message, type_of
from kourou.proxy.pb import v2
from kourou.proxy.pb.pool import parse
from kourou.proxy.queue_choice import ordering_key
from kourou.proxy.times import NANOS_MAX, SECONDS_MAX
from kourou.proxy.varints import MORE, READ_BYTES_MAX, read_varint

_MESSAGE: Final = 0x0A
_TOPIC: Final = 0x0A
_USER_PROPERTY: Final = 0x12
_SYSTEM: Final = 0x1A
_BODY: Final = 0x22
_KEY: Final = 0x12
_MESSAGE_ID: Final = 0x1A
_DIGEST: Final = 0x22
_BORN_TIME: Final = 0x3A
_MESSAGE_GROUP: Final = b"\x8a\x01"
_CUT_OUT: Final = frozenset({_KEY, _MESSAGE_ID, _DIGEST, _BORN_TIME})
"""Fields of the system properties that differ from message to message."""
_WIRE_TYPE: Final = 7
_LENGTH: Final = 2

_PLAIN_KEY: Final = re.compile(rb"[!#-\[\]-~]+")
"""A key that is valid, and the same in JSON."""
_DIGEST_TYPE: Final = 0x08
_DIGEST_CHECKSUM: Final = 0x12
KEYS_BYTES_MAX: Final = 256
_SECONDS: Final = 0x08
_SECONDS_BYTES: Final = 6
"""Size of the field with the seconds of a time from 1978 to 3058."""
_SECONDS_CACHED: Final = 64
_TIME_BYTES_MAX: Final = 2 * (1 + READ_BYTES_MAX)
"""Longer times have other fields: the cache must not keep them."""
_NANOS: Final = b"\x10"
_SHAPES_MAX: Final = 1024
_SHAPE_BYTES_MAX: Final = 2048
"""Longer ones are not kept: the cache could take more than 4 MB."""

_ID_MARKER: Final = "7kourouid7"
_KEYS_MARKER: Final = "7kouroukeys7"
_BORN_MARKER_MS: Final = 191_919_191_919


class PlainRequest(msgspec.Struct, frozen=True, gc=False):
    """The parts of a plain request.

    Attributes:
        head: topic and user properties, as encoded.
        rest: the other system properties, as encoded.
        message_id: letters and digits.
        keys: joined by blanks; empty without keys.
        born_at_ms: epoch milliseconds.
        body: at least one byte.
    """

    head: bytes
    rest: bytes
    message_id: bytes
    keys: bytes
    born_at_ms: int
    body: bytes


class Shape(NamedTuple):
    """Meaning of a plain request, without what differs from message to message.

    Attributes:
        topic: the destination.
        type: NORMAL or FIFO.
        group_hash: of the message group; None without one.
        constant: the message's properties without those of `VARYING`: born time, keys and id.
        text: the properties, with format specifiers for what is missing in `constant`.
        json: the same as a JSON string.
    """

    topic: str
    type: str
    group_hash: int | None
    constant: str
    text: PropertyTemplate
    json: PropertyTemplate


class PropertyTemplate(NamedTuple):
    """Encoded properties of the messages of a shape, with specifiers for what differs.

    Attributes:
        bare: specifiers for born time and id.
        keyed: the same for born time, keys and id.
    """

    bare: bytes
    keyed: bytes

    def of(self, plain: PlainRequest) -> bytes:
        """Return the properties of a message."""
        if plain.keys:
            return self.keyed % (plain.born_at_ms, plain.keys, plain.message_id)
        return self.bare % (plain.born_at_ms, plain.message_id)


def read_plain(data: bytes) -> PlainRequest | None:
    """Return the parts of a request; None if it is not plain.

    It takes 5 us, because lengths of one byte are read without a call.
    """
    try:
        if data[0] != _MESSAGE:
            return None
        size, head_at = read_varint(data, 1)
        end = head_at + size
        if end != len(data) or data[head_at] != _TOPIC:
            return None
        at = head_at + 2 + data[head_at + 1]
        if data[head_at + 1] >= MORE:
            return None
        while data[at] == _USER_PROPERTY:
            size, at = read_varint(data, at + 1)
            at += size
        if data[at] != _SYSTEM:
            return None
        head = data[head_at:at]
        size, at = read_varint(data, at + 1)
        system_end = at + size
        if data[system_end] != _BODY:
            return None
        size, body_at = read_varint(data, system_end + 1)
        if body_at + size != end or not size:
            return None
        system = _read_system(data, at, system_end)
    except IndexError:
        return None
    if system is None:
        return None
    return PlainRequest(head, *system, data[body_at:end])


def _read_system(  # noqa: C901, PLR0912 - by hand
    data: bytes, at: int, end: int
) -> tuple[bytes, bytes, bytes, int] | None:
    """Return the rest, message id, keys and born time of system properties; None if not plain.

    Raises:
        IndexError: they are cut off.
    """
    rest_at, rest, keys, message_id, born_at_ms, newest = at, b"", b"", b"", -1, 0
    while at < end:
        tag = data[at]
        if tag <= newest and tag != _KEY:
            return None
        if tag >= MORE:
            if data[at : at + 2] != _MESSAGE_GROUP:
                return None
            at += 1
        newest, size, value_at = tag, data[at + 1], at + 2
        if not tag & _WIRE_TYPE:
            if size >= MORE:
                return None
            at = value_at
            continue
        if tag & _WIRE_TYPE != _LENGTH:
            return None
        if size >= MORE:
            size, value_at = read_varint(data, at + 1)
        value_end = value_at + size
        if tag in _CUT_OUT:
            value = data[value_at:value_end]
            if tag == _MESSAGE_ID:
                if not value.isalnum():
                    return None
                message_id = value
            elif tag == _BORN_TIME:
                born_at_ms = _milliseconds(value)
            elif tag == _KEY:
                if not value.isalnum() and _PLAIN_KEY.fullmatch(value) is None:
                    return None
                keys = keys + b" " + value if keys else value
            elif not _is_plain_digest(value):
                return None
            rest += data[rest_at:at]
            rest_at = value_end
        at = value_end
    if at != end or not message_id or born_at_ms < 0 or len(keys) > KEYS_BYTES_MAX:
        return None
    return rest + data[rest_at:end], message_id, keys, born_at_ms


def _is_plain_digest(value: bytes) -> bool:
    """Return whether a digest has a type, and a checksum of letters and digits, and no more.

    Raises:
        IndexError: it is shorter.
    """
    return (
        value[0] == _DIGEST_TYPE
        and value[1] < MORE
        and value[2] == _DIGEST_CHECKSUM
        and value[3] == len(value) - 4
        and value[4:].isalnum()
    )


def _milliseconds(value: bytes) -> int:
    """Return the time of a timestamp in epoch milliseconds; -1 if it is unusual."""
    if len(value) > _TIME_BYTES_MAX:
        return -1
    seconds_end = value.find(_NANOS, _SECONDS_BYTES)
    if seconds_end < 0:
        return _whole_seconds_ms(value)
    nanos, at = read_varint(value, seconds_end + 1)
    seconds_ms = _whole_seconds_ms(value[:seconds_end])
    if at != len(value) or seconds_ms < 0 or nanos > NANOS_MAX:
        return -1
    return seconds_ms + nanos // 1_000_000


@lru_cache(_SECONDS_CACHED)
def _whole_seconds_ms(value: bytes) -> int:
    """Return `_milliseconds` of a timestamp without nanoseconds."""
    if not value or value[0] != _SECONDS:
        return -1
    seconds, at = read_varint(value, 1)
    return seconds * 1_000 if at == len(value) and seconds <= SECONDS_MAX else -1


class Shapes:
    """Cache of the shapes of requests, None for those that need the general code."""

    def __init__(self, limits: CallLimits) -> None:
        self._limits = limits
        self._known: dict[tuple[bytes, bytes, str], Shape | None] = {}
        self._older: dict[tuple[bytes, bytes, str], Shape | None] = {}

    @property
    def count(self) -> int:
        """Number of shapes in memory."""
        return len(self._known) + len(self._older)

    def get(self, plain: PlainRequest, host: str) -> Shape | None:
        """Return the shape of a request; None if it is not plain.

        Args:
            plain: the request.
            host: the client's address, for messages that name no born host.
        """
        key = plain.head, plain.rest, host
        try:
            return self._known[key]
        except KeyError:
            shape = self._older.get(key) or self._compute(plain, host)
        if len(self._known) >= _SHAPES_MAX:
            self._older, self._known = self._known, {}
        if len(plain.head) + len(plain.rest) <= _SHAPE_BYTES_MAX:
            self._known[key] = shape
        return shape

    def _compute(self, plain: PlainRequest, host: str) -> Shape | None:
        """Return what the general code makes of the request with markers in it."""
        try:
            message = parse(v2.Message, plain.head)
            system = message.system_properties
            system.MergeFromString(plain.rest)
            message.body = b"x"
            system.message_id = _ID_MARKER
            system.born_timestamp.seconds, rest_ms = divmod(_BORN_MARKER_MS, 1_000)
            system.born_timestamp.nanos = rest_ms * 1_000_000
            check_topic(message.topic.name)
            system.keys.append("x" * KEYS_BYTES_MAX)  # as long as the longest that are plain
            check_message(message, self._limits, 0)
            del system.keys[:]
            bare = sent_message(message, host, 0)
            system.keys.append(_KEYS_MARKER)
            keyed = sent_message(message, host, 0)
        except (DecodeError, KourouError):
            return None
        kind, group = type_of(bare.properties), ordering_key([message])
        if bare.sys_flag or kind not in (NORMAL, FIFO):
            return None
        if bare.properties[names.RECONSUME_TIME] != "0":
            return None
        try:
            bare_text = encode_properties(bare.properties)
            keyed_text = encode_properties(keyed.properties)
            in_json = [property_json(text.decode()) for text in (bare_text, keyed_text)]
        except UnicodeError:
            return None
        text = PropertyTemplate(_template(bare_text), _template(keyed_text, has_keys=True))
        json = PropertyTemplate(_template(in_json[0]), _template(in_json[1], has_keys=True))
        if not all((*text, *json)):
            return None
        constant = {
            name: value for name, value in bare.properties.items() if name not in names.VARYING
        }
        group_hash = java_string_hash(group) if group else None
        return Shape(bare.topic, kind, group_hash, encode_properties(constant).decode(), text, json)


def _template(text: bytes, *, has_keys: bool = False) -> bytes:
    """Return encoded properties with specifiers for the markers; empty if that is impossible."""
    text = text.replace(b"%", b"%%")
    born, message_id = b"%d" % _BORN_MARKER_MS, _ID_MARKER.encode()
    markers = (born, _KEYS_MARKER.encode(), message_id) if has_keys else (born, message_id)
    positions = [text.find(marker) for marker in markers]
    if positions != sorted(positions) or any(text.count(marker) != 1 for marker in markers):
        return b""
    for marker in markers:
        text = text.replace(marker, b"%b" if marker[:1] == b"7" else b"%d")
    return text
