"""Options of pop consumption, with RocketMQ's keys and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kourou.disk import Disk
from kourou.documented import documented
from kourou.errors import ConfigError

_SECOND_MS: Final = 1_000
_QUEUES_MAX: Final = 1_024
_HOLDS_MAX: Final = 1_000_000
_CHECKPOINTS_MAX: Final = 10_000_000
_MANY: Final = 2**31 - 1
_PERCENT_MAX: Final = 100

KV_STORE_DIRECTORY: Final = "kvStore"
"""Directory of a Java broker's store that holds the pops of `popConsumerKVServiceEnable`."""


@documented
@dataclass(frozen=True, kw_only=True)
class PopConfig:
    """Options of pop consumption. Fields marked `live` can be changed while the broker runs.

    Raises:
        ConfigError: a value is out of its range.
    """

    revive_queue_num: int = 8
    """Number of queues of the topic of checkpoints and acks. If it is lowered, the queues beyond it
    are still read until they are empty."""
    enable_retry_topic_v2: bool = field(default=False, metadata={"live": True})
    """Whether messages that are not acknowledged in time are stored in `%RETRY%GROUP+TOPIC`, which
    is unambiguous. If not, in `%RETRY%GROUP_TOPIC`, which older Java brokers read as well."""
    retrieve_message_from_pop_retry_topic_v1: bool = field(default=True, metadata={"live": True})
    """Whether every other pop reads `%RETRY%GROUP_TOPIC` while `enable_retry_topic_v2` is on."""
    pop_from_retry_probability: int = field(default=20, metadata={"live": True})
    """Percentage of pops that read the retry topic before the topic; the others read it if the
    topic does not fill the answer."""
    pop_from_retry_probability_for_priority: int = field(default=0, metadata={"live": True})
    """The same percentage for topics with priorities (`message.type` PRIORITY)."""
    priority_order_asc: bool = field(default=True, metadata={"live": True})
    """Whether a higher queue id is a higher priority in topics with priorities. It is also the
    order in which a pop reads the queues of any topic, from a random one."""
    use_separate_retry_queue: bool = field(default=False, metadata={"live": True})
    """Whether a retry topic has as many queues as its topic, and a message keeps its queue id. If
    not, it has one queue."""
    pop_response_return_actual_retry_topic: bool = field(default=False, metadata={"live": True})
    """Whether messages from a retry topic are delivered under its name. If not, under the name of
    the topic that the client popped."""
    clear_retry_topic_when_delete_topic: bool = field(default=True, metadata={"live": True})
    """Whether the deletion of a topic deletes the retry topics of its groups as well."""
    init_pop_offset_by_check_msg_in_mem: bool = field(default=True, metadata={"live": True})
    """Whether a new group that begins at the end of a queue begins at its start instead, if all
    messages of the queue are recent ones."""
    pop_polling_size: int = field(default=1_024, metadata={"live": True})
    """Most held pops of one group for one queue, or for all queues of a topic. Further ones are
    answered with POLLING_FULL."""
    max_pop_polling_size: int = field(default=100_000, metadata={"live": True})
    """Most held pops of the broker."""
    use_message_filter_for_notification: bool = field(default=True, metadata={"live": True})
    """Whether a request for the arrival of messages (NOTIFICATION) is answered only for messages
    that match its expression, if only a few messages are left."""
    max_message_filter_num_for_notification: int = field(default=64, metadata={"live": True})
    """Number of messages left in a queue up to which they are matched for that."""
    enable_notify_after_pop_order_lock_release: bool = field(default=True, metadata={"live": True})
    """Whether held pops are served when a queue that is popped in order becomes free because the
    invisible time of its messages ends."""
    enable_pop_message_threshold: bool = field(default=False, metadata={"live": True})
    """Whether a group gets no more messages of a queue while too many are in flight."""
    pop_inflight_message_threshold: int = field(default=10_000, metadata={"live": True})
    """Most messages in flight of one group and queue, if `enable_pop_message_threshold` is on."""
    skip_when_ck_re_put_reach_max_times: bool = field(
        default=False, metadata={"key": "skipWhenCKRePutReachMaxTimes", "live": True}
    )
    """Whether a message is dropped after 17 failed attempts to store it in the retry topic. If not,
    the attempts go on each two hours."""
    enable_pop_metrics: bool = True
    """Whether the metrics `rocketmq_pop_*` are exported."""

    enable_pop_buffer_merge: bool = field(default=False, metadata={"live": True})
    """Whether checkpoints and acks are kept in memory for some seconds, so that most are never
    stored. After a kill, messages acknowledged within `pop_ck_stay_buffer_time_ms` are delivered
    again."""
    pop_ck_stay_buffer_time_ms: int = field(
        default=10 * _SECOND_MS, metadata={"key": "popCkStayBufferTime", "live": True}
    )
    """Longest time that a checkpoint stays in the buffer without being stored."""
    pop_ck_stay_buffer_time_out_ms: int = field(
        default=3 * _SECOND_MS, metadata={"key": "popCkStayBufferTimeOut", "live": True}
    )
    """A buffered checkpoint is stored this long before its messages become visible again."""
    pop_ck_max_buffer_size: int = field(default=200_000, metadata={"live": True})
    """Most checkpoints in the buffer; further ones are stored at once."""
    pop_ck_offset_max_queue_size: int = field(default=20_000, metadata={"live": True})
    """Most checkpoints of one group and queue in the buffer; further ones are stored at once."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("revive_queue_num", 1, _QUEUES_MAX),
            ("pop_from_retry_probability", 0, _PERCENT_MAX),
            ("pop_from_retry_probability_for_priority", 0, _PERCENT_MAX),
            ("pop_polling_size", 1, _HOLDS_MAX),
            ("max_pop_polling_size", 1, _HOLDS_MAX),
            ("max_message_filter_num_for_notification", 0, _MANY),
            ("pop_inflight_message_threshold", 1, _MANY),
            ("pop_ck_stay_buffer_time_ms", 1, 3600 * _SECOND_MS),
            ("pop_ck_stay_buffer_time_out_ms", 1, 3600 * _SECOND_MS),
            ("pop_ck_max_buffer_size", 0, _CHECKPOINTS_MAX),
            ("pop_ck_offset_max_queue_size", 1, _CHECKPOINTS_MAX),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                raise ConfigError(f"{name} is {value}; it must be {least} to {most}")


def find_kv_store(disk: Disk) -> str | None:
    """Return a warning if the store holds pops of `popConsumerKVServiceEnable`; None if not."""
    if not disk.list(KV_STORE_DIRECTORY):
        return None
    return (
        f"{disk.root}/{KV_STORE_DIRECTORY} may hold pops of a Java broker with "
        "popConsumerKVServiceEnable, which Kourou does not read: messages that were in flight are "
        "not delivered again. Start the Java broker once more, and export them with mqadmin "
        "exportPopRecord; or remove the directory if none were in flight"
    )
