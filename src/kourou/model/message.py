"""Message, as sent by a producer, and MessageExt, as received by a consumer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from dataclasses import fields as dataclass_fields
from typing import Any, Final, TypeVar

from kourou.decimals import decimal_or
from kourou.errors import InvalidMessageError
from kourou.model import properties as names
from kourou.model.host import Host, unpack_address
from kourou.model.message_checks import (
    check_delay_level,
    check_int32,
    check_priority,
    check_property,
    check_text,
    check_timer,
    checked_keys,
)
from kourou.model.msgid import encode_offset_msg_id

__all__ = ["Host", "Message", "MessageExt"]


_NO_PROPERTIES: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True, init=False)
class Message:
    """One message to send.

    The constructor rejects values that can never be stored: wrong types, reserved property names,
    characters that the property text cannot represent. Limits of brokers (sizes, topic names) are
    checked when the message is sent.

    Attributes:
        topic: the destination.
        body: the payload.
        tags: one tag, by which consumers can filter.
        keys: index keys by which the message can be queried; they contain no blanks.
        properties: user properties; names are not empty and not reserved, values are not empty.
            The mapping is copied: later changes to it do not affect the message.
        flag: a user-defined signed 32-bit number, stored unchanged.
        delay_level: 0 for immediate delivery, else a level of the broker: 1 to 18
            (`kourou.model.delay`) unless its `messageDelayLevel` differs. A level above the highest
            one is treated as the highest.
        deliver_at_ms: 0, or the delivery time in epoch milliseconds. A time in the past means
            immediate delivery. A time before March 1973 is refused, because it was probably given
            in seconds. Kourou's brokers deliver at that time, Java's when its second is over.
        delay_ms: 0, or the delay in milliseconds from the arrival at the broker to delivery.
            At most one of `delay_level`, `deliver_at_ms` and `delay_ms` may be set.
        priority: None, or a number from 0 on. Pop consumers receive higher priorities first; the
            broker selects the queue by it. It has no effect together with a delay or a sharding
            key.
        wait_store_ok: if the broker syncs each message, the response waits for the sync.

    Raises:
        InvalidMessageError: one of these rules is violated; the text names it.
    """

    topic: str
    body: bytes
    _: KW_ONLY
    tags: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0
    delay_level: int = 0
    wait_store_ok: bool = True
    deliver_at_ms: int = 0
    delay_ms: int = 0
    priority: int | None = None

    # Written by hand: the one that `dataclass` generates for a frozen class takes three times as
    # long, and producers create one object per message sent.
    def __init__(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] = _NO_PROPERTIES,
        flag: int = 0,
        delay_level: int = 0,
        wait_store_ok: bool = True,
        deliver_at_ms: int = 0,
        delay_ms: int = 0,
        priority: int | None = None,
    ) -> None:
        _set_topic(self, topic)
        _set_body(self, body)
        _set_tags(self, tags)
        _set_keys(self, keys)
        _set_properties(self, properties)
        _set_flag(self, flag)
        _set_delay_level(self, delay_level)
        _set_wait_store_ok(self, wait_store_ok)
        _set_deliver_at_ms(self, deliver_at_ms)
        _set_delay_ms(self, delay_ms)
        _set_priority(self, priority)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check the values that differ from their defaults, and copy keys and properties."""
        if not isinstance(self.topic, str):
            raise InvalidMessageError(f"topic must be a str, not {type(self.topic).__name__}")
        if not isinstance(self.body, bytes):
            raise InvalidMessageError(f"body must be bytes, not {_body_type_name(self.body)}")
        if self.flag != 0 or self.flag.__class__ is not int:
            check_int32("flag", self.flag)
        if self.delay_level != 0 or self.delay_level.__class__ is not int:
            check_delay_level(self.delay_level)
        if self.deliver_at_ms != 0 or self.delay_ms != 0 or self.priority is not None:
            check_timer(self.delay_level, self.deliver_at_ms, self.delay_ms)
            check_priority(self.priority)
        if self.tags is not None:
            check_text("tags", self.tags)
        if self.keys != ():
            _set_keys(self, checked_keys(self.keys))
        properties = self.properties
        if properties is _NO_PROPERTIES:
            _set_properties(self, {})
            return
        for name, value in properties.items():
            check_property(name, value)
        _set_properties(self, dict(properties))

    def to_properties(self) -> dict[str, str]:
        """Return a new dict of all properties to send: user properties and system properties."""
        properties = dict(self.properties)
        if self.keys:
            properties[names.KEYS] = " ".join(self.keys)
        properties[names.WAIT] = "true" if self.wait_store_ok else "false"
        if self.tags:
            properties[names.TAGS] = self.tags
        if self.delay_level:
            properties[names.DELAY] = str(self.delay_level)
        if self.deliver_at_ms:
            properties[names.TIMER_DELIVER_MS] = str(self.deliver_at_ms)
        if self.delay_ms:
            properties[names.TIMER_DELAY_MS] = str(self.delay_ms)
        if self.priority is not None:
            properties[names.PRIORITY] = str(self.priority)
        return properties

    @property
    def is_delayed(self) -> bool:
        """Whether the message is sent with a delay level, a delay or a delivery time."""
        return bool(self.delay_level or self.deliver_at_ms or self.delay_ms)

    def property_text(self, unique_id: str) -> str:
        """Return the text of `to_properties` and the unique id.

        Equals the result of `encode_properties`, in a third of the time.
        """
        text = f"WAIT\x01{'true' if self.wait_store_ok else 'false'}\x02"
        if self.keys:
            text = f"KEYS\x01{' '.join(self.keys)}\x02{text}"
        if self.properties:
            # The constructor refuses reserved names, so no name occurs twice in the text.
            users = [f"{name}\x01{value}\x02" for name, value in self.properties.items()]
            text = f"{''.join(users)}{text}"
        if self.tags:
            text = f"{text}TAGS\x01{self.tags}\x02"
        if self.delay_level:
            text = f"{text}DELAY\x01{self.delay_level}\x02"
        if self.deliver_at_ms:
            text = f"{text}TIMER_DELIVER_MS\x01{self.deliver_at_ms}\x02"
        if self.delay_ms:
            text = f"{text}TIMER_DELAY_MS\x01{self.delay_ms}\x02"
        if self.priority is not None:
            text = f"{text}{names.PRIORITY}\x01{self.priority}\x02"
        return f"{text}UNIQ_KEY\x01{unique_id}\x02"


def _body_type_name(body: object) -> str:
    return "str: pass text.encode()" if isinstance(body, str) else type(body).__name__


# Setters of the slots. They bypass the frozen dataclass and are faster than object.__setattr__.
(
    _set_topic,
    _set_body,
    _set_tags,
    _set_keys,
    _set_properties,
    _set_flag,
    _set_delay_level,
    _set_wait_store_ok,
    _set_deliver_at_ms,
    _set_delay_ms,
    _set_priority,
) = (getattr(Message, attribute.name).__set__ for attribute in dataclass_fields(Message))


class _LazyFields:
    """Undecoded fields of a record; they are decoded on first access.

    Most listeners read only topic and body. Decoding the properties and both hosts as well would
    cost as much as everything else that a consumer does for a message.
    """

    __slots__ = ("_raw_hosts", "_raw_properties")

    _raw_hosts: tuple[bytes, int, bytes, int]
    _raw_properties: bytes


@dataclass(slots=True)
class MessageExt(_LazyFields):
    """One message as stored by a broker.

    Attributes:
        properties: user properties and system properties.
        sys_flag: bits of `kourou.model.sysflag`; COMPRESSED is cleared when `body` is decompressed.
        born_at_ms: epoch milliseconds by the producer's clock; `store_at_ms` by the broker's.
        reconsume_times: number of times the message was sent back to the broker.
        prepared_transaction_offset: physical offset of its half message, else 0.
        store_size: size of the stored record in bytes.
        body_crc: checksum of the stored body, which may be compressed.
        broker_name: the broker it was read from; not part of the record.
    """

    topic: str
    body: bytes
    properties: dict[str, str]
    flag: int
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_at_ms: int
    born_host: Host
    store_at_ms: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    store_size: int
    body_crc: int
    broker_name: str = ""

    @property
    def tags(self) -> str | None:
        """The tag it was sent with."""
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> list[str]:
        """The index keys it was sent with."""
        return self.properties.get(names.KEYS, "").split()

    @property
    def msg_id(self) -> str:
        """The unique id set by the producer; the offset message id if it set none."""
        return self.properties.get(names.UNIQ_KEY) or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """The id made of the broker's host and the message's physical offset."""
        return encode_offset_msg_id(self.store_host, self.physical_offset)

    @property
    def priority(self) -> int | None:
        """The priority it was sent with; None if the property is missing or not a number."""
        text = self.properties.get(names.PRIORITY, "")
        return decimal_or(text, None)

    @property
    def delay_level(self) -> int:
        """The delay level it was sent with; 0 if the property is missing or not a number."""
        text = self.properties.get(names.DELAY, "0")
        return decimal_or(text, 0)

    @property
    def deliver_at_ms(self) -> int:
        """The requested delivery time in epoch milliseconds; 0 if it was sent without one.

        Of a message that a Java broker stored with a delay, only the second is known, not the time.
        """
        text = self.properties.get(names.TIMER_DELIVER_MS, "0")
        return decimal_or(text, 0)

    def __getstate__(self) -> tuple[None, dict[str, object]]:
        """Return the state for copying and pickling: all fields, decoded."""
        return None, {
            attribute.name: getattr(self, attribute.name) for attribute in dataclass_fields(self)
        }


_UNDECODED: Final[Any] = object()
"""Value of a lazy field until its first read. An empty slot would raise, which takes 1 us."""


def message_from_record(
    fields: tuple[Any, ...],
    topic: str,
    body: bytes,
    properties: bytes,
    kind: type[MessageExt] = MessageExt,
) -> MessageExt:
    """Return the message of a stored record.

    Properties and hosts are decoded on first access; the decoded values are then kept.

    Args:
        fields: the 17 numbers and addresses of the record up to the body, in record order.
        topic: the decoded topic.
        body: the stored body.
        properties: the encoded property text.
        kind: its class; the fields of a subclass are not set.
    """
    # Setting the slots here takes half the time of __init__ with decoded properties and hosts.
    message = kind.__new__(kind)
    message.topic = topic
    message.body = body
    # These slots belong to the base class; mypy does not see them in a dataclass with slots.
    message._raw_properties = properties  # type: ignore[misc]  # noqa: SLF001
    message.broker_name = ""
    (
        message.store_size,
        _,
        message.body_crc,
        message.queue_id,
        message.flag,
        message.queue_offset,
        message.physical_offset,
        message.sys_flag,
        message.born_at_ms,
        born_address,
        born_port,
        message.store_at_ms,
        store_address,
        store_port,
        message.reconsume_times,
        message.prepared_transaction_offset,
        _,
    ) = fields
    hosts = (born_address, born_port, store_address, store_port)
    message._raw_hosts = hosts  # type: ignore[misc]  # noqa: SLF001
    message.properties = message.born_host = message.store_host = _UNDECODED
    return message


T = TypeVar("T")
MessageT = TypeVar("MessageT", bound=MessageExt)


def copy_as(kind: type[MessageT], message: MessageExt) -> MessageT:
    """Return a copy of a message as a subclass; fields that are not decoded yet stay so."""
    copied = kind.__new__(kind)
    for get, put in _COPIED_SLOTS:
        try:
            put(copied, get(message))
        except AttributeError:
            pass  # built without a record
    return copied


_COPIED_SLOTS: Final = tuple(
    (slot.__get__, slot.__set__)
    for owner in (_LazyFields, MessageExt)
    for slot in map(owner.__dict__.__getitem__, owner.__slots__)
)
"""Getter and setter of each slot, before the lazy fields are replaced by properties below."""


def _decode_properties(message: MessageExt) -> dict[str, str]:
    properties = names.decode_properties(message._raw_properties)  # noqa: SLF001 - our own
    properties.pop(names.CRC32, None)  # the store's checksum of the record, not the producer's
    return properties


def _decode_born_host(message: MessageExt) -> Host:
    address, port, _, _ = message._raw_hosts  # noqa: SLF001 - our own
    return unpack_address(address), port


def _decode_store_host(message: MessageExt) -> Host:
    _, _, address, port = message._raw_hosts  # noqa: SLF001 - our own
    return unpack_address(address), port


def _decode_lazily(name: str, decode: Callable[[MessageExt], T]) -> None:
    """Replace the field `name` by a property that decodes it on first read; writes are unchanged.

    `__getattr__` would do the same but slow down reads of every other attribute.
    """
    slot = getattr(MessageExt, name)
    get, put = slot.__get__, slot.__set__
    # Values by id of their message, only while a read is in progress. The entry holds the message,
    # so that its id cannot be reused even if a signal handler raises and the entry is left behind.
    decoded: dict[int, tuple[MessageExt, T]] = {}

    def read(message: MessageExt) -> T:
        value: T = get(message)
        if value is _UNDECODED:
            # Threads that share a message must get the same dict. The second thread finds the value
            # of the first here or in the slot. `setdefault` is atomic, so no lock is needed.
            _, first = decoded.setdefault(id(message), (message, decode(message)))
            value = get(message)
            if value is _UNDECODED:
                value = first
                put(message, value)
            decoded.pop(id(message), None)
        return value

    setattr(MessageExt, name, property(read, put, slot.__delete__))


_DECODERS: Final[Mapping[str, Callable[[MessageExt], object]]] = {
    "properties": _decode_properties,
    "born_host": _decode_born_host,
    "store_host": _decode_store_host,
}
"""The fields that are decoded on first access."""
_LAZY_GETTERS: Final = tuple(getattr(MessageExt, name).__get__ for name in _DECODERS)
for _name, _decode in _DECODERS.items():
    _decode_lazily(_name, _decode)


def raw_parts(message: MessageExt) -> tuple[bytes, tuple[bytes, int, bytes, int]] | None:
    """Return what the record has of the fields that are decoded on first access.

    Those are the property text, and address and port of the producer and of the broker. None if one
    of the fields has been read or set.
    """
    for get in _LAZY_GETTERS:
        if get(message) is not _UNDECODED:
            return None
    return message._raw_properties, message._raw_hosts  # noqa: SLF001 - our own
