"""Tables of committed offsets and of the delay levels' progress: bodies and files of a broker.

`decode_consumer_offset_table` accepts all forms. `try_decode_offsets` accepts the form that brokers
write: the file has bare keys, which no JSON library reads, and decoding 80,000 offsets with
`fastjson` takes most of a second at each start. It takes a tenth of that, because it quotes the
bare keys with a regular expression before decoding. This is done only if all strings in the file
consist of the characters of names, so that none of them can look like a bare key.

`encode_offset_table_parts` yields the table in parts, between which the broker can handle requests.
Nearly all offsets change between two saves, so no encoded text is cached. An entry of eight queues
takes 3 us; 5,000 entries make about 25 parts of less than a millisecond each. The offsets of one
entry are consistent; different entries may be read at different times.

Source: ConsumerOffsetManager.java, DelayOffsetSerializeWrapper.java.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Annotated, Final

import msgspec

from kourou.protocol.codes import RequestCode
from kourou.protocol.data_version import DataVersion
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.frame import FRAME_SIZE_MAX
from kourou.protocol.json_records import FieldCodec, from_json, record_functions, to_json
from kourou.protocol.json_values import as_object, get_texts
from kourou.protocol.request_spec import BodyCodec, RequestSpec

QueueOffsets = Mapping[int, int]
"""Queue id, or delay level, to queue offset."""

_Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Tables = dict[str, dict[_Long, _Long]]
_NAME: Final = re.compile(rb'"[a-zA-Z0-9_%|@-]*"')
_BARE_KEY: Final = re.compile(rb"([0-9]+):")  # never within a string: those contain no colon
_PART_ENTRIES: Final = 200
_CACHED_FORMATS_MAX: Final = 1024
_encode_text: Final = msgspec.json.Encoder().encode

OffsetsOf = Callable[[str], QueueOffsets | None]
"""Returns the current offsets of a `topic@group`; None if it was removed."""


def _topics_to_json(topics_of_groups: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    return {group: list(topics) for group, topics in topics_of_groups.items()}


def _topics_from_json(value: object, label: str) -> dict[str, list[str]]:
    members = as_object(value, label)
    return {group: get_texts(members, group) for group in members}


_TOPICS_OF_GROUPS: Final = FieldCodec(_topics_to_json, _topics_from_json)


@dataclass(frozen=True, slots=True)
class ConsumerOffsetTable:
    """Committed offsets of all groups of a broker: response to 43 and file consumerOffset.json.

    Attributes:
        offsets: `topic@group` to the next queue offset to consume in each queue.
        group_topics: group to the topics for which it has offsets.
        pulled: like `offsets`, the next queue offset to pull; written by brokers that record it.
        light_queues: `queue@group` to the next queue offset; None unless light queues are enabled.
    """

    offsets: Mapping[str, QueueOffsets] = field(
        default_factory=dict, metadata={"wire": "offsetTable"}
    )
    data_version: DataVersion | None = None
    group_topics: Mapping[str, Sequence[str]] | None = field(
        default=None, metadata={"wire": "groupTopicMap", "codec": _TOPICS_OF_GROUPS}
    )
    pulled: Mapping[str, QueueOffsets] | None = field(
        default=None, metadata={"wire": "pullOffsetTable"}
    )
    light_queues: Mapping[str, int] | None = field(
        default=None, metadata={"wire": "lmqOffsetTable"}
    )


@dataclass(frozen=True, slots=True)
class DelayOffsetTable:
    """Progress of the delay levels: response to 45 and file delayOffset.json.

    Attributes:
        offsets: delay level, from 1, to the next queue offset to deliver.
    """

    offsets: QueueOffsets = field(default_factory=dict, metadata={"wire": "offsetTable"})
    data_version: DataVersion | None = None


def encode_consumer_offset_table(table: ConsumerOffsetTable, *, pretty: bool = False) -> bytes:
    """Return the response body of GET_ALL_CONSUMER_OFFSET (43), or with `pretty` the file."""
    return dumps(to_json(table), pretty=pretty)


def decode_consumer_offset_table(body: bytes) -> ConsumerOffsetTable:
    """Return the table of a body or of the file.

    Raises:
        MalformedBodyError: the body is not a JSON object, or a member has the wrong type.
    """
    data = loads(body, bare_keys_bytes_max=max(FRAME_SIZE_MAX, len(body)))
    return from_json(ConsumerOffsetTable, data, "offsets")


decode_delay_offset_table, encode_delay_offset_table = record_functions(
    DelayOffsetTable, "delay offsets"
)


class DecodedVersion(msgspec.Struct, rename="camel"):
    """A DataVersion."""

    counter: _Long
    state_version: _Long
    timestamp: _Long


class DecodedOffsets(msgspec.Struct, rename="camel"):
    """Decoded members of the file; both tables map `topic@group` -> queue id -> queue offset.

    Attributes:
        kourou_log_positions: Kourou's own, see `encode_offset_table_parts`; None in Java's files.
    """

    data_version: DecodedVersion
    offset_table: _Tables
    pull_offset_table: _Tables
    kourou_log_positions: tuple[_Long, ...] | None = None


_decode_offsets: Final = msgspec.json.Decoder(DecodedOffsets).decode


def try_decode_offsets(text: bytes) -> DecodedOffsets | None:
    """Return the offsets in the text; None if it is not in the usual form."""
    if b'"' in _NAME.sub(b"", text):
        return None
    try:
        return _decode_offsets(_BARE_KEY.sub(rb'"\1":', text))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def encode_offset_table_parts(
    version: DataVersion,
    group_topics: Mapping[str, Sequence[str]],
    committed: tuple[Sequence[str], OffsetsOf],
    pulled: tuple[Sequence[str], OffsetsOf],
    log_positions: tuple[int, int] | None = None,
) -> Iterator[bytes]:
    """Yield the parts of the pretty text that `encode_consumer_offset_table` returns.

    Args:
        version: version of the table.
        group_topics: sorted groups, each with its sorted topics.
        committed: the sorted keys of the committed offsets, and the function that returns them.
        pulled: the same for the pull offsets.
        log_positions: positions of the commit log; records below imply no offsets that are missing
            in the table. They add a member, which Java ignores.
    """
    yield dumps({"dataVersion": to_json(version)}, pretty=True)[: -len(b"\n}")]
    topics = (_group_topics(group, names) for group, names in group_topics.items())
    yield from _object(b"groupTopicMap", topics, 1)
    yield from _object(b"offsetTable", _entries(*committed), _PART_ENTRIES)
    yield from _object(b"pullOffsetTable", _entries(*pulled), _PART_ENTRIES)
    if log_positions is not None:
        yield b',\n\t"kourouLogPositions":[%d,%d]' % log_positions
    yield b"\n}"


def _object(name: bytes, members: Iterator[bytes], part_members: int) -> Iterator[bytes]:
    """Yield the parts of an object with these members, itself a member named `name`."""
    before = b',\n\t"%b":{\n\t\t' % name
    while part := list(islice(members, part_members)):
        yield before + b",\n\t\t".join(part)
        before = b",\n\t\t"
    yield b"\n\t}" if len(before) == len(b",\n\t\t") else b',\n\t"%b":{}' % name


def _group_topics(group: str, names: Iterable[str]) -> bytes:
    return b"%b:[\n\t\t\t%b\n\t\t]" % (
        _encode_text(group),
        b",\n\t\t\t".join(map(_encode_text, names)),
    )


def _entries(keys: Iterable[str], offsets_of: OffsetsOf) -> Iterator[bytes]:
    for key in keys:
        offsets = offsets_of(key)
        if offsets is not None:
            queue_ids = tuple(sorted(offsets))
            text = _offsets_format(queue_ids) % tuple(map(offsets.__getitem__, queue_ids))
            yield b"%b:%b" % (_encode_text(key), text)


@lru_cache(_CACHED_FORMATS_MAX)
def _offsets_format(queue_ids: tuple[int, ...]) -> bytes:
    """Return a format string for the offsets of these queues; most topics share one."""
    if not queue_ids:
        return b"{}"
    return b"{\n\t\t\t%b\n\t\t}" % b",\n\t\t\t".join(b"%d:%%d" % queue_id for queue_id in queue_ids)


SPECS: Final = (
    RequestSpec(
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        response_body=BodyCodec(decode_consumer_offset_table, encode_consumer_offset_table),
    ),
    RequestSpec(
        RequestCode.GET_ALL_DELAY_OFFSET,
        response_body=BodyCodec(decode_delay_offset_table, encode_delay_offset_table),
    ),
)
