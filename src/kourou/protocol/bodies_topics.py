"""JSON of topics: one topic config, the table of all topics, and a broker's registration.

The table is the response body of 21, the main part of a registration (103) and the content of
config/topics.json.

Source: TopicConfig.java, TopicConfigSerializeWrapper.java,
TopicConfigAndMappingSerializeWrapper.java, RegisterBrokerBody.java, DataVersion.java.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from kourou.errors import MalformedBodyError, MalformedMessageError
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import VERSION, VERSION_FULL_REGISTER_BODY, VERSION_TOPIC_QUEUE_MAPPING
from kourou.protocol.compression import decompress
from kourou.protocol.fast_topics import (
    DecodedTopicTable,
    try_decode_registration,
    try_decode_topic_table,
)
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.json_values import (
    Json,
    as_integer,
    as_list,
    as_object,
    as_text,
    get_boolean,
    get_integer,
    get_list,
    get_object,
    get_text,
    get_text_map,
    get_texts,
)

REGISTER_BODY_SIZE_MAX: Final = 256 * 1024 * 1024
"""Largest decompressed size of a registration in bytes: about a million topics."""

_SIZE: Final = struct.Struct(">i")
_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")


@dataclass(frozen=True, slots=True)
class DataVersion:
    """Version of a table; two versions are the same if all three members are equal.

    Attributes:
        counter: number of changes since the table was created.
        state_version: version of the broker's role.
        timestamp: time of the last change in epoch milliseconds.
    """

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0

    def next(self, now_ms: int) -> DataVersion:
        """Return the version after one more change, at `now_ms`."""
        return DataVersion(self.counter + 1, self.state_version, now_ms)


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


def data_version_to_json(version: DataVersion) -> dict[str, object]:
    """Return the JSON object of a version."""
    return {
        "counter": version.counter,
        "stateVersion": version.state_version,
        "timestamp": version.timestamp,
    }


def data_version_from_json(data: Json) -> DataVersion:
    """Return the version of a JSON object; missing members are 0.

    Raises:
        MalformedBodyError: a member is not an integer.
    """
    return DataVersion(
        get_integer(data, "counter"),
        get_integer(data, "stateVersion"),
        get_integer(data, "timestamp"),
    )


def encode_data_version(version: DataVersion) -> bytes:
    """Return the body of QUERY_DATA_VERSION (322), request or response."""
    return dumps(data_version_to_json(version))


def decode_data_version(body: bytes) -> DataVersion:
    """Return the version decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member is not an integer.
    """
    return data_version_from_json(as_object(loads(body), "data version"))


def topic_config_to_json(config: TopicConfig) -> dict[str, object]:
    """Return the JSON object of a topic config."""
    return {
        "attributes": dict(config.attributes),
        "order": config.order,
        "perm": config.perm,
        "readQueueNums": config.read_queue_nums,
        "topicFilterType": config.topic_filter_type,
        "topicName": config.name,
        "topicSysFlag": config.topic_sys_flag,
        "writeQueueNums": config.write_queue_nums,
    }


def topic_config_from_json(data: Json) -> TopicConfig:
    """Return the topic config of a JSON object; missing members take TopicConfig's defaults.

    Raises:
        MalformedBodyError: the topic name is missing, or a member has the wrong type.
    """
    name = get_text(data, "topicName")
    if not name:
        raise MalformedBodyError("topicName is missing")
    default = TopicConfig(name)
    return TopicConfig(
        name,
        get_integer(data, "readQueueNums", default.read_queue_nums),
        get_integer(data, "writeQueueNums", default.write_queue_nums),
        get_integer(data, "perm", default.perm),
        _filter_type(data.get("topicFilterType")),
        get_integer(data, "topicSysFlag"),
        get_boolean(data, "order"),
        get_text_map(data, "attributes"),
    )


def _filter_type(value: object) -> str:
    """Return the filter type; like fastjson, accept the ordinal too."""
    if value is None:
        return _FILTER_TYPES[0]
    if type(value) is int and 0 <= value < len(_FILTER_TYPES):
        return _FILTER_TYPES[value]
    return as_text(value, "topicFilterType")


def encode_topic_config(config: TopicConfig) -> bytes:
    """Return the response body of GET_TOPIC_CONFIG (351)."""
    return dumps(topic_config_to_json(config))


def decode_topic_config(body: bytes) -> TopicConfig:
    """Return the topic config decoded from a body.

    Raises:
        MalformedBodyError: as for `topic_config_from_json`, or the body is not a JSON object.
    """
    return topic_config_from_json(as_object(loads(body), "topic config"))


def encode_topic_config_list(configs: Sequence[TopicConfig]) -> bytes:
    """Return the body of UPDATE_AND_CREATE_TOPIC_LIST (18)."""
    return dumps({"topicConfigList": [topic_config_to_json(config) for config in configs]})


def decode_topic_config_list(body: bytes) -> list[TopicConfig]:
    """Return the topic configs decoded from a body.

    Raises:
        MalformedBodyError: as for `topic_config_from_json`, or the body is not a JSON object.
    """
    configs = get_list(as_object(loads(body), "topic list"), "topicConfigList")
    return [topic_config_from_json(as_object(config, "topicConfigList")) for config in configs]


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


_GENERAL_FORM_BYTES_MAX: Final = 2 * 1024 * 1024
"""Largest registration in a form that `try_decode_registration` declines: its decoding creates an
object for each value."""
_BARE_KEYS_BYTES_MAX: Final = 256 * 1024
"""Largest registration with bare keys; Java brokers with static topics write integer keys."""


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
    if len(body) > _GENERAL_FORM_BYTES_MAX:
        raise MalformedBodyError(
            f"a registration of {len(body)} bytes in an unusual form: at most "
            f"{_GENERAL_FORM_BYTES_MAX} bytes are accepted in this form"
        )
    data = as_object(loads(body, bare_keys_bytes_max=_BARE_KEYS_BYTES_MAX), "registration")
    if version < VERSION_FULL_REGISTER_BODY:
        return RegisterBody(_table_from_json(data))
    return RegisterBody(
        _table_from_json(get_object(data, "topicConfigSerializeWrapper")),
        tuple(get_texts(data, "filterServerList")),
    )


_STATIC_TOPIC_MEMBERS: Final[dict[str, object]] = {
    "mappingDataVersion": data_version_to_json(DataVersion()),
    "topicQueueMappingDetailMap": {},
    "topicQueueMappingInfoMap": {},
}
"""Members that Java writes without static topics; its readers expect them."""


def _table_to_json(table: TopicConfigTable) -> dict[str, object]:
    return {
        "dataVersion": data_version_to_json(table.data_version),
        "topicConfigTable": {
            name: topic_config_to_json(config) for name, config in table.topics.items()
        },
    }


def _table_of(decoded: DecodedTopicTable) -> TopicConfigTable:
    version = msgspec.convert(decoded.data_version, DataVersion, from_attributes=True)
    return TopicConfigTable(decoded.topics(), version)


def _table_from_json(data: Json) -> TopicConfigTable:
    topics = {}
    for name, value in get_object(data, "topicConfigTable").items():
        config = as_object(value, "topicConfigTable")
        # Lookups use the key, so the key is the topic's name.
        topics[name] = topic_config_from_json({**config, "topicName": name})
    return TopicConfigTable(topics, data_version_from_json(get_object(data, "dataVersion")))


def _decode_compressed(body: bytes, version: int) -> RegisterBody:
    """Return the registration in a compressed body, a stream of texts preceded by their sizes."""
    try:
        data = decompress(body, 0, size_max=REGISTER_BODY_SIZE_MAX)
    except MalformedMessageError as error:
        raise MalformedBodyError(f"compressed registration: {error}") from None
    parts = _SizedPartReader(data)
    data_version = data_version_from_json(as_object(loads(parts.text()), "data version"))
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
    return topic_config_from_json(
        {
            "topicName": name,
            "readQueueNums": as_integer(words[0], "readQueueNums"),
            "writeQueueNums": as_integer(words[1], "writeQueueNums"),
            "perm": as_integer(words[2], "perm"),
            "topicFilterType": words[3],
            "attributes": attributes,
        }
    )
