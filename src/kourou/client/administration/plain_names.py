"""Plain names in answers of administration requests, for clients with a namespace; pure.

Requests get the namespace when they are sent (`client/namespacing.py`). Answers have many shapes,
so names in them are converted after decoding. Lists of all topics or groups are reduced to those in
the namespace and to system names, which are common to all namespaces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, TypeVar

from kourou.decimals import is_decimal
from kourou.model.namespace import is_shared_name, namespace_of, with_namespace, without_namespace
from kourou.model.topic import TopicConfig

T = TypeVar("T")

_FIELDS: Final = frozenset({"topic", "group", "group_name", "consumer_group"})
"""Fields of decoded values that contain the name of a topic or a group."""


def with_plain_names(namespace: str, value: T) -> T:
    """Return a decoded answer with plain names at any depth: in fields, keys and lists."""
    return _convert(namespace, value) if namespace else value


def own_names(namespace: str, names: Iterable[str]) -> list[str]:
    """Return the names that are in the namespace or common to all, as plain names, in order."""
    if not namespace:
        return list(names)
    return [without_namespace(namespace, name) for name in names if _is_own(namespace, name)]


def own_entries(namespace: str, entries: Mapping[str, T]) -> dict[str, T]:
    """Return the entries whose name is in the namespace or common to all, with plain names."""
    if not namespace:
        return dict(entries)
    return {
        without_namespace(namespace, name): with_plain_names(namespace, one)
        for name, one in entries.items()
        if _is_own(namespace, name)
    }


def with_plain_texts(namespace: str, texts: Iterable[str]) -> tuple[str, ...]:
    """Return texts for display with plain names."""
    return tuple(text.replace(f"{namespace}%", "") if namespace else text for text in texts)


def counter_key(namespace: str, name: str, key: str) -> str:
    """Return the key of a broker's counter, with the namespace.

    Args:
        namespace: the namespace of the client; empty if there is none.
        name: the set of counters; keys in the sets of whole brokers (`BROKER_`) have no names.
        key: a topic, a group, a queue id, or several of them joined by `@`.
    """
    if not namespace or name.startswith("BROKER_"):
        return key
    parts = key.split("@")
    if len(parts) == 1:
        return with_namespace(namespace, key)
    return "@".join(one if is_decimal(one) else with_namespace(namespace, one) for one in parts)


def _is_own(namespace: str, name: str) -> bool:
    return namespace_of(name) == namespace or is_shared_name(name)


def _convert(namespace: str, value: Any) -> Any:  # noqa: ANN401  # any answer
    if isinstance(value, Mapping):
        return {
            _convert_name(namespace, key): _convert(namespace, one) for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(_convert_name(namespace, one) for one in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes = {}
    for field in fields(value):
        content = getattr(value, field.name)
        if isinstance(content, str):
            if field.name in _FIELDS or (field.name == "name" and isinstance(value, TopicConfig)):
                changes[field.name] = without_namespace(namespace, content)
        elif isinstance(content, Mapping | list | tuple) or is_dataclass(content):
            changes[field.name] = _convert(namespace, content)
    return replace(value, **changes)


def _convert_name(namespace: str, one: Any) -> Any:  # noqa: ANN401  # any key, any element
    return without_namespace(namespace, one) if isinstance(one, str) else _convert(namespace, one)
