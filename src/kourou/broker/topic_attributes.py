"""Attributes of topics and groups: allowed keys and values, and changes by request.

A change is a comma-separated text of `+key=value`, which sets, and `-key`, which removes.

Source: TopicAttributes.java, SubscriptionGroupAttributes.java,
AttributeUtil.alterCurrentAttributes, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from kourou.decimals import is_decimal
from kourou.errors import RemoteSystemError
from kourou.model.topic import TopicConfig
from kourou.protocol.codes import ResponseCode

QUEUE_TYPE: Final = "queue.type"
CLEANUP_POLICY: Final = "cleanup.policy"

BATCH_QUEUES: Final = "BatchCQ"
"""The value of `queue.type` with which a batch is stored as one record."""

_MESSAGE_TYPE: Final = "message.type"
_PRIORITY: Final = "PRIORITY"

SERVED_VALUES: Final = {CLEANUP_POLICY: "DELETE"}
"""Attributes that determine how a topic is stored, with the only supported value of each."""

_LITE_EXPIRATION_MAX_MIN: Final = 43_200
_INTEGER_DIGITS_MAX: Final = 19


class _Attribute(NamedTuple):
    """Rules of one attribute.

    Attributes:
        is_allowed: returns whether a value is allowed.
        can_change: whether the attribute may be changed after the topic was created.
    """

    is_allowed: Callable[[str], bool]
    can_change: bool


def _one_of(*values: str) -> Callable[[str], bool]:
    return frozenset(values).__contains__


def _between(least: int, most: int) -> Callable[[str], bool]:
    def is_allowed(text: str) -> bool:
        digits = text.removeprefix("-")
        if not is_decimal(digits, _INTEGER_DIGITS_MAX):
            return False
        return least <= int(text) <= most

    return is_allowed


_ATTRIBUTES: Final = {
    QUEUE_TYPE: _Attribute(_one_of(BATCH_QUEUES, "SimpleCQ"), can_change=False),
    CLEANUP_POLICY: _Attribute(_one_of("DELETE", "COMPACTION"), can_change=False),
    _MESSAGE_TYPE: _Attribute(
        _one_of(
            "UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", _PRIORITY, "LITE", "MIXED"
        ),
        can_change=True,
    ),
    "reserve.time": _Attribute(_between(-1, 2**63 - 1), can_change=True),
    "lite.topic.expiration": _Attribute(_between(-1, _LITE_EXPIRATION_MAX_MIN), can_change=True),
}

_GROUP_ATTRIBUTES: Final = {"priority.factor": _Attribute(_between(0, 100), can_change=True)}
"""Attributes of lite topics are not supported yet."""


def has_batch_queues(topic: TopicConfig | None) -> bool:
    """Return whether each batch of the topic is stored as one record."""
    return topic is not None and topic.attributes.get(QUEUE_TYPE) == BATCH_QUEUES


def has_priorities(topic: TopicConfig) -> bool:
    """Return whether the topic's queues are its priorities."""
    return topic.attributes.get(_MESSAGE_TYPE) == _PRIORITY


def change_attributes(
    current: Mapping[str, str], change: str | None, *, is_new: bool
) -> dict[str, str]:
    """Return a topic's attributes after a change.

    Args:
        current: its attributes before the change.
        change: the text of a request; empty or None changes nothing.
        is_new: whether the topic is being created; then unchangeable attributes may be set.

    Raises:
        RemoteSystemError: a part does not parse, a key is unknown, given twice or removed although
            not set, a value is not allowed, or the attribute is unchangeable.
    """
    return _changed(current, change, _ATTRIBUTES, is_new=is_new)


def change_group_attributes(
    current: Mapping[str, str], change: Mapping[str, str], *, is_new: bool
) -> dict[str, str]:
    """Return a group's attributes after a change of the form `{"+key": "value", "-key": ""}`.

    Raises:
        RemoteSystemError: as `change_attributes`.
    """
    return _changed(current, change_text(change), _GROUP_ATTRIBUTES, is_new=is_new)


def change_text(change: Mapping[str, str]) -> str:
    """Return the text of a change that is given as a map, such as `{"+message.type": "FIFO"}`."""
    return ",".join(
        f"{name}={value}" if name.startswith("+") else name for name, value in change.items()
    )


def _changed(
    current: Mapping[str, str],
    change: str | None,
    known: Mapping[str, _Attribute],
    *,
    is_new: bool,
) -> dict[str, str]:
    changed = dict(current)
    seen = set()
    for part in (change or "").split(","):
        if not part.strip():
            continue
        key, value = _parse(part.strip())
        if key in seen:
            raise _refused(f"alter duplication key. key: {key}")
        seen.add(key)
        attribute = known.get(key)
        if attribute is None:
            raise _refused(f"unsupported key: {key}")
        if value is None:
            if is_new or key not in current:
                raise _refused(f"attempt to delete a nonexistent key: {key}")
            if not attribute.can_change:
                raise _refused(f"attempt to delete an unchangeable attribute. key: {key}")
            del changed[key]
            continue
        if not attribute.is_allowed(value):
            raise _refused(f"{key}={value}: the attribute does not allow this value")
        if not is_new and not attribute.can_change and current.get(key) != value:
            raise _refused(f"attempt to update an unchangeable attribute. key: {key}")
        changed[key] = value
    return changed


def _parse(part: str) -> tuple[str, str | None]:
    """Return the key, and the value to set or None to remove the key."""
    if part.startswith("-"):
        return part[1:].strip(), None
    key, equals, value = part.removeprefix("+").partition("=")
    if not part.startswith("+") or not equals or not key.strip() or not value.strip():
        raise _refused(f"attribute change {part!r} is neither +key=value nor -key")
    return key.strip(), value.strip()


def _refused(reason: str) -> RemoteSystemError:
    return RemoteSystemError(ResponseCode.SYSTEM_ERROR, reason)
