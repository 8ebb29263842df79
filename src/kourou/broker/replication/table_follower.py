"""Applies the changes of topics, groups and request modes that the log of a replica has.

    slave            applies a record when the in-sync set has it, so that no failover undoes it
    becoming master  applies all records of the log before it serves, then creates the topics of
                     queues without one

`config/kourou-tables.json` holds the log position up to which records are applied and the tables
saved. An older one is harmless: each record is the state after a change, so applying records again,
in order, ends in the same state. A deletion is noted in the store, or with its group, and is
followed once.

A queue without a topic has messages whose sends were not acknowledged, or came from a Java master
less than 10 s ago. Its topic gets as many queues as are found, and no other settings. The queues of
a topic that a Java master has deleted stay on a slave, and their topic is not created.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Final

import msgspec

from kourou.broker.config_saver import SavedFile
from kourou.broker.consuming.assignment_modes import RequestModes
from kourou.broker.consuming.consumer_offsets import ConsumerOffsets
from kourou.broker.context import BrokerContext
from kourou.broker.topics import TOPICS_MAX
from kourou.broker.writing.queue_deletion import QueueDeletion
from kourou.errors import InvalidGroupError, KourouError, RemoteError
from kourou.model.topic import TABLES_TOPIC, TopicConfig, is_system_topic
from kourou.protocol.queue_assignment import SetMessageRequestMode
from kourou.protocol.record.keys import LIGHT_TOPIC_PREFIX
from kourou.protocol.record.read import read_record
from kourou.protocol.table_changes import GroupChange, TableChange, TopicChange, decode_changes

log = logging.getLogger(__name__)

FILE_NAME: Final = "config/kourou-tables.json"
_READ_AT_ONCE: Final = 1_024
"""Records of which only the latest state of each entry is applied."""


class TablesFile(msgspec.Struct, frozen=True):
    """The contents of the file.

    Attributes:
        applied: log position below which all records are applied.
        deleted: topic -> end of the log when it was missing from the table of a Java master.
    """

    applied: int = 0
    deleted: dict[str, int] = {}


def parse_tables_file(text: bytes) -> TablesFile:
    """Decode the file.

    Raises:
        ValueError: the text is not of this form.
    """
    return msgspec.json.decode(text, type=TablesFile)


class TableFollower:
    """Applies the records of one log to the tables of its broker."""

    def __init__(
        self,
        context: BrokerContext,
        modes: RequestModes,
        offsets: ConsumerOffsets,
        queue_deletion: QueueDeletion,
        on_topic_deleted: Callable[[TopicConfig], None],
        file: SavedFile,
    ) -> None:
        """Load the file.

        Args:
            context: topics, groups and the store.
            modes: request modes.
            offsets: committed offsets; those of a deleted topic are removed.
            queue_deletion: deletes the queues of a deleted topic.
            on_topic_deleted: called with each topic that was deleted.
            file: read now; written by `persist`.

        Raises:
            CorruptRecordError: neither the file nor its backup parses.
        """
        self._context = context
        self._reader = context.store.reader
        self._topics = context.topics
        self._groups = context.groups
        self._modes = modes
        self._offsets = offsets
        self._queue_deletion = queue_deletion
        self._on_topic_deleted = on_topic_deleted
        self._file = file
        text = file.load()
        self._saved = TablesFile() if text is None else parse_tables_file(text)
        self._applied = self._saved.applied
        self._deleted = dict(self._saved.deleted)
        self._next: int | None = None  # queue offset; None before the first search
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # A slave

    def start(self, confirmed: Callable[[], int]) -> None:
        """Apply records in a task, up to the position that `confirmed` returns."""
        self._task = asyncio.create_task(self._follow(confirmed), name="follow tables")
        self._wake.set()

    def note_deleted(self, topic: str) -> None:
        """Note that the topic is missing from the table of a Java master."""
        self._deleted[topic] = self._reader.visible_position
        if len(self._deleted) > TOPICS_MAX:
            del self._deleted[next(iter(self._deleted))]

    def wake(self) -> None:
        """Look for records that may be applied by now."""
        self._wake.set()

    async def stop(self) -> None:
        """Stop at once; a record that was half applied is applied again at the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def abandon(self) -> None:
        """Stop like a killed process."""
        if self._task is not None:
            self._task.cancel()

    async def _follow(self, confirmed: Callable[[], int]) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.apply(confirmed())
            except Exception:  # the next change must be followed nevertheless
                log.exception("table_changes.not_applied position=%d", self._applied)

    # A master

    async def recover(self) -> None:
        """Apply all records of the log.

        Raises:
            StoreError: the queues of a deleted topic cannot be deleted.
            OSError: the log cannot be read.
        """
        await self.apply(self._reader.visible_position)

    def create_missing_topics(self) -> None:
        """Create the topics of queues without one, after `recover`."""
        for name, queue_ids in self._reader.queues().items():
            if self._topics.get(name) is not None or _has_no_topic(name):
                continue
            if not self._is_old(name, queue_ids):
                count = max(queue_ids) + 1
                log.warning("topic.recovered name=%s queues=%d", name, count)
                self._topics.put(TopicConfig(name, count, count))

    def _is_old(self, topic: str, queue_ids: Sequence[int]) -> bool:
        """Return whether a Java master has deleted the topic since its last message."""
        entries = [
            self._reader.entry(topic, queue_id, self._reader.max_offset(topic, queue_id) - 1)
            for queue_id in queue_ids
        ]
        end = self._deleted.get(topic, 0)
        return all(entry is None or entry.physical_offset < end for entry in entries)

    # Both

    async def persist(self) -> None:
        """Save the tables, and the position up to which records are applied.

        Raises:
            OSError: a file could not be written.
        """
        current = TablesFile(self._applied, dict(self._deleted))
        if current == self._saved:
            return
        for table in (self._topics, self._groups, self._modes):
            await table.persist()
        await self._context.offload(self._file.save, msgspec.json.encode(current))
        self._saved = current

    async def apply(self, end: int) -> None:
        """Apply the records that end at or below a position and are not applied yet.

        Raises:
            StoreError: the queues of a deleted topic cannot be deleted: it is tried again.
            OSError: the log cannot be read.
        """
        end = min(end, self._reader.visible_position)
        while found := await self._context.offload(self._read, end):
            latest = {_key(change): change for *_, changes in found for change in changes}
            for change in latest.values():
                await self._apply(change)
            self._next, self._applied, _ = found[-1]

    def _read(self, end: int) -> list[tuple[int, int, Sequence[TableChange]]]:
        """Return the next records; runs on any thread.

        Each with the queue offset and the log position behind it.
        """
        if self._next is None:
            self._next = self._find_next()
        found = []
        for offset in range(self._next, self._reader.max_offset(TABLES_TOPIC, 0)):
            entry = self._reader.entry(TABLES_TOPIC, 0, offset)
            if entry is None or entry.physical_offset + entry.size > end:
                break
            changes = self._changes(entry.physical_offset)
            found.append((offset + 1, entry.physical_offset + entry.size, changes))
            if len(found) == _READ_AT_ONCE:
                break
        return found

    def _find_next(self) -> int:
        """Return the queue offset of the first record that is not applied."""
        offset = self._reader.max_offset(TABLES_TOPIC, 0)
        first = self._reader.min_offset(TABLES_TOPIC, 0)
        while offset > first:
            entry = self._reader.entry(TABLES_TOPIC, 0, offset - 1)
            if entry is None or entry.physical_offset < self._applied:
                break
            offset -= 1
        return offset

    def _changes(self, position: int) -> Sequence[TableChange]:
        try:
            record = self._reader.read_record(position)
            if record is not None:
                return decode_changes(read_record(record, check_crc=False).body(record))
            reason = "the record is damaged"
        except KourouError as error:
            reason = str(error)
        log.error("table_change.skipped position=%d reason=%s", position, reason)
        return ()

    async def _apply(self, change: TableChange) -> None:
        try:
            if isinstance(change, TopicChange):
                await self._apply_topic(change)
            elif isinstance(change, GroupChange):
                self._apply_group(change)
            else:
                self._modes.put(change)
        except (InvalidGroupError, RemoteError) as error:  # a limit of this replica
            log.warning("table_change.refused change=%r reason=%s", change, error)

    async def _apply_topic(self, change: TopicChange) -> None:
        name, topic = change.name, self._topics.get(change.name)
        is_new = await self._queue_deletion.follow(name, change.begin) if change.begin else False
        if is_new or change.config is None:
            self._topics.delete(name)
        if is_new:
            self._offsets.remove_topic(name)
            if topic is not None:
                self._on_topic_deleted(topic)
        if change.config is not None:
            self._topics.put_all((change.config,))

    def _apply_group(self, change: GroupChange) -> None:
        is_deleted = self._groups.follow(
            change.name, change.config, change.deleted_at, change.forbidden
        )
        if is_deleted and change.is_cleaned:
            self._offsets.remove_group(change.name)


def _key(change: TableChange) -> Hashable:
    """Return the key of the entry whose state a change is; a later one replaces it."""
    if isinstance(change, SetMessageRequestMode):
        return type(change), change.topic, change.consumer_group
    return type(change), change.name


def _has_no_topic(name: str) -> bool:
    """Return whether queues of this name belong to no entry of the topic table."""
    return is_system_topic(name) or name.startswith(LIGHT_TOPIC_PREFIX)
