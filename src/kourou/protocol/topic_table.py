"""The table of all topics of a broker, and its registration at name servers.

The table is the response body of 21, the main part of a registration (103) and the content of
config/topics.json.

Decoding 5,000 topics member by member takes 60 ms, during which the name server handles no other
request. `try_decode_topic_table` and `try_decode_registration` take a fifth of that; they accept
the form that current brokers write. The other decoders accept all forms that Java accepts.
`TopicTableEncoder` joins the text of the table from cached texts of its topics: see
`encoded_members`.

Source: TopicConfigSerializeWrapper.java, TopicConfigAndMappingSerializeWrapper.java,
RegisterBrokerBody.java, RegisterBrokerRequestHeader.java and ResponseHeader,
UnRegisterBrokerRequestHeader.java, QueryDataVersionRequestHeader.java and ResponseHeader,
BrokerHeartbeatRequestHeader.java.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeVar

import msgspec

from kourou.errors import MalformedBodyError, MalformedMessageError
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import (
    VERSION,
    VERSION_FULL_REGISTER_BODY,
    VERSION_TOPIC_QUEUE_MAPPING,
    RequestCode,
)
from kourou.protocol.compression import decompress
from kourou.protocol.data_version import (
    DataVersion,
    decode_data_version,
    encode_data_version,
)
from kourou.protocol.encoded_members import EncodedMembers
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.fields import Int, Long
from kourou.protocol.frame import FRAME_SIZE_MAX
from kourou.protocol.json_records import from_json, to_json
from kourou.protocol.json_values import (
    Json,
    as_integer,
    as_list,
    as_object,
    as_text,
    get_object,
    get_texts,
)
from kourou.protocol.kv_config import KV_TABLE_CODEC
from kourou.protocol.request_spec import BodyCodec, RequestSpec

_T = TypeVar("_T")
_Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

REGISTER_BODY_SIZE_MAX: Final = 256 * 1024 * 1024
"""Largest decompressed size of a registration in bytes: about a million topics."""

_SIZE: Final = struct.Struct(">i")

GENERAL_FORM_BYTES_MAX: Final = 2 * 1024 * 1024
"""Largest registration in a form that `try_decode_registration` declines: its decoding creates an
object for each value."""

_BARE_KEYS_BYTES_MAX: Final = 256 * 1024
"""Largest registration with bare keys; Java brokers with static topics write integer keys."""

_STATIC_TOPIC_MEMBERS: Final[dict[str, object]] = {
    "mappingDataVersion": to_json(DataVersion()),
    "topicQueueMappingDetailMap": {},
    "topicQueueMappingInfoMap": {},
}
"""Members that Java writes without static topics; its readers expect them."""

_TABLE: Final = "topicConfigTable"


@dataclass(slots=True)
class GetAllTopicConfigRequestHeader:
    """GET_ALL_TOPIC_CONFIG (21): all topics, or a page from `topic_seq` on; has a response body.

    Attributes:
        data_version: version of the previous pages; if it differs, paging restarts at topic 0.
    """

    topic_seq: Int | None = None
    data_version: str | None = None
    max_topic_num: Int | None = None


@dataclass(slots=True)
class GetAllTopicConfigResponseHeader:
    """The number of topics on all pages."""

    total_topic_num: Int | None = None


@dataclass(slots=True)
class RegisterBrokerRequestHeader:
    """REGISTER_BROKER (103): a broker and, in the body, its topics.

    Attributes:
        broker_addr: `host:port` for clients.
        ha_server_addr: `host:port` for replicas.
        broker_id: 0 is the master.
        heartbeat_timeout_millis: the broker is removed after this time without a heartbeat; None
            means 120,000.
        enable_acting_master: None if the broker is older than the option.
        compressed: the body is compressed.
        body_crc32: CRC-32 of the body as sent, 31 bits; 0 is not checked.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Long
    heartbeat_timeout_millis: Long | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int = 0


@dataclass(slots=True)
class RegisterBrokerResponseHeader:
    """The master's addresses in a response to a slave; both are None for a master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@dataclass(slots=True)
class UnregisterBrokerRequestHeader:
    """UNREGISTER_BROKER (104): the broker shuts down."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@dataclass(slots=True)
class QueryDataVersionRequestHeader:
    """QUERY_DATA_VERSION (322): whether the name server has this broker's latest topic table."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Long


@dataclass(slots=True)
class QueryDataVersionResponseHeader:
    """Response: whether the version in the request's body differs from the registered one."""

    changed: bool


@dataclass(slots=True)
class BrokerHeartbeatRequestHeader:
    """BROKER_HEARTBEAT (904): the broker is alive; the optional fields are for a controller.

    Attributes:
        kourou_role_epoch: the newest epoch in which a broker of Kourou had a role; None without.
        kourou_role_master: the master of that epoch; None if the broker has started since.
    """

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Long | None = None
    epoch: Int | None = None
    max_offset: Long | None = None
    confirm_offset: Long | None = None
    # Misspelled on the wire.
    heartbeat_timeout_mills: Long | None = None
    election_priority: Int | None = None
    kourou_role_epoch: Int | None = None
    kourou_role_master: Long | None = None


@dataclass(slots=True)
class BrokerHeartbeatResponseHeader:
    """The broker's master as a leading controller of Kourou knows it; other servers omit it.

    A master whose id or epoch differs was deposed: the response does not confirm it.

    Attributes:
        master_broker_id: None if the broker has no master at the moment.
    """

    master_broker_id: Long | None = None
    master_address: str | None = None
    master_epoch: Int | None = None
    sync_state_set_epoch: Int | None = None


class _Version(msgspec.Struct, rename="camel"):
    counter: _Long
    state_version: _Long
    timestamp: _Long


class _Topic(msgspec.Struct, rename="camel", gc=False):
    """Has the attributes of TopicConfig, so that msgspec converts it without Python code."""

    attributes: dict[str, str]
    order: bool
    perm: _Long
    read_queue_nums: _Long
    topic_filter_type: str
    name: str = msgspec.field(name="topicName")
    topic_sys_flag: _Long = msgspec.field()
    write_queue_nums: _Long = msgspec.field()


class DecodedTopicTable(msgspec.Struct, rename="camel"):
    """A broker's topics and their version."""

    data_version: _Version
    topic_config_table: dict[str, _Topic]

    def topics(self) -> dict[str, TopicConfig]:
        """Return the topics by name."""
        table = self.topic_config_table
        return msgspec.convert(table, dict[str, TopicConfig], from_attributes=True)


class DecodedRegistration(msgspec.Struct, rename="camel"):
    """The body of REGISTER_BROKER (103)."""

    filter_server_list: list[str]
    topic_config_serialize_wrapper: DecodedTopicTable


_decode_table: Final = msgspec.json.Decoder(DecodedTopicTable).decode


_decode_registration: Final = msgspec.json.Decoder(DecodedRegistration).decode


def try_decode_topic_table(data: bytes) -> DecodedTopicTable | None:
    """Return the table of a body or of config/topics.json; None if it is not in the usual form."""
    table = _try_decode(_decode_table, data)
    return table if table is not None and _keys_match_names(table) else None


def try_decode_registration(data: bytes) -> DecodedRegistration | None:
    """Return the registration in a body; None if it is not in the usual form."""
    body = _try_decode(_decode_registration, data)
    is_usual = body is not None and _keys_match_names(body.topic_config_serialize_wrapper)
    return body if is_usual else None


def _try_decode(decode: Callable[[bytes], _T], data: bytes) -> _T | None:
    if b"$ref" in bytes(data):
        return None
    try:
        return decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _keys_match_names(table: DecodedTopicTable) -> bool:
    """Return whether all keys equal the names of their topics."""
    return all(name and name == topic.name for name, topic in table.topic_config_table.items())


@dataclass(frozen=True, slots=True)
class TopicConfigTable:
    """A broker's topics, by name, and their version."""

    topics: Mapping[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


@dataclass(frozen=True, slots=True)
class RegisterBody:
    """The body of REGISTER_BROKER (103).

    Attributes:
        table: all topics, or only the changed ones with the version of the whole table.
        filter_servers: sent by old brokers; decoded, without effect.
    """

    table: TopicConfigTable = field(default_factory=TopicConfigTable)
    filter_servers: Sequence[str] = ()


def encode_topic_config_table(table: TopicConfigTable, *, pretty: bool = False) -> bytes:
    """Return the response body of GET_ALL_TOPIC_CONFIG (21), or with `pretty` config/topics.json.

    As in Java, the file lacks the members of static topics.
    """
    value = _table_to_json(table)
    return dumps(value if pretty else _STATIC_TOPIC_MEMBERS | value, pretty=pretty)


def decode_topic_config_table(data: bytes) -> TopicConfigTable:
    """Return the table of a body or of config/topics.json.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    decoded = try_decode_topic_table(data)
    if decoded is not None:
        return _table_of(decoded)
    return _table_from_json(as_object(loads(data), "topic table"))


def encode_register_body(body: RegisterBody) -> bytes:
    """Return the uncompressed body of REGISTER_BROKER (103)."""
    return dumps(
        {
            "filterServerList": list(body.filter_servers),
            "topicConfigSerializeWrapper": _STATIC_TOPIC_MEMBERS | _table_to_json(body.table),
        }
    )


def decode_register_body(
    body: bytes, *, compressed: bool = False, version: int = VERSION
) -> RegisterBody:
    """Return the registration decoded from a body; an empty body has no topics and version 0.

    The mappings of static topics are checked for their form and dropped.

    Args:
        body: of the request.
        compressed: as in the request's header.
        version: that of the request; before 3.0.11 the body contains the topic table only.

    Raises:
        MalformedBodyError: the body does not parse in the form that these arguments state.
    """
    if not body:
        return RegisterBody()
    if compressed:
        return _decode_compressed(body, version)
    decoded = try_decode_registration(body) if version >= VERSION_FULL_REGISTER_BODY else None
    if decoded is not None:
        table = _table_of(decoded.topic_config_serialize_wrapper)
        return RegisterBody(table, tuple(decoded.filter_server_list))
    if len(body) > GENERAL_FORM_BYTES_MAX:
        raise MalformedBodyError(
            f"a registration of {len(body)} bytes in an unusual form: at most "
            f"{GENERAL_FORM_BYTES_MAX} bytes are accepted in this form"
        )
    data = as_object(loads(body, bare_keys_bytes_max=_BARE_KEYS_BYTES_MAX), "registration")
    if version < VERSION_FULL_REGISTER_BODY:
        return RegisterBody(_table_from_json(data))
    return RegisterBody(
        _table_from_json(get_object(data, "topicConfigSerializeWrapper")),
        tuple(get_texts(data, "filterServerList")),
    )


def _table_to_json(table: TopicConfigTable) -> dict[str, object]:
    return {
        "dataVersion": to_json(table.data_version),
        "topicConfigTable": {name: to_json(config) for name, config in table.topics.items()},
    }


def _table_of(decoded: DecodedTopicTable) -> TopicConfigTable:
    version = msgspec.convert(decoded.data_version, DataVersion, from_attributes=True)
    return TopicConfigTable(decoded.topics(), version)


def _table_from_json(data: Json) -> TopicConfigTable:
    topics = {}
    for name, value in get_object(data, "topicConfigTable").items():
        config = as_object(value, "topicConfigTable")
        # Lookups use the key, so the key is the topic's name.
        topics[name] = from_json(TopicConfig, {**config, "topicName": name}, "topicConfigTable")
    return TopicConfigTable(topics, from_json(DataVersion, data.get("dataVersion"), "dataVersion"))


def _decode_compressed(body: bytes, version: int) -> RegisterBody:
    """Return the registration in a compressed body, a stream of texts preceded by their sizes."""
    try:
        data = decompress(body, 0, size_max=REGISTER_BODY_SIZE_MAX)
    except MalformedMessageError as error:
        raise MalformedBodyError(f"compressed registration: {error}") from None
    parts = _SizedPartReader(data)
    data_version = from_json(DataVersion, loads(parts.text()), "data version")
    topics = [_topic_config_from_text(parts.text()) for _ in range(parts.count())]
    filter_servers = [
        as_text(server, "filter server") for server in as_list(loads(parts.text()), "list")
    ]
    if version >= VERSION_TOPIC_QUEUE_MAPPING:
        for _ in range(parts.count()):
            as_object(loads(parts.text()), "static topic")
    return RegisterBody(
        TopicConfigTable({config.name: config for config in topics}, data_version),
        tuple(filter_servers),
    )


class _SizedPartReader:
    """Reads the parts of a decompressed registration in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def count(self) -> int:
        """Return the next number; it must not exceed the number of bytes that follow."""
        at = self._at + _SIZE.size
        if at > len(self._data):
            raise MalformedBodyError("compressed registration is truncated")
        number: int = _SIZE.unpack_from(self._data, self._at)[0]
        if not 0 <= number <= len(self._data) - at:
            raise MalformedBodyError(f"compressed registration: size {number}")
        self._at = at
        return number

    def text(self) -> str:
        """Return the next text, which is preceded by its size."""
        size = self.count()
        start, self._at = self._at, self._at + size
        try:
            return self._data[start : self._at].decode()
        except UnicodeDecodeError as error:
            raise MalformedBodyError(f"compressed registration: {error}") from None


def _topic_config_from_text(text: str) -> TopicConfig:
    """Return the config of `name readQueues writeQueues perm filterType {attributes}`."""
    name, *words = text.split(" ", 5)
    if len(words) < 4:
        raise MalformedBodyError(f"compressed registration: topic {text[:80]!r}")
    attributes: Any = as_object(loads(words[4]), "attributes") if len(words) > 4 else {}
    members = {
        "topicName": name,
        "readQueueNums": as_integer(words[0], "readQueueNums"),
        "writeQueueNums": as_integer(words[1], "writeQueueNums"),
        "perm": as_integer(words[2], "perm"),
        "topicFilterType": words[3],
        "attributes": attributes,
    }
    return from_json(TopicConfig, members, "topic config")


class TopicTableEncoder:
    """Builds the same bytes as the encoders above, for the file, responses and registrations."""

    def __init__(self) -> None:
        self._members = EncodedMembers()

    def put(self, topic: TopicConfig) -> None:
        """Add or replace a topic."""
        self._members.put(topic.name, to_json(topic))

    def remove(self, name: str) -> None:
        """Remove a topic; an unknown name is ignored."""
        self._members.remove(name)

    def encode(self, version: DataVersion) -> bytes:
        """Return the pretty text that `encode_topic_config_table` returns for the whole table."""
        empty_text = encode_topic_config_table(TopicConfigTable({}, version), pretty=True)
        return self._members.pretty(empty_text, _TABLE)

    def encode_body(self, version: DataVersion, names: Iterable[str] | None = None) -> bytes:
        """Return the compact text of the table with all topics, or with those in `names`."""
        empty_text = encode_topic_config_table(TopicConfigTable({}, version))
        return self._members.compact(empty_text, _TABLE, names)

    def encode_registration(self, version: DataVersion) -> bytes:
        """Return the body that `encode_register_body` returns for all topics."""
        empty_text = encode_register_body(RegisterBody(TopicConfigTable({}, version)))
        return self._members.compact(empty_text, _TABLE)


_VERSION: Final = BodyCodec(decode_data_version, encode_data_version)

SPECS: Final = (
    RequestSpec(
        RequestCode.GET_ALL_TOPIC_CONFIG,
        GetAllTopicConfigRequestHeader,
        GetAllTopicConfigResponseHeader,
        response_body=BodyCodec(decode_topic_config_table, encode_topic_config_table),
    ),
    RequestSpec(
        RequestCode.REGISTER_BROKER,
        RegisterBrokerRequestHeader,
        RegisterBrokerResponseHeader,
        BodyCodec(decode_register_body, encode_register_body),
        KV_TABLE_CODEC,
        body_bytes_max=FRAME_SIZE_MAX,  # contains all topics of a broker
    ),
    RequestSpec(RequestCode.UNREGISTER_BROKER, UnregisterBrokerRequestHeader),
    RequestSpec(
        RequestCode.BROKER_HEARTBEAT, BrokerHeartbeatRequestHeader, BrokerHeartbeatResponseHeader
    ),
    RequestSpec(
        RequestCode.QUERY_DATA_VERSION,
        QueryDataVersionRequestHeader,
        QueryDataVersionResponseHeader,
        _VERSION,
        _VERSION,
    ),
)
