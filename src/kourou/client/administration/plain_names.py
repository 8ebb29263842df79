"""Names in the answers of servers as a client within a namespace knows them; pure.

Requests get the namespace where they leave (`client/namespacing.py`). Answers of administration are
of many shapes, so names in them are changed once they are decoded. Lists of everything hold what is
in the namespace, and what is the system's own and the same in each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, TypeVar

from kourou.model.namespace import in_namespace, is_common, namespace_of, out_of_namespace
from kourou.model.topic import TopicConfig

T = TypeVar("T")

_FIELDS: Final = frozenset({"topic", "group", "group_name", "consumer_group"})
"""Fields of values that hold the name of a topic or a group."""


def plain(namespace: str, told: T) -> T:
    """Return what a server told with plain names, at any depth: in fields, keys and lists."""
    return _plain(namespace, told) if namespace else told


def own(namespace: str, names: Iterable[str]) -> list[str]:
    """Return which of all names are in the namespace or in each, plain, in the same order."""
    if not namespace:
        return list(names)
    return [out_of_namespace(namespace, name) for name in names if _is_own(namespace, name)]


def own_of(namespace: str, told: Mapping[str, T]) -> dict[str, T]:
    """Return those of what is told of all names whose name is in the namespace or in each."""
    if not namespace:
        return dict(told)
    return {
        out_of_namespace(namespace, name): plain(namespace, one)
        for name, one in told.items()
        if _is_own(namespace, name)
    }


def plain_texts(namespace: str, texts: Iterable[str]) -> tuple[str, ...]:
    """Return lines for people with plain names."""
    return tuple(text.replace(f"{namespace}%", "") if namespace else text for text in texts)


def counter_key(namespace: str, name: str, key: str) -> str:
    """Return the key of a counter as brokers have it.

    Args:
        namespace: the client's; empty for none.
        name: of the set of counters; those of whole brokers have no names of topics or groups.
        key: a topic, a group, a queue id, or several of them joined by `@`.
    """
    if not namespace or name.startswith("BROKER_"):
        return key
    parts = key.split("@")
    if len(parts) == 1:
        return in_namespace(namespace, key)
    return "@".join(one if one.isdecimal() else in_namespace(namespace, one) for one in parts)


def _is_own(namespace: str, name: str) -> bool:
    return namespace_of(name) == namespace or is_common(name)


def _plain(namespace: str, told: Any) -> Any:  # noqa: ANN401  # any answer
    if isinstance(told, Mapping):
        return {_key(namespace, key): _plain(namespace, one) for key, one in told.items()}
    if isinstance(told, list | tuple):
        return type(told)(_key(namespace, one) for one in told)
    if not is_dataclass(told) or isinstance(told, type):
        return told
    changes = {}
    for one in fields(told):
        value = getattr(told, one.name)
        if isinstance(value, str):
            if one.name in _FIELDS or (one.name == "name" and isinstance(told, TopicConfig)):
                changes[one.name] = out_of_namespace(namespace, value)
        elif isinstance(value, Mapping | list | tuple) or is_dataclass(value):
            changes[one.name] = _plain(namespace, value)
    return replace(told, **changes)


def _key(namespace: str, one: Any) -> Any:  # noqa: ANN401  # any key, any element
    return out_of_namespace(namespace, one) if isinstance(one, str) else _plain(namespace, one)
