"""All consume queues, by topic and queue id, and which of them wait for a write or a sync."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from kourou.disk import Disk
from kourou.errors import InvalidMessageError, StoreError
from kourou.model.topic import RETRY_OR_DLQ_TOPIC_LENGTH_MAX, TOPIC_LENGTH_MAX, is_retry_topic
from kourou.store.config import StoreConfig
from kourou.store.log.damage import DamagedSpan
from kourou.store.paths import (
    BATCH_CONSUMEQUEUE,
    CONSUMEQUEUE,
    CONSUMEQUEUE_EXT,
    is_safe_topic,
)
from kourou.store.queues.batch_queue import BatchQueue
from kourou.store.queues.consumequeue import ConsumeQueue
from kourou.store.queues.dispatch import Appended
from kourou.store.queues.extended_queue import BitMapOf, ExtendedQueue
from kourou.store.queues.queue_kinds import batch_topics
from kourou.store.queues.simple_queue import SimpleQueue

log = logging.getLogger(__name__)

_ROOTS: Final = (CONSUMEQUEUE, BATCH_CONSUMEQUEUE)


def _no_filters(_: Appended) -> bytes:
    return b""


NEW_FILES_PER_FLUSH: Final = 16
"""Files that one flush makes: each, with its directory, takes a third of a millisecond."""
FILES_PER_FLUSH: Final = 128
"""Files that one flush writes to: beyond the open ones, each takes 15 us."""


class ConsumeQueueTable:
    """Finds queues, makes them on the first message, flushes and removes them.

    Attributes:
        unsynced: names of queue files written since their last sync, oldest first, with the
            directories that are to be synced with each because the file is new.
        bit_map_of: makes the bit maps of extension units; they are empty until there is one.
    """

    def __init__(self, disk: Disk, config: StoreConfig) -> None:
        self._disk = disk
        self._config = config
        self._tail_bytes_max = config.queue_tail_bytes_max
        self._queues: dict[str, dict[int, ConsumeQueue]] = {}
        # As drafts name them: one lookup an append, and no decoding.
        self._by_key: dict[tuple[bytes, int], ConsumeQueue] = {}
        self._with_tail: dict[ConsumeQueue, None] = {}
        self._with_long_tail: dict[ConsumeQueue, None] = {}
        self._round: dict[ConsumeQueue, None] = {}  # that is being flushed, a few at a time
        self._refused: set[str] = set()  # topics on their way out, whose files may still be there
        self._batch_topics = batch_topics(disk)
        self._has_batches: Callable[[str], bool] = self._batch_topics.__contains__
        self.unsynced: dict[str, tuple[str, ...]] = {}
        self.bit_map_of: BitMapOf = _no_filters
        self._extended = {
            (topic, int(name))
            for topic in disk.list(CONSUMEQUEUE_EXT)
            for name in disk.list(f"{CONSUMEQUEUE_EXT}/{topic}")
            if name.isdecimal()
        }
        self._is_recovering = True

    def __iter__(self) -> Iterator[ConsumeQueue]:
        for queues in self._queues.values():
            yield from queues.values()

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return the queue, if it has or had a message."""
        queues = self._queues.get(topic)
        return None if queues is None else queues.get(queue_id)

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """Return the topic's queues."""
        return list(self._queues.get(topic, {}).values())

    def has_topic(self, topic: str) -> bool:
        """Tell whether a queue of the topic has, had or is about to have a message.

        Also true while the topic is refused: files of it may be left.
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
        """Return the queue of a message that is to be appended, made if need be.

        Raises:
            InvalidMessageError: there can be no such queue; or the topic has more than 127
                bytes, 255 for a retry topic, which is what Java's brokers store (HookUtils.java).
            StoreError: the topic is refused.
        """
        queue = self._by_key.get((topic, queue_id))
        if queue is None:
            name = _topic_name(topic)
            if name in self._refused:
                raise StoreError(
                    f"topic {name} is being deleted; if that failed, delete it again or restart "
                    "the broker"
                )
            if queue_id < 0:
                raise InvalidMessageError(f"queue id {queue_id} is negative")
            queue = self.get_or_add(name, queue_id)
        return queue

    def accepts(self, topic: str, queue_id: int) -> bool:
        """Tell whether a record found in the log gets an entry here: its names make a path."""
        return queue_id >= 0 and is_safe_topic(topic)

    def keep_batches(self, topic: str) -> None:
        """Give the topic batch queues, as a batch in the log says that it has."""
        self._batch_topics.add(topic)

    def ask_kinds(self, has_batches: Callable[[str], bool]) -> None:
        """From now on ask whether a topic whose first queue comes to be has batch queues."""
        self._has_batches = has_batches

    def get_or_add(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return the queue; an empty one if it is new."""
        queues = self._queues.setdefault(topic, {})
        queue = queues.get(queue_id)
        if queue is None:
            other = next(iter(queues.values()), None)
            is_batch = self._has_batches(topic) if other is None else isinstance(other, BatchQueue)
            queue = queues[queue_id] = self._make(topic, queue_id, is_batch=is_batch)
            self._by_key[topic.encode(), queue_id] = queue
        return queue

    def _make(self, topic: str, queue_id: int, *, is_batch: bool) -> ConsumeQueue:
        if is_batch:
            return BatchQueue(self._disk, topic, queue_id, self._config.batch_queue_file_bytes)
        if self._config.consumequeue_extension or (topic, queue_id) in self._extended:
            return ExtendedQueue(self._disk, topic, queue_id, self._config, self._bit_map)
        return SimpleQueue(self._disk, topic, queue_id, self._config.consumequeue_file_bytes)

    def _bit_map(self, record: Appended) -> bytes:
        return self.bit_map_of(record)

    def load(self) -> list[ConsumeQueue]:
        """Take up the queues that have files; how far they reach is recovery's to find out.

        Returns:
            The queues that miss a file in the middle; the files behind the gap are removed.

        Raises:
            StoreConfigError: a file does not begin at a multiple of the file size.
        """
        damaged = []
        for root in _ROOTS:
            for topic in self._disk.list(root):
                for name in self._disk.list(f"{root}/{topic}"):
                    if name.isdecimal() and name == str(int(name)):
                        queue = self.get_or_add(topic, int(name))
                        if queue.segments.directory != f"{root}/{topic}/{name}":
                            self._remove_other_kind(root, topic, name)
                        elif self._load_one(queue):
                            damaged.append(queue)
        return damaged

    def _load_one(self, queue: ConsumeQueue) -> bool:
        """Take up the queue's files; tell whether some were behind a gap, and removed."""
        if isinstance(queue, ExtendedQueue):
            queue.extension.load()
        behind_gap = queue.segments.load()
        if behind_gap:
            log.warning("consumequeue.gap_found directory=%s", queue.segments.directory)
            queue.segments.remove(behind_gap)
            self._disk.sync_directory(queue.segments.directory)
        return bool(behind_gap)

    def _remove_other_kind(self, root: str, topic: str, name: str) -> None:
        """Remove files of a queue that has become one of the other kind.

        They are left of a topic that was deleted, and made again as another; Java does not start
        where it finds them.
        """
        directory = f"{root}/{topic}/{name}"
        log.warning("consumequeue.other_kind_removed directory=%s", directory)
        _remove_tree(self._disk, directory)
        self._disk.sync_directory(f"{root}/{topic}")

    def recovered(self) -> None:
        """Take the names of files that are there for durable from now on.

        A process that was killed may have created what recovery writes to, and not synced it.
        """
        self.flush()
        self._is_recovering = False

    def put(self, queue: ConsumeQueue, record: Appended) -> None:
        """Add the record's entry to the queue, in memory: about 0.4 us."""
        queue.put(record)
        self._with_tail[queue] = None
        if queue.tail_bytes >= self._tail_bytes_max:
            self._with_long_tail[queue] = None

    def put_at(self, queue: ConsumeQueue, queue_offset: int, record: Appended) -> None:
        """As `put`, at an offset that may leave a gap, for which blanks stand."""
        queue.fill_to(queue_offset)
        self.put(queue, record)

    def fill_damaged(self, queue: ConsumeQueue, queue_offset: int, span: DamagedSpan) -> None:
        """Let the queue go on at the offset; entries before it that lack point at the damage."""
        queue.fill_to(queue_offset, span.position, span.size)
        self._with_tail[queue] = None

    def flush_long(self) -> None:
        """Write the tails that got longer than the config allows.

        Raises:
            OSError: the tails from the one that failed on are still in memory.
        """
        while self._with_long_tail:
            self._flush(next(iter(self._with_long_tail)))

    def flush(self) -> None:
        """Write all tails to their files.

        Raises:
            OSError: the tails from the one that failed on are still in memory.
        """
        for queue in list(self._with_tail):
            self._flush(queue)

    def flush_some(self) -> None:
        """Write some of the tails: at most `FILES_PER_FLUSH`, of them `NEW_FILES_PER_FLUSH` new.

        The tails that there are when none is being flushed make a round, and those of the calls
        after it, until all of them are written, take their turn from it.

        Raises:
            OSError: as `flush`; the round goes on with the next call.
        """
        if not self._round:
            self._round = dict.fromkeys(self._with_tail)
        new_files = 0
        for queue in list(islice(self._round, FILES_PER_FLUSH)):
            new_files += queue.needs_file
            if new_files > NEW_FILES_PER_FLUSH:
                break
            self._flush(queue)

    @property
    def is_flushing(self) -> bool:
        """Tell whether a round of `flush_some` has a rest."""
        return bool(self._round)

    def sync(self) -> None:
        """Sync all files written since their last sync."""
        directories = {name for new_in in self.unsynced.values() for name in new_in}
        self._disk.sync_all(tuple(self.unsynced), sorted(directories))
        self.unsynced.clear()

    def _flush(self, queue: ConsumeQueue) -> None:
        names, is_new = queue.flush()
        self._has_no_tail(queue)
        directories: tuple[str, ...] = ()
        if is_new or self._is_recovering:
            directories = queue.directories()
        for name in names:
            self.unsynced[name] = self.unsynced.get(name) or directories

    def _has_no_tail(self, queue: ConsumeQueue) -> None:
        for waiting in (self._with_tail, self._with_long_tail, self._round):
            waiting.pop(queue, None)

    def cut(self, queue: ConsumeQueue) -> None:
        """Remove what the queue's files hold behind its last entry.

        Removed files are gone for good when this returns: brought back by a crash, their entries
        would look like those of later records that came to the same places of the log.
        """
        names_before = [queue.segments.name(start) for start in queue.segments.starts()]
        for name in queue.cut():
            self.unsynced.setdefault(name, ())
        removed = names_before[len(queue.segments.starts()) :]
        for name in removed:
            self.unsynced.pop(name, None)
        if removed:
            self._disk.sync_directory(queue.segments.directory)

    def hide_first_files(self, queue: ConsumeQueue, count: int) -> list[int]:
        """Forget the queue's oldest files, which are the caller's to unlink; return their starts.

        See `kourou.store.expiry`.
        """
        starts = queue.segments.hide_first(count)
        for start in starts:
            self.unsynced.pop(queue.segments.name(start), None)
        return starts

    def remove(self, queue: ConsumeQueue) -> None:
        """Forget one queue and remove its files and directory, durably."""
        queues = self._queues[queue.topic]
        del queues[queue.queue_id]
        if not queues:
            del self._queues[queue.topic]
        self._forget(queue)
        directories = [queue.segments.directory]
        if isinstance(queue, ExtendedQueue):
            directories.append(queue.extension.segments.directory)
        for directory in directories:
            if self._disk.exists(directory):
                _remove_tree(self._disk, directory)
                self._disk.sync_directory(_parent(directory))

    # Deleting a topic, see `kourou.store.deletion` ------------------------------------------------

    def refuse(self, topic: str) -> None:
        """Refuse appends to the topic, until `allow`."""
        self._refused.add(topic)
        for queue_id in self._queues.get(topic, ()):
            self._by_key.pop((topic.encode(), queue_id), None)

    def forget(self, topic: str) -> None:
        """Forget the topic's queues: nothing is read from or written to their files any more."""
        for queue in self._queues.pop(topic, {}).values():
            self._forget(queue)

    def remove_files(self, topic: str) -> None:
        """Remove whatever is in the topic's directory, and that, durably; on any thread.

        Raises:
            OSError: a part of it is still there.
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
        """Tell whether the topic has a directory, be it an empty one."""
        return any(self._disk.exists(f"{root}/{topic}") for root in _ROOTS)

    def allow(self, topic: str) -> None:
        """Take messages of the topic again."""
        self._refused.discard(topic)

    def _forget(self, queue: ConsumeQueue) -> None:
        """Drop what is kept of the queue beside itself."""
        self._by_key.pop((queue.topic.encode(), queue.queue_id), None)
        self._has_no_tail(queue)
        for start in queue.segments.starts():
            self.unsynced.pop(queue.segments.name(start), None)


def _parent(directory: str) -> str:
    return directory.rpartition("/")[0]


def _remove_tree(disk: Disk, name: str) -> None:
    """Remove a directory and the files in it; a file by that name goes as well."""
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
        raise InvalidMessageError(f"{name!r} is no topic")
    limit = RETRY_OR_DLQ_TOPIC_LENGTH_MAX if is_retry_topic(name) else TOPIC_LENGTH_MAX
    if len(topic) > limit:
        raise InvalidMessageError(f"topic of {len(topic)} bytes, at most {limit}")
    return name
