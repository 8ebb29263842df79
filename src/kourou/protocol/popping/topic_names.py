"""Names of the topics and the group of pop consumption.

    rmq_sys_REVIVE_LOG_<cluster>   revive topic: checkpoints and acks, when they are due
    %RETRY%<group>_<topic>         pop retry topic of a group and a topic, version 1
    %RETRY%<group>+<topic>         the same, version 2

Names of version 1 are ambiguous: `%RETRY%a_b_c` belongs to group `a` of topic `b_c` and to group
`a_b` of topic `c`. The property ORIGIN_GROUP of a revived message names the group; `is_of_group`
tells the messages apart.

Source: KeyBuilder.java, PopAckConstants.java, ExtraInfoUtil.getRetry, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kourou.model import properties as names
from kourou.model.topic import RETRY_PREFIX, SYSTEM_PREFIX

REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
"""The group whose committed offsets are the progress in the revive topic."""

ORDER_REVIVE_QUEUE: Final = 999
"""Queue of the revive topic that a receipt handle of an ordered pop names; it does not exist."""

NOT_RETRY: Final = "0"
RETRY_V1: Final = "1"
RETRY_V2: Final = "2"
"""Kinds of topic in receipt handles and in the response to a pop."""

_SEPARATOR_V1: Final = "_"
_SEPARATOR_V2: Final = "+"


def revive_topic(cluster: str) -> str:
    """Return the revive topic of a cluster."""
    return f"{SYSTEM_PREFIX}REVIVE_LOG_{cluster}"


def retry_topic_v1(group: str, topic: str) -> str:
    """Return the pop retry topic, version 1."""
    return f"{RETRY_PREFIX}{group}{_SEPARATOR_V1}{topic}"


def retry_topic_v2(group: str, topic: str) -> str:
    """Return the pop retry topic, version 2."""
    return f"{RETRY_PREFIX}{group}{_SEPARATOR_V2}{topic}"


def topic_kind(topic: str) -> str:
    """Return the kind of a topic: NOT_RETRY, RETRY_V1 (also of `%RETRY%<group>`) or RETRY_V2."""
    if not topic.startswith(RETRY_PREFIX):
        return NOT_RETRY
    return RETRY_V2 if _SEPARATOR_V2 in topic else RETRY_V1


def real_topic(topic: str, group: str, kind: str) -> str:
    """Return the topic that holds a popped message: `topic` itself or its pop retry topic."""
    if kind == RETRY_V1:
        return retry_topic_v1(group, topic)
    if kind == RETRY_V2:
        return retry_topic_v2(group, topic)
    return topic


def normal_topic(topic: str, group: str) -> str:
    """Return the topic of which `topic` is the group's pop retry topic; else `topic` itself."""
    if topic.startswith(RETRY_PREFIX):
        for retry_topic in (retry_topic_v2, retry_topic_v1):
            prefix = retry_topic(group, "")
            if topic.startswith(prefix) and len(topic) > len(prefix):
                return topic[len(prefix) :]
    return topic


def is_of_group(properties: Mapping[str, str], group: str) -> bool:
    """Return whether a message of a pop retry topic is not one of another group.

    RocketMQ before 5.4 does not write ORIGIN_GROUP: its messages belong to each group.
    """
    return properties.get(names.ORIGIN_GROUP, group) == group
