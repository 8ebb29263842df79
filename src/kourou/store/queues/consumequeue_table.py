"""Table of all consume queues, by topic and queue id."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

from kourou.disk import Disk
from kourou.errors import InvalidMessageError, TopicRefusedError
from kourou.model.topic import RETRY_OR_DLQ_TOPIC_LENGTH_MAX, TOPIC_LENGTH_MAX, is_retry_topic
from kourou.store.config import StoreConfig
from kourou.store.paths import (
    BATCH_CONSUMEQUEUE,
    CONSUMEQUEUE,
    CONSUMEQUEUE_EXT,
    is_queue_id,
    is_safe_topic,
)
from kourou.store.queues.appended import AppendedRecord
from kourou.store.queues.batch_queue import BatchQueue
from kourou.store.queues.consumequeue import ConsumeQueue
from kourou.store.queues.extended_queue import BitMapOf, ExtendedQueue
from kourou.store.queues.queue_tails import QueueTails
from kourou.store.queues.simple_queue import SimpleQueue
from kourou.store.queues.topic_table import batch_topics

log = logging.getLogger(__name__)

_ROOTS: Final = (CONSUMEQUEUE, BATCH_CONSUMEQUEUE)


def _no_filters(_: AppendedRecord) -> bytes:
    return b""


class ConsumeQueueTable(QueueTails):
    """Finds, creates, flushes and removes queues; a queue is created for its first message.

    Attributes:
        by_key: the queues that accept messages, by the encoded topic and the queue id.
        deleted_files: how many files deletions of topics removed; see `count_files`.
        bit_map_of: computes the bit map of an extension unit; empty maps by default.
    """

    def __init__(self, disk: Disk, config: StoreConfig) -> None:
        super().__init__(disk, config.queue_tail_bytes_max)
        self._config = config
        self._queues: dict[str, dict[int, ConsumeQueue]] = {}
        self.by_key: dict[tuple[bytes, int], ConsumeQueue] = {}  # saves decoding at each append
        self._refused: set[str] = set()  # topics in deletion, whose files may still exist
        self._batch_topics = batch_topics(disk)
        self._has_batches: Callable[[str], bool] = self._batch_topics.__contains__
        self.deleted_files = 0
        self.bit_map_of: BitMapOf = _no_filters
        self._extended = {
            (topic, int(name))
            for topic in disk.list(CONSUMEQUEUE_EXT)
            for name in disk.list(f"{CONSUMEQUEUE_EXT}/{topic}")
            if is_queue_id(name)
        }

    def __iter__(self) -> Iterator[ConsumeQueue]:
        for queues in self._queues.values():
            yield from queues.values()

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue; None if it never had a message."""
        queues = self._queues.get(topic)
        return None if queues is None else queues.get(queue_id)

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """Return the topic's queues."""
        return list(self._queues.get(topic, {}).values())

    def has_topic(self, topic: str) -> bool:
        """Tell whether a queue of the topic has or had a message, or gets its first one now.

        Also true while the topic is refused, because some of its files may remain.
        """
        return topic in self._queues or topic in self._refused

    def queue_ids(self) -> dict[str, list[int]]:
        """Return the ids of the queues of each topic that hold or held a visible message."""
        return {
            topic: ids
            for topic, queues in sorted(self._queues.items())
            if (ids := sorted(id_ for id_, queue in queues.items() if queue.max_offset))
        }

    def for_append(self, topic: bytes, queue_id: int) -> ConsumeQueue:
        """Return the queue for a message to append; creates it if necessary.

        Raises:
            InvalidMessageError: the topic or queue id is invalid; or the topic has more than 127
                bytes, 255 for a retry topic, which are the limits of Java's brokers
                (HookUtils.java).
            TopicRefusedError: the topic is being deleted, or its deletion failed.
        """
        queue = self.by_key.get((topic, queue_id))
        if queue is None:
            name = _topic_name(topic)
            if name in self._refused:
                raise TopicRefusedError(
                    f"topic {name} is being deleted; if that failed, delete it again or restart "
                    "the broker"
                )
            if queue_id < 0:
                raise InvalidMessageError(f"queue id {queue_id} is negative")
            queue = self.get_or_add(name, queue_id)
        return queue

    def accepts(self, topic: str, queue_id: int) -> bool:
        """Tell whether a record found in the log can have a queue: its names make a valid path."""
        return queue_id >= 0 and is_safe_topic(topic)

    def add_batch_topic(self, topic: str) -> None:
        """Note that the topic has batch queues, because the log has an inner batch of it."""
        self._batch_topics.add(topic)

    def set_kind_lookup(self, has_batches: Callable[[str], bool]) -> None:
        """Set the function that tells whether a new topic has batch queues."""
        self._has_batches = has_batches

    def get_or_add(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue; creates an empty one if it does not exist."""
        queues = self._queues.setdefault(topic, {})
        queue = queues.get(queue_id)
        if queue is None:
            other = next(iter(queues.values()), None)
            is_batch = self._has_batches(topic) if other is None else isinstance(other, BatchQueue)
            queue = queues[queue_id] = self._build(topic, queue_id, is_batch=is_batch)
            self.by_key[topic.encode(), queue_id] = queue
        return queue

    def _build(self, topic: str, queue_id: int, *, is_batch: bool) -> ConsumeQueue:
        if is_batch:
            return BatchQueue(self._disk, topic, queue_id, self._config.batch_queue_file_bytes)
        if self._config.consumequeue_extension or (topic, queue_id) in self._extended:
            return ExtendedQueue(self._disk, topic, queue_id, self._config, self._bit_map)
        return SimpleQueue(self._disk, topic, queue_id, self._config.consumequeue_file_bytes)

    def _bit_map(self, record: AppendedRecord) -> bytes:
        return self.bit_map_of(record)

    def load(self) -> list[ConsumeQueue]:
        """Load the queues that have files; recovery determines their ends.

        Returns:
            The queues that lack a file in the middle; the files after the gap are removed.

        Raises:
            StoreConfigError: a file does not begin at a multiple of the file size.
        """
        damaged = []
        for root in _ROOTS:
            for topic in self._disk.list(root):
                for name in self._disk.list(f"{root}/{topic}"):
                    if is_queue_id(name):
                        queue = self.get_or_add(topic, int(name))
                        if queue.segments.directory != f"{root}/{topic}/{name}":
                            self._remove_other_kind(root, topic, name)
                        elif self._load_one(queue):
                            damaged.append(queue)
        return damaged

    def _load_one(self, queue: ConsumeQueue) -> bool:
        """Load the queue's files; tell whether files after a gap were removed."""
        if isinstance(queue, ExtendedQueue):
            queue.extension.load()
        after_gap = queue.segments.load()
        if after_gap:
            log.warning("consumequeue.gap_found directory=%s", queue.segments.directory)
            queue.segments.remove(after_gap)
            self._disk.sync_directory(queue.segments.directory)
        return bool(after_gap)

    def _remove_other_kind(self, root: str, topic: str, name: str) -> None:
        """Remove files of a queue whose topic now has queues of the other kind.

        They remain from a topic that was deleted and created again with the other kind; Java does
        not start if it finds them.
        """
        directory = f"{root}/{topic}/{name}"
        log.warning("consumequeue.other_kind_removed directory=%s", directory)
        _remove_tree(self._disk, directory)
        self._disk.sync_directory(f"{root}/{topic}")

    def remove(self, queue: ConsumeQueue) -> None:
        """Remove one queue from the table, and its files and directory durably."""
        queues = self._queues[queue.topic]
        del queues[queue.queue_id]
        if not queues:
            del self._queues[queue.topic]
        self._drop(queue)
        directories = [queue.segments.directory]
        if isinstance(queue, ExtendedQueue):
            directories.append(queue.extension.segments.directory)
        for directory in directories:
            if self._disk.exists(directory):
                _remove_tree(self._disk, directory)
                self._disk.sync_directory(_parent(directory))

    # Deletion of a topic, see `kourou.store.deletion` ---------------------------------------------

    def refuse(self, topic: str) -> None:
        """Refuse appends to the topic, until `allow`."""
        self._refused.add(topic)
        for queue_id in self._queues.get(topic, ()):
            self.by_key.pop((topic.encode(), queue_id), None)

    def forget(self, topic: str) -> None:
        """Remove the topic's queues from the table: their files are no longer read or written."""
        for queue in self._queues.pop(topic, {}).values():
            self._drop(queue)

    def remove_files(self, topic: str) -> None:
        """Remove the topic's directories with all contents, durably; on any thread.

        Raises:
            OSError: a part of them remains.
        """
        for root in (*_ROOTS, CONSUMEQUEUE_EXT):
            directory = f"{root}/{topic}"
            if self._disk.exists(directory):
                for name in self._disk.list(directory):
                    _remove_tree(self._disk, f"{directory}/{name}")
                self._disk.remove_directory(directory)
            if self._disk.exists(root):
                self._disk.sync_directory(root)

    def has_files(self, topic: str) -> bool:
        """Tell whether the topic has a directory, even an empty one."""
        return any(self._disk.exists(f"{root}/{topic}") for root in _ROOTS)

    def allow(self, topic: str) -> None:
        """Accept appends to the topic again."""
        self._refused.discard(topic)

    def _drop(self, queue: ConsumeQueue) -> None:
        """Remove the queue from all tables except the one by topic."""
        self.by_key.pop((queue.topic.encode(), queue.queue_id), None)
        self._drop_tail(queue)


def _parent(directory: str) -> str:
    return directory.rpartition("/")[0]


def _remove_tree(disk: Disk, name: str) -> None:
    """Remove a directory and the files in it; also a file of that name."""
    for inner in disk.list(name):
        disk.unlink(f"{name}/{inner}")
    try:
        disk.remove_directory(name)
    except NotADirectoryError:
        disk.unlink(name)


def _topic_name(topic: bytes) -> str:
    try:
        name = topic.decode()
    except UnicodeDecodeError:
        raise InvalidMessageError(f"the topic is not UTF-8: {topic!r}") from None
    if not is_safe_topic(name):
        raise InvalidMessageError(f"{name!r} is not a valid topic name")
    limit = RETRY_OR_DLQ_TOPIC_LENGTH_MAX if is_retry_topic(name) else TOPIC_LENGTH_MAX
    if len(topic) > limit:
        raise InvalidMessageError(f"the topic has {len(topic)} bytes; the limit is {limit}")
    return name
