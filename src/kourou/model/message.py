"""Message, what a producer sends, and MessageExt, what a consumer gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field

from kourou.errors import InvalidMessageError
from kourou.model import properties as names
from kourou.model.host import Host
from kourou.model.msgid import encode_offset_msg_id

__all__ = ["Host", "Message", "MessageExt"]


@dataclass(frozen=True, slots=True)
class Message:
    """One message to send.

    The constructor refuses what can never be written: wrong types, reserved property names,
    characters that the property text cannot hold. Limits that a broker sets (sizes, topic names)
    are checked by who sends.

    Attributes:
        topic: where it goes.
        body: the payload.
        tags: one tag to subscribe by.
        keys: index keys to find it by, each without blanks.
        properties: the user's own; a name is not empty and not reserved, a value not empty.
            Copied, so that a later change of the mapping given does not reach the message.
        flag: a number of the user's, stored as it is, 32 bits signed.
        delay_level: 0 at once, else 1 to 18 (`kourou.model.delay`).
        wait_store_ok: the answer waits for the sync, where the broker syncs each message.

    Raises:
        InvalidMessageError: one of the rules above does not hold; the text names it.
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

    def __post_init__(self) -> None:
        if not isinstance(self.topic, str):
            raise InvalidMessageError(f"topic is a str, not {type(self.topic).__name__}")
        if not isinstance(self.body, bytes):
            raise InvalidMessageError(f"body is bytes, not {type(self.body).__name__}")
        _check_int32("flag", self.flag)
        _check_int32("delay_level", self.delay_level)
        if self.delay_level < 0:
            raise InvalidMessageError(f"delay_level {self.delay_level} is negative")
        if self.tags is not None:
            _check_text("tags", self.tags)
        # A str is a sequence of str: without this, keys="o-17" would be four keys.
        if isinstance(self.keys, str):
            raise InvalidMessageError("keys is a list of texts, not one text")
        for key in self.keys:
            _check_text("a key", key)
            if " " in key:
                raise InvalidMessageError(f"key {key!r} has a blank, which separates keys")
        for name, value in self.properties.items():
            _check_property(name, value)
        object.__setattr__(self, "keys", tuple(self.keys))
        object.__setattr__(self, "properties", dict(self.properties))

    def to_properties(self) -> dict[str, str]:
        """Return a new dict of all properties as they are sent: the user's and the system's."""
        properties = dict(self.properties)
        if self.keys:
            properties[names.KEYS] = " ".join(self.keys)
        properties[names.WAIT] = "true" if self.wait_store_ok else "false"
        if self.tags:
            properties[names.TAGS] = self.tags
        if self.delay_level:
            properties[names.DELAY] = str(self.delay_level)
        return properties


def _check_int32(name: str, value: object) -> None:
    if not isinstance(value, int) or not -(1 << 31) <= value < 1 << 31:
        raise InvalidMessageError(f"{name} {value!r} is not a 32-bit integer")


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise InvalidMessageError(f"{what} is a str, not {type(text).__name__}")
    if not text:
        raise InvalidMessageError(f"{what} is empty, and an empty property does not survive")
    if "\x02" in text:
        raise InvalidMessageError(f"{what} {text!r} has \\x02, which ends a property")


def _check_property(name: str, value: object) -> None:
    _check_text("a property name", name)
    if "\x01" in name:
        raise InvalidMessageError(f"property name {name!r} has \\x01, which ends a name")
    if name in names.RESERVED:
        raise InvalidMessageError(f"property {name} is set by the system; choose another name")
    _check_text(f"the value of property {name}", value)


@dataclass(slots=True)
class MessageExt:
    """One message as a broker stores it.

    Attributes:
        properties: the user's and the system's together.
        sys_flag: bits of `kourou.model.sysflag`; COMPRESSED is off when `body` was inflated.
        born_at_ms: epoch milliseconds by the producer's clock; `store_at_ms` by the broker's.
        reconsume_times: how often it was given back to the broker.
        prepared_transaction_offset: physical offset of its half message, else 0.
        store_size: bytes of the stored record.
        body_crc: of the stored body, which may be compressed.
        broker_name: who it was read from; a record does not hold it.
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
        """The producer's unique id; the offset message id where it gave none."""
        return self.properties.get(names.UNIQ_KEY) or self.offset_msg_id

    @property
    def offset_msg_id(self) -> str:
        """The id that says where the message is stored."""
        return encode_offset_msg_id(self.store_host, self.physical_offset)

    @property
    def delay_level(self) -> int:
        """The delay level it was sent with; 0 where none or no number is given."""
        text = self.properties.get(names.DELAY, "0")
        return int(text) if text.isascii() and text.isdigit() else 0
