"""Topic and group names within a namespace: `ns%name`, behind the prefix of retry and DLQ topics.

Source: NamespaceUtil.java, apache/rocketmq 5.5.0. Two kinds of names differ from Java's: reply
topics keep their names, because they belong to a cluster and not to a namespace (in Java the
replies are lost), and so does the group of tools, which exists on every broker.
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
    """Refuse an invalid name of a namespace; an empty name means no namespace.

    Raises:
        ConfigError: the name has a character other than letters, digits, `_` and `-`.
    """
    if name and not _NAME.fullmatch(name):
        raise ConfigError(f"namespace {name!r}: allowed are letters, digits, _ and -")


def with_namespace(namespace: str, name: str) -> str:
    """Return the name of a topic or group within the namespace.

    A name that is already in the namespace and the names of the system are returned unchanged.
    """
    prefix, base = _split_prefix(name)
    if not namespace or not base or is_shared_name(name):
        return name
    ns_prefix = f"{namespace}{SEPARATOR}"
    return name if base.startswith(ns_prefix) else f"{prefix}{ns_prefix}{base}"


def without_namespace(namespace: str, name: str) -> str:
    """Return the name without the namespace; unchanged if it is not in that namespace."""
    prefix, base = _split_prefix(name)
    ns_prefix = f"{namespace}{SEPARATOR}"
    if not namespace or is_shared_name(name) or not base.startswith(ns_prefix):
        return name
    return f"{prefix}{base.removeprefix(ns_prefix)}"


def namespace_of(name: str) -> str:
    """Return the namespace of the name; empty if it has none."""
    _, base = _split_prefix(name)
    namespace, separator, _ = base.partition(SEPARATOR)
    return namespace if separator and not is_shared_name(name) else ""


def _split_prefix(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)
    return "", name


def is_shared_name(name: str) -> bool:
    """Return whether all namespaces share the topic or group."""
    is_system = is_system_topic(name) or is_system_group(name) or name == TOOLS_GROUP
    return is_system or name.endswith(REPLY_TOPIC_SUFFIX)
