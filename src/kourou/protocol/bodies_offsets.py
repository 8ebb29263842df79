"""JSON of offsets: resets, consumers' positions, and a broker's tables of committed offsets.

Source: ResetOffsetBody.java, ResetOffsetBodyForC.java, GetConsumerStatusBody.java,
QueryCorrectionOffsetBody.java, ConsumerOffsetManager.java, DelayOffsetSerializeWrapper.java.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kourou.model.queue import MessageQueue
from kourou.protocol.bodies_queues import (
    offsets_by_queue,
    queue_from_json,
    queue_to_json,
)
from kourou.protocol.bodies_topics import (
    DataVersion,
    data_version_from_json,
    data_version_to_json,
)
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.frame import FRAME_SIZE_MAX
from kourou.protocol.json_values import (
    Json,
    as_integer,
    as_object,
    get_integer,
    get_object,
    get_texts,
)

QueueOffsets = Mapping[int, int]
"""Queue id, or delay level, to queue offset."""


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """Consumption progress of clients, in queue offsets.

    Attributes:
        offsets: those of the client that answers 221.
        clients: those of each client id, in a broker's response to 223.
    """

    offsets: Mapping[MessageQueue, int] = field(default_factory=dict)
    clients: Mapping[str, Mapping[MessageQueue, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsumerOffsetTable:
    """Committed offsets of all groups of a broker: response to 43 and file consumerOffset.json.

    Attributes:
        offsets: `topic@group` to the next queue offset to consume in each queue.
        group_topics: group to the topics for which it has offsets.
        pulled: like `offsets`, the next queue offset to pull; written by brokers that record it.
        light_queues: `queue@group` to the next queue offset; None unless light queues are enabled.
    """

    offsets: Mapping[str, QueueOffsets] = field(default_factory=dict)
    data_version: DataVersion | None = None
    group_topics: Mapping[str, Sequence[str]] | None = None
    pulled: Mapping[str, QueueOffsets] | None = None
    light_queues: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class DelayOffsetTable:
    """Progress of the delay levels: response to 45 and file delayOffset.json.

    Attributes:
        offsets: delay level, from 1, to the next queue offset to deliver.
    """

    offsets: QueueOffsets = field(default_factory=dict)
    data_version: DataVersion | None = None


def encode_reset_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Return the body of RESET_CONSUMER_CLIENT_OFFSET (220), also the response body of 222."""
    return dumps({"offsetTable": dict(offsets)})


def encode_reset_offsets_for_c(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Return the body of 220 for a client whose language is CPP: a list instead of a map."""
    return dumps(
        {
            "offsetTable": [
                queue_to_json(queue) | {"offset": offset} for queue, offset in offsets.items()
            ]
        }
    )


def decode_reset_offsets(body: bytes) -> dict[MessageQueue, int]:
    """Return the queue offsets decoded from a body of either form.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    data = as_object(loads(body, bare_keys_bytes_max=FRAME_SIZE_MAX), "offset reset")
    table = data.get("offsetTable")
    if isinstance(table, list):
        return {
            queue_from_json(entry): get_integer(as_object(entry, "offsetTable"), "offset")
            for entry in table
        }
    return offsets_by_queue(table, "offsetTable")


def encode_consumer_status(status: ConsumerStatus) -> bytes:
    """Return the response body of 221 and 223."""
    return dumps(
        {
            "consumerTable": {client: dict(table) for client, table in status.clients.items()},
            "messageQueueTable": dict(status.offsets),
        }
    )


def decode_consumer_status(body: bytes) -> ConsumerStatus:
    """Return the status decoded from a body.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    data = as_object(loads(body, bare_keys_bytes_max=FRAME_SIZE_MAX), "consumer status")
    return ConsumerStatus(
        offsets_by_queue(data.get("messageQueueTable"), "messageQueueTable"),
        {
            client: offsets_by_queue(table, "consumerTable")
            for client, table in get_object(data, "consumerTable").items()
        },
    )


def encode_correction_offsets(offsets: QueueOffsets) -> bytes:
    """Return the response body of QUERY_CORRECTION_OFFSET (308): offsets by queue id."""
    return dumps({"correctionOffsets": dict(offsets)})


def decode_correction_offsets(body: bytes) -> dict[int, int]:
    """Return the queue offsets decoded from a body, by queue id.

    Raises:
        MalformedBodyError: the body is not a JSON object of integers.
    """
    data = as_object(loads(body, bare_keys_bytes_max=FRAME_SIZE_MAX), "correction offsets")
    return _by_integer(data.get("correctionOffsets"), "correctionOffsets")


def encode_consumer_offset_table(table: ConsumerOffsetTable, *, pretty: bool = False) -> bytes:
    """Return the response body of GET_ALL_CONSUMER_OFFSET (43), or with `pretty` the file."""
    return dumps(
        {
            "dataVersion": _version(table.data_version),
            "groupTopicMap": None
            if table.group_topics is None
            else {group: list(topics) for group, topics in table.group_topics.items()},
            "lmqOffsetTable": None if table.light_queues is None else dict(table.light_queues),
            "offsetTable": _tables(table.offsets),
            "pullOffsetTable": None if table.pulled is None else _tables(table.pulled),
        },
        pretty=pretty,
    )


def decode_consumer_offset_table(body: bytes) -> ConsumerOffsetTable:
    """Return the table of a body or of the file.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    data = as_object(loads(body, bare_keys_bytes_max=max(FRAME_SIZE_MAX, len(body))), "offsets")
    topics = _optional(data, "groupTopicMap")
    pulled = _optional(data, "pullOffsetTable")
    light = _optional(data, "lmqOffsetTable")
    return ConsumerOffsetTable(
        _tables_from_json(get_object(data, "offsetTable"), "offsetTable"),
        _version_from_json(data),
        None if topics is None else {group: get_texts(topics, group) for group in topics},
        None if pulled is None else _tables_from_json(pulled, "pullOffsetTable"),
        None
        if light is None
        else {key: as_integer(offset, "lmqOffsetTable") for key, offset in light.items()},
    )


def encode_delay_offset_table(table: DelayOffsetTable, *, pretty: bool = False) -> bytes:
    """Return the response body of GET_ALL_DELAY_OFFSET (45), or with `pretty` the file."""
    return dumps(
        {"dataVersion": _version(table.data_version), "offsetTable": dict(table.offsets)},
        pretty=pretty,
    )


def decode_delay_offset_table(body: bytes) -> DelayOffsetTable:
    """Return the table of a body or of the file.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    data = as_object(loads(body), "delay offsets")
    return DelayOffsetTable(
        _by_integer(data.get("offsetTable"), "offsetTable"), _version_from_json(data)
    )


def _by_integer(value: object, label: str) -> dict[int, int]:
    """Return a map of integers; `loads` returns its bare keys as texts."""
    return {
        as_integer(key, label): as_integer(number, label)
        for key, number in as_object(value, label).items()
    }


def _tables(tables: Mapping[str, QueueOffsets]) -> dict[str, dict[int, int]]:
    return {key: dict(offsets) for key, offsets in tables.items()}


def _tables_from_json(tables: Json, label: str) -> dict[str, dict[int, int]]:
    return {key: _by_integer(offsets, label) for key, offsets in tables.items()}


def _optional(data: Json, name: str) -> Json | None:
    return None if data.get(name) is None else get_object(data, name)


def _version(version: DataVersion | None) -> dict[str, object] | None:
    return None if version is None else data_version_to_json(version)


def _version_from_json(data: Json) -> DataVersion | None:
    version = _optional(data, "dataVersion")
    return None if version is None else data_version_from_json(version)
