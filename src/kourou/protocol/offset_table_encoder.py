"""Encoder of the offset table in parts, between which the broker can handle requests.

Nearly all offsets change between two saves, so no encoded text is cached. An entry of eight queues
takes 3 us; 5,000 entries make about 25 parts of less than a millisecond each. The offsets of one
entry are consistent; different entries may be read at different times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final

import msgspec

from kourou.protocol.bodies_offsets import QueueOffsets
from kourou.protocol.bodies_topics import DataVersion, data_version_to_json
from kourou.protocol.fastjson import dumps

_PART_ENTRIES: Final = 200
_CACHED_FORMATS_MAX: Final = 1024
_encode: Final = msgspec.json.Encoder().encode

OffsetsOf = Callable[[str], QueueOffsets | None]
"""Returns the current offsets of a `topic@group`; None if it was removed."""


def encode_offset_table_parts(
    version: DataVersion,
    group_topics: Mapping[str, Sequence[str]],
    committed: tuple[Sequence[str], OffsetsOf],
    pulled: tuple[Sequence[str], OffsetsOf],
) -> Iterator[bytes]:
    """Yield the parts of the pretty text that `encode_consumer_offset_table` returns.

    Args:
        version: version of the table.
        group_topics: sorted groups, each with its sorted topics.
        committed: the sorted keys of the committed offsets, and the function that returns them.
        pulled: the same for the pull offsets.
    """
    yield dumps({"dataVersion": data_version_to_json(version)}, pretty=True)[: -len(b"\n}")]
    topics = (_topics(group, names) for group, names in group_topics.items())
    yield from _object(b"groupTopicMap", topics, 1)
    yield from _object(b"offsetTable", _entries(*committed), _PART_ENTRIES)
    yield from _object(b"pullOffsetTable", _entries(*pulled), _PART_ENTRIES)
    yield b"\n}"


def _object(name: bytes, members: Iterator[bytes], part_members: int) -> Iterator[bytes]:
    """Yield the parts of an object with these members, itself a member named `name`."""
    before = b',\n\t"%b":{\n\t\t' % name
    while part := list(islice(members, part_members)):
        yield before + b",\n\t\t".join(part)
        before = b",\n\t\t"
    yield b"\n\t}" if len(before) == len(b",\n\t\t") else b',\n\t"%b":{}' % name


def _topics(group: str, names: Iterable[str]) -> bytes:
    return b"%b:[\n\t\t\t%b\n\t\t]" % (_encode(group), b",\n\t\t\t".join(map(_encode, names)))


def _entries(keys: Iterable[str], offsets_of: OffsetsOf) -> Iterator[bytes]:
    for key in keys:
        offsets = offsets_of(key)
        if offsets is not None:
            queue_ids = tuple(sorted(offsets))
            text = _offsets_format(queue_ids) % tuple(map(offsets.__getitem__, queue_ids))
            yield b"%b:%b" % (_encode(key), text)


@lru_cache(_CACHED_FORMATS_MAX)
def _offsets_format(queue_ids: tuple[int, ...]) -> bytes:
    """Return a format string for the offsets of these queues; most topics share one."""
    if not queue_ids:
        return b"{}"
    return b"{\n\t\t\t%b\n\t\t}" % b",\n\t\t\t".join(b"%d:%%d" % queue_id for queue_id in queue_ids)
