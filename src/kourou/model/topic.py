"""TopicConfig, permissions, reserved names of topics and groups, and name validation.

Source: TopicConfig.java, PermName.java, TopicValidator.java, Validators.java, MixAll.java.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kourou.errors import InvalidGroupError, InvalidTopicError

PERM_INHERIT: Final = 1
"""An automatically created topic may inherit this topic's queues and permissions."""
PERM_WRITE: Final = 2
PERM_READ: Final = 4
PERM_MAX: Final = 7

TOPIC_UNIT: Final = 1
TOPIC_UNIT_SUB: Final = 2

REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
SYSTEM_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"

TOOLS_GROUP: Final = "TOOLS_CONSUMER"
"""Group that exists on every broker, for tools such as mqadmin that read without consuming."""

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = f"{SYSTEM_PREFIX}wheel_timer"
TABLES_TOPIC: Final = f"{SYSTEM_PREFIX}KOUROU_TABLES"
"""Changes of topics and groups by a master in controller mode; Kourou's own."""
TRANS_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ROCKSDB_TRANS_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
ROCKSDB_TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT: Final = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"

NOT_ALLOWED_SEND_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        ROCKSDB_TRANS_HALF_TOPIC,
        ROCKSDB_TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
    }
)
"""Topics to which RocketMQ's brokers and clients refuse to send; see `is_broker_only`."""

SYSTEM_TOPICS: Final = NOT_ALLOWED_SEND_TOPICS | {
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    TRACE_TOPIC,
    CHECKPOINT_TOPIC,
}
"""Topics that requests cannot create or delete, in addition to those with prefix `rmq_sys_`."""

PENDING_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        ROCKSDB_TRANS_HALF_TOPIC,
        ROCKSDB_TRANS_OP_HALF_TOPIC,
    }
)
"""Topics of delayed and scheduled messages, half messages and op messages. Only the broker consumes
them."""

NON_DESTINATION_TOPICS: Final = NOT_ALLOWED_SEND_TOPICS | {TIMER_TOPIC, TABLES_TOPIC}
"""Topics that are never the destination of a delayed or half message, because clients cannot send
to them. RocketMQ's pop log is not among them: its brokers write delayed records for it."""

_SENDABLE_SYSTEM_TOPICS: Final = frozenset({AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC})
_SENDABLE_SYSTEM_PREFIX: Final = f"{SYSTEM_PREFIX}TRACE_DATA_"
"""Trace topics of RocketMQ clients whose access channel is CLOUD."""

DEFAULT_GROUPS: Final = frozenset({"DEFAULT_PRODUCER", "DEFAULT_CONSUMER"})
"""Placeholders of the Java client; a client that uses one is misconfigured."""

DEFAULT_PRODUCER_GROUP: Final = "kourou-producers"
"""Default group of producers. DEFAULT_PRODUCER is refused, as it is by Java's clients."""

TOPIC_LENGTH_MAX: Final = 127
RETRY_OR_DLQ_TOPIC_LENGTH_MAX: Final = 255
GROUP_LENGTH_MAX: Final = 120

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A broker's configuration of one topic.

    Attributes:
        read_queue_nums: queues that consumers read.
        write_queue_nums: queues to which producers send.
        perm: bits PERM_READ, PERM_WRITE and PERM_INHERIT.
        topic_filter_type: SINGLE_TAG or MULTI_TAG; stored, without effect.
        topic_sys_flag: bits TOPIC_UNIT and TOPIC_UNIT_SUB.
        order: the topic was created as ordered.
        attributes: such as `message.type`.
    """

    name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_readable(self) -> bool:
        """Whether consumers may read the topic."""
        return is_readable(self.perm)

    @property
    def is_writable(self) -> bool:
        """Whether producers may send to the topic."""
        return is_writable(self.perm)


def reply_topic(cluster: str) -> str:
    """Return the topic to which replies are sent in a cluster."""
    return f"{cluster}{REPLY_TOPIC_SUFFIX}"


def is_readable(perm: int) -> bool:
    """Return whether the permission lets consumers read."""
    return perm & PERM_READ != 0


def is_writable(perm: int) -> bool:
    """Return whether the permission lets producers send."""
    return perm & PERM_WRITE != 0


def is_inherited(perm: int) -> bool:
    """Return whether automatically created topics may inherit from a topic with this permission."""
    return perm & PERM_INHERIT != 0


def format_perm(perm: int) -> str:
    """Return the readable form of a permission, such as `RW-`."""
    return "".join(
        letter if perm & bit else "-"
        for letter, bit in (("R", PERM_READ), ("W", PERM_WRITE), ("X", PERM_INHERIT))
    )


def retry_topic(group: str) -> str:
    """Return the group's retry topic."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the group's dead-letter topic."""
    return DLQ_PREFIX + group


def is_retry_topic(topic: str) -> bool:
    """Return whether the topic is a retry topic."""
    return topic.startswith(RETRY_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    """Return whether the topic is a dead-letter topic."""
    return topic.startswith(DLQ_PREFIX)


def is_system_topic(topic: str) -> bool:
    """Return whether the topic is a system topic."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def is_broker_only(topic: str) -> bool:
    """Return whether only the broker writes to the topic, so that clients' sends are refused.

    These are all system topics except those for traces, benchmarks and automatic creation.
    RocketMQ refuses only `NOT_ALLOWED_SEND_TOPICS`: its clients can therefore send records to
    `rmq_sys_wheel_timer` that the broker mistakes for its own.
    """
    if not is_system_topic(topic) or topic in _SENDABLE_SYSTEM_TOPICS:
        return False
    return not topic.startswith(_SENDABLE_SYSTEM_PREFIX)


def is_system_group(group: str) -> bool:
    """Return whether the consumer group is a system group."""
    return group.startswith(SYSTEM_GROUP_PREFIX)


def check_topic(name: str) -> None:
    """Refuse an invalid topic name; existing and reserved names are accepted.

    Raises:
        InvalidTopicError: the name is blank, has a character outside `A-Z a-z 0-9 _ - % |`, or is
            longer than 127 characters (255 for a retry or dead-letter topic).
    """
    try:
        is_blank = not name or name.isspace()
    except AttributeError:
        raise InvalidTopicError(f"a topic must be a str, not {type(name).__name__}") from None
    if is_blank:
        raise InvalidTopicError("the topic is blank")
    if not _NAME.fullmatch(name):
        raise InvalidTopicError(f"topic {name!r}: allowed are A-Z a-z 0-9 _ - % |")
    long_name = is_retry_topic(name) or is_dlq_topic(name)
    limit = RETRY_OR_DLQ_TOPIC_LENGTH_MAX if long_name else TOPIC_LENGTH_MAX
    if len(name) > limit:
        raise InvalidTopicError(f"topic {name!r} has {len(name)} characters, the limit is {limit}")


def check_group(name: str) -> None:
    """Refuse an invalid group name.

    Raises:
        InvalidGroupError: the name is blank, has a character outside `A-Z a-z 0-9 _ - % |`, or is
            longer than 120 characters.
    """
    if not name or name.isspace():
        raise InvalidGroupError("the group is blank")
    if not _NAME.fullmatch(name):
        raise InvalidGroupError(f"group {name!r}: allowed are A-Z a-z 0-9 _ - % |")
    if len(name) > GROUP_LENGTH_MAX:
        raise InvalidGroupError(
            f"group {name!r} has {len(name)} characters, the limit is {GROUP_LENGTH_MAX}"
        )


def check_client_group(name: str) -> None:
    """Refuse an invalid group name or one of RocketMQ's placeholders.

    Raises:
        InvalidGroupError: as for `check_group`, or the name is in `DEFAULT_GROUPS`.
    """
    check_group(name)
    if name in DEFAULT_GROUPS:
        raise InvalidGroupError(f"group {name} is reserved; choose your own name")
