"""Names within a namespace: `ns%name`, which keeps the prefix of retry and dead-letter topics.

Source: NamespaceUtil.java, apache/rocketmq 5.5.0. Two differences: reply topics, which a cluster
has and no namespace, keep their names; Java's replies go astray. And so does the group of tools,
which every broker has.
"""

from __future__ import annotations

import re
from typing import Final

from kourou.errors import ConfigError
from kourou.model.topic import (
    DLQ_PREFIX,
    REPLY_TOPIC_SUFFIX,
    RETRY_PREFIX,
    TOOLS_GROUP,
    is_system_group,
    is_system_topic,
)

SEPARATOR: Final = "%"
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+", re.ASCII)


def check_namespace(name: str) -> None:
    """Refuse a name that no namespace can have; the empty one stands for none.

    Raises:
        ConfigError: it has other characters than names of topics have, or the separator.
    """
    if name and not _NAME.fullmatch(name):
        raise ConfigError(f"namespace {name!r}: allowed are letters, digits, _ and -")


def in_namespace(namespace: str, name: str) -> str:
    """Return a topic's or group's name as it is within the namespace; twice changes nothing.

    The system's own names are the same in each.
    """
    prefix, plain = _parts(name)
    if not namespace or not plain or is_common(name):
        return name
    inner = f"{namespace}{SEPARATOR}"
    return name if plain.startswith(inner) else f"{prefix}{inner}{plain}"


def out_of_namespace(namespace: str, name: str) -> str:
    """Return the name without the namespace; as it is if it belongs to another or to none."""
    prefix, plain = _parts(name)
    inner = f"{namespace}{SEPARATOR}"
    if not namespace or is_common(name) or not plain.startswith(inner):
        return name
    return f"{prefix}{plain.removeprefix(inner)}"


def namespace_of(name: str) -> str:
    """Return the namespace that the name is within; empty if it is within none."""
    _, plain = _parts(name)
    namespace, separator, _ = plain.partition(SEPARATOR)
    return namespace if separator and not is_common(name) else ""


def _parts(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)
    return "", name


def is_common(name: str) -> bool:
    """Return whether the topic or group is the same in each namespace."""
    is_system = is_system_topic(name) or is_system_group(name) or name == TOOLS_GROUP
    return is_system or name.endswith(REPLY_TOPIC_SUFFIX)
