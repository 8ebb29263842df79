"""Reads the topic table of a store without a broker: its topics, and which have batch queues.

The table declares the kind of a topic's queues (attribute `queue.type`), which never changes while
a topic exists. A topic with files of batch queues has that kind even if the table lacks it.

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


def named_topics(disk: Disk) -> frozenset[str] | None:
    """Return the names in `config/topics.json`; None if it is missing or cannot be parsed.

    Raises:
        OSError: the file cannot be read.
    """
    topics = _topics(disk)
    return None if topics is None else frozenset(map(str, topics))


def _declared(disk: Disk) -> set[str]:
    topics = _topics(disk) or {}
    return {str(name) for name, topic in topics.items() if _has_batches(topic)}


def _topics(disk: Disk) -> dict[object, object] | None:
    """Return the configs by topic; None if the table is missing or cannot be parsed."""
    try:
        data = ConfigFile(disk, TOPICS, _parse).load()
    except KourouError:
        return None
    table = _parse(data) if data is not None else None
    topics = table.get("topicConfigTable") if isinstance(table, dict) else None
    return topics if isinstance(topics, dict) else None


def _has_batches(topic: object) -> bool:
    attributes = topic.get("attributes") if isinstance(topic, dict) else None
    return isinstance(attributes, dict) and attributes.get(QUEUE_TYPE) == BATCH_TYPE


def _parse(text: bytes) -> object:
    return fastjson.loads(text, bare_keys_bytes_max=BARE_KEYS_BYTES_MAX)
