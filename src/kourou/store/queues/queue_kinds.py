"""Determines the topics with batch consume queues from the files of a store.

The broker's topic table declares the kind (attribute `queue.type`), which never changes while a
topic exists. A topic with files of batch queues has that kind even if the table lacks it.

Source: QueueTypeUtils.getCQType, apache/rocketmq 5.5.0.
"""

from __future__ import annotations

from typing import Final

from kourou.disk import Disk
from kourou.errors import KourouError
from kourou.protocol import fastjson
from kourou.store.paths import BATCH_CONSUMEQUEUE, TOPICS
from kourou.store.state.config_file import BARE_KEYS_BYTES_MAX, ConfigFile

QUEUE_TYPE: Final = "queue.type"
BATCH_TYPE: Final = "BatchCQ"


def batch_topics(disk: Disk) -> set[str]:
    """Return the names of topics with batch queues.

    A topic table that cannot be parsed is ignored here; the broker's topic table reports it.

    Raises:
        OSError: a file cannot be read.
    """
    return {*disk.list(BATCH_CONSUMEQUEUE), *_declared(disk)}


def _declared(disk: Disk) -> set[str]:
    try:
        data = ConfigFile(disk, TOPICS, _parse).load()
    except KourouError:
        return set()
    table = _parse(data) if data is not None else None
    topics = table.get("topicConfigTable") if isinstance(table, dict) else None
    if not isinstance(topics, dict):
        return set()
    return {str(name) for name, topic in topics.items() if _has_batches(topic)}


def _has_batches(topic: object) -> bool:
    attributes = topic.get("attributes") if isinstance(topic, dict) else None
    return isinstance(attributes, dict) and attributes.get(QUEUE_TYPE) == BATCH_TYPE


def _parse(text: bytes) -> object:
    return fastjson.loads(text, bare_keys_bytes_max=BARE_KEYS_BYTES_MAX)
