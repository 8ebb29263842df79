"""TopicConfig, permissions, names that are reserved, and what a name may look like.

Source: TopicConfig.java, PermName.java, TopicValidator.java, Validators.java, MixAll.java.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kourou.errors import InvalidGroupError, InvalidTopicError

PERM_INHERIT: Final = 1
"""A topic made on the fly may copy this one's queues and permissions."""
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
"""The group that every broker has for tools that read without consuming, as mqadmin."""

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = f"{SYSTEM_PREFIX}wheel_timer"
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
"""Topics that RocketMQ's brokers and clients refuse sends to; see `is_broker_only`."""

SYSTEM_TOPICS: Final = NOT_ALLOWED_SEND_TOPICS | {
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    TRACE_TOPIC,
    CHECKPOINT_TOPIC,
}
"""Topics that cannot be created or deleted by request, with all that begin with `rmq_sys_`."""

WAITING_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        ROCKSDB_TRANS_HALF_TOPIC,
        ROCKSDB_TRANS_OP_HALF_TOPIC,
    }
)
"""Topics of records that wait for a time or for the end of a transaction, and of those ends. The
broker alone consumes them."""

UNDELIVERED_TOPICS: Final = NOT_ALLOWED_SEND_TOPICS | {TIMER_TOPIC}
"""Topics to which no record is delivered that waited in another one: none is sent there. The log of
RocketMQ's pop is not among them: its brokers let records for it wait."""

_SENDABLE_SYSTEM_TOPICS: Final = frozenset({AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC})
_SENDABLE_SYSTEM_PREFIX: Final = f"{SYSTEM_PREFIX}TRACE_DATA_"
"""Traces of RocketMQ's clients whose access channel is CLOUD."""

DEFAULT_GROUPS: Final = frozenset({"DEFAULT_PRODUCER", "DEFAULT_CONSUMER"})
"""Placeholders of the Java client; a client that really uses one is misconfigured."""

DEFAULT_PRODUCER_GROUP: Final = "kourou-producers"
"""The group of a producer that names none. RocketMQ's DEFAULT_PRODUCER is refused, by its clients
too."""

TOPIC_LENGTH_MAX: Final = 127
RETRY_OR_DLQ_TOPIC_LENGTH_MAX: Final = 255
GROUP_LENGTH_MAX: Final = 120

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """What a broker knows of one topic.

    Attributes:
        read_queue_nums: queues consumers read; `write_queue_nums`, queues producers write.
        perm: PERM_READ, PERM_WRITE and PERM_INHERIT together.
        topic_filter_type: SINGLE_TAG or MULTI_TAG; kept, without effect.
        topic_sys_flag: TOPIC_UNIT and TOPIC_UNIT_SUB together.
        order: the topic was declared ordered.
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
        """Consumers may read it."""
        return is_readable(self.perm)

    @property
    def is_writable(self) -> bool:
        """Producers may write it."""
        return is_writable(self.perm)


def reply_topic(cluster: str) -> str:
    """Return the topic by which replies to requests get to the brokers of a cluster."""
    return f"{cluster}{REPLY_TOPIC_SUFFIX}"


def is_readable(perm: int) -> bool:
    """Return whether consumers may read."""
    return perm & PERM_READ != 0


def is_writable(perm: int) -> bool:
    """Return whether producers may write."""
    return perm & PERM_WRITE != 0


def is_inherited(perm: int) -> bool:
    """Return whether a topic made on the fly may copy the one with this permission."""
    return perm & PERM_INHERIT != 0


def format_perm(perm: int) -> str:
    """Return a permission as people read it, such as `RW-`."""
    return "".join(
        letter if perm & bit else "-"
        for letter, bit in (("R", PERM_READ), ("W", PERM_WRITE), ("X", PERM_INHERIT))
    )


def retry_topic(group: str) -> str:
    """Return the topic that holds what the group gave back."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the topic that holds what the group failed on for good."""
    return DLQ_PREFIX + group


def is_retry_topic(topic: str) -> bool:
    """Return whether the topic holds what some group gave back."""
    return topic.startswith(RETRY_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    """Return whether the topic holds some group's dead letters."""
    return topic.startswith(DLQ_PREFIX)


def is_system_topic(topic: str) -> bool:
    """Return whether the topic is the system's own."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def is_broker_only(topic: str) -> bool:
    """Return whether the broker alone writes the topic: it refuses a client's send to it.

    These are all system topics but those of traces, of benchmarks and of automatic creation.
    RocketMQ refuses `NOT_ALLOWED_SEND_TOPICS` only, so that its clients may write records into
    `rmq_sys_wheel_timer` that the broker takes for its own.
    """
    if not is_system_topic(topic) or topic in _SENDABLE_SYSTEM_TOPICS:
        return False
    return not topic.startswith(_SENDABLE_SYSTEM_PREFIX)


def is_system_group(group: str) -> bool:
    """Return whether the consumer group is the system's own."""
    return group.startswith(SYSTEM_GROUP_PREFIX)


def check_topic(name: str) -> None:
    """Refuse a name that no topic can have; existing and reserved names pass.

    Raises:
        InvalidTopicError: it is empty, has a character outside `A-Z a-z 0-9 _ - % |`, or is
            longer than 127 characters, 255 for a retry or dead-letter topic.
    """
    try:
        is_blank = not name or name.isspace()
    except AttributeError:
        raise InvalidTopicError(f"a topic is one str, not {type(name).__name__}") from None
    if is_blank:
        raise InvalidTopicError("the topic is blank")
    if not _NAME.fullmatch(name):
        raise InvalidTopicError(f"topic {name!r}: allowed are A-Z a-z 0-9 _ - % |")
    long_name = is_retry_topic(name) or is_dlq_topic(name)
    limit = RETRY_OR_DLQ_TOPIC_LENGTH_MAX if long_name else TOPIC_LENGTH_MAX
    if len(name) > limit:
        raise InvalidTopicError(f"topic {name!r} has {len(name)} characters, allowed are {limit}")


def check_group(name: str) -> None:
    """Refuse a name that no group can have.

    Raises:
        InvalidGroupError: it is empty, has a character outside `A-Z a-z 0-9 _ - % |`, or is
            longer than 120 characters.
    """
    if not name or name.isspace():
        raise InvalidGroupError("the group is blank")
    if not _NAME.fullmatch(name):
        raise InvalidGroupError(f"group {name!r}: allowed are A-Z a-z 0-9 _ - % |")
    if len(name) > GROUP_LENGTH_MAX:
        raise InvalidGroupError(
            f"group {name!r} has {len(name)} characters, allowed are {GROUP_LENGTH_MAX}"
        )


def check_client_group(name: str) -> None:
    """Refuse a name that no producer or consumer may take: `check_group` and the placeholders.

    Raises:
        InvalidGroupError: as `check_group`, or the name is in `DEFAULT_GROUPS`.
    """
    check_group(name)
    if name in DEFAULT_GROUPS:
        raise InvalidGroupError(f"group {name} is reserved; choose your own name")
