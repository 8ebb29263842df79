"""Changes of a master's topics, groups and request modes, as records of its log carry them.

Kourou's own: in controller mode a master appends a change to `TABLES_TOPIC`, so that replicas have
it as they have messages. Each change is the state of one topic, group or mode after it, so that
replaying the records in order, from any of them on, ends in the state after the last one.

The body of a record is an array of objects:

    topic        name, begin, config (absent if deleted)
    group        name, deletedAt, isCleaned, config (absent if deleted), forbidden
    mode         the body of the request 401 that set it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kourou.errors import MalformedBodyError
from kourou.model.group import SubscriptionGroup
from kourou.model.topic import TopicConfig
from kourou.protocol.fastjson import dumps, loads
from kourou.protocol.json_records import from_json, to_json
from kourou.protocol.json_values import as_list, as_object
from kourou.protocol.queue_assignment import SetMessageRequestMode


@dataclass(frozen=True, slots=True)
class TopicChange:
    """State of a topic.

    Attributes:
        begin: log position below which records belong to a deleted topic of this name; 0 if none
            was deleted.
        config: the settings; None if the topic does not exist.
    """

    name: str
    begin: int = 0
    config: TopicConfig | None = None


@dataclass(frozen=True, slots=True)
class GroupChange:
    """State of a group.

    Attributes:
        deleted_at: end of the log when a group of this name was deleted last; 0 if none was.
        is_cleaned: whether the group has no offsets.
        config: the settings; None if the group does not exist.
        forbidden: topic to the bits of the operations that are forbidden to the group.
    """

    name: str
    deleted_at: int = 0
    is_cleaned: bool = False
    config: SubscriptionGroup | None = None
    forbidden: Mapping[str, int] = field(default_factory=dict)


TABLE_LOG_FIELD: Final = "kourouTableLog"
"""Field of answers to 21: the master's log has the changes of its tables."""
REPLICA_FIELD: Final = "kourouReplica"
"""Field of requests by a replica: the body of 43 also has `kourouLogPositions` and `kourouLocks`,
that of 201 `kourouDeletedGroups`."""
LOCKS_MEMBER: Final = "kourouLocks"

TableChange = TopicChange | GroupChange | SetMessageRequestMode

_KINDS: Final[dict[str, type[TableChange]]] = {
    "topic": TopicChange,
    "group": GroupChange,
    "mode": SetMessageRequestMode,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}


def encode_change(change: TableChange) -> bytes:
    """Return one change as an object."""
    return dumps({_NAMES[type(change)]: to_json(change)})


def join_changes(changes: Iterable[bytes]) -> bytes:
    """Return the body of a record of encoded changes."""
    return b"[" + b",".join(changes) + b"]"


def decode_changes(body: bytes) -> list[TableChange]:
    """Return the changes of a record, in order.

    Raises:
        MalformedBodyError: the body is not of this form.
    """
    changes = []
    for item in as_list(loads(body), "table changes"):
        members = as_object(item, "table change")
        if len(members) != 1 or (name := next(iter(members))) not in _KINDS:
            raise MalformedBodyError(f"table change: unknown kind {sorted(members)}")
        changes.append(from_json(_KINDS[name], members[name], name))
    return changes


def with_member(body: bytes, name: str, value: bytes) -> bytes:
    """Return a JSON object, which is not empty, with one more member."""
    return b'%b,"%b":%b}' % (body[:-1], name.encode(), value)


def member_of(body: bytes, name: str) -> bytes | None:
    """Return the member that `with_member` has added; None if there is none."""
    _, found, rest = body.rpartition(b',"%b":' % name.encode())
    return rest[:-1] if found else None
