"""Messages that become visible again: their records for the retry topic. Pure.

A revived message keeps body, tags, keys, properties and born time. It gets the pop's group, the
time of its first pop, and one more delivery, unless its checkpoint was suspended. A property of
Kourou's own names the checkpoint and the message, so that a start after a kill knows that it was
revived; clients do not see it.

Source: PopReviveService.reviveRetry, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kourou.broker.popping.checkpoint import CheckpointKey, PopCheckpoint
from kourou.broker.popping.pop_config import PopConfig
from kourou.model.host import Host
from kourou.model.properties import FIRST_POP_TIME, ORIGIN_GROUP, decode_properties
from kourou.model.property_limits import encode_fitting_properties
from kourou.model.topic import TopicConfig, is_retry_topic
from kourou.protocol.popping.topic_names import retry_topic_v1, retry_topic_v2
from kourou.protocol.record.encode import RecordDraft, draft_from_record
from kourou.protocol.record.layout import without_seal
from kourou.protocol.record.read import read_record

REVIVED_FROM: Final = "KOUROU_REVIVED_FROM"
"""Property of a revived message: start offset, pop time, broker, queue, offset and topic of its
pop."""
REVIVED_MARK: Final = f"{REVIVED_FROM}\x01".encode()

_WORDS: Final = 6


def revived_origin(properties: Mapping[str, str]) -> tuple[CheckpointKey, int] | None:
    """Return the checkpoint and queue offset of a revived message; None if they are not known."""
    words = properties.get(REVIVED_FROM, "").split(" ", _WORDS - 1)
    group = properties.get(ORIGIN_GROUP)
    if len(words) != _WORDS or group is None:
        return None
    start, pop_time, broker_name, queue_id, offset, topic = words
    try:
        key = CheckpointKey(topic, group, int(queue_id), int(start), int(pop_time), broker_name)
        return key, int(offset)
    except ValueError:
        return None


def retry_topic_of(checkpoint: PopCheckpoint, config: PopConfig) -> str:
    """Return the topic in which unacknowledged messages of the checkpoint are stored.

    Messages of a retry topic stay in it.
    """
    topic, group = checkpoint.key.topic, checkpoint.key.group
    if is_retry_topic(topic):
        return topic
    if config.enable_retry_topic_v2:
        return retry_topic_v2(group, topic)
    return retry_topic_v1(group, topic)


def new_retry_topic(name: str, origin: TopicConfig | None, config: PopConfig) -> TopicConfig:
    """Return the config to create a retry topic with; `origin` is the topic of its messages."""
    queues = 1
    if config.use_separate_retry_queue and origin is not None:
        queues = max(1, origin.write_queue_nums)
    return TopicConfig(name, queues, queues)


def retry_queue_of(checkpoint: PopCheckpoint, topic: TopicConfig, config: PopConfig) -> int:
    """Return the queue of the retry topic for the checkpoint's messages."""
    queue_id = checkpoint.key.queue_id
    if not config.use_separate_retry_queue or queue_id >= topic.write_queue_nums:
        return 0
    return queue_id


def revived_draft(
    record: bytes,
    checkpoint: PopCheckpoint,
    queue: tuple[str, int],
    host: Host,
    *,
    is_delivered: bool = True,
) -> RecordDraft:
    """Return the record of a message for its retry topic.

    Args:
        record: of the message.
        checkpoint: whose invisible time has ended.
        queue: the retry topic, and the queue in it.
        host: the broker's address, which becomes the born host, as in Java.
        is_delivered: whether the message was delivered, which counts as one delivery.

    Raises:
        MalformedMessageError: the record is damaged.
    """
    header = read_record(record, check_crc=False)
    properties = decode_properties(without_seal(header.properties(record)))
    if header.reconsume_times == 0 or FIRST_POP_TIME not in properties:
        properties[FIRST_POP_TIME] = str(checkpoint.key.pop_time_ms)
    key = checkpoint.key
    properties[ORIGIN_GROUP] = key.group
    properties[REVIVED_FROM] = (
        f"{key.start_offset} {key.pop_time_ms} {key.broker_name} {key.queue_id} "
        f"{header.queue_offset} {key.topic}"
    )
    text = encode_fitting_properties(properties, is_pending=False)
    counts = is_delivered and not checkpoint.is_suspended
    return replace(
        draft_from_record(record, header, *queue, text),
        born_host=host,
        store_host=host,
        reconsume_times=header.reconsume_times + counts,
    )
